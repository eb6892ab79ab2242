"""Planning where Linux's own calls are missing, as on macOS."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "smudged" / "experiment.yaml"
AS_ON_MACOS = """
import os, time
for module, names in {
    os: ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "MFD_CLOEXEC"),
    time: ("CLOCK_BOOTTIME",),
}.items():
    for name in names:
        delattr(module, name)
from cloudtune.cli.main import main
from cloudtune.planning import forecasting
forecasting.FORECAST_EVENTS = 1
main()
"""


def test_a_plan_needs_nothing_of_linux(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_MACOS, "plan", EXAMPLE],
        env={**os.environ, "CLOUDTUNE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "kept in" in done.stdout

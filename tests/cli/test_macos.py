"""Planning where Linux's own calls are missing, as on macOS."""

from pathlib import Path

from tests.bench import python

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
from cloudtune.forecast import prediction
prediction.FORECAST_EVENTS = 1
main()
"""


def test_a_plan_needs_nothing_of_linux(tmp_path: Path) -> None:
    done = python(AS_ON_MACOS, "plan", str(EXAMPLE), CLOUDTUNE_HOME=str(tmp_path))
    assert "kept in" in done.stdout

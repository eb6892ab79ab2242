"""What `make lint` runs, as tests: the checks take their time while whole runs wait."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# planners, infra and profiles are linked into cloudtune/; ruff follows no links.
SOURCES = ("cloudtune", "planners", "infra", "profiles", "tests", "examples", "benchmarks", "docs")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [
        ("mypy",),
        ("ruff", "check", "--quiet", *SOURCES),
        ("ruff", "format", "--check", "--quiet", *SOURCES),
        ("lint-imports", "--no-logo"),
    ],
    ids=" ".join,
)
def test_nothing_is_found(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

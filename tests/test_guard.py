"""A run of tests ends, whatever its tests leave, and says what that was."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import guard

ROOT = Path(__file__).resolve().parents[1]

HASTE = """
import tests.guard

tests.guard.PATIENCE = tests.guard.LAST_SECONDS = 0.5
"""

LEAVING = """
import pathlib, subprocess, sys, threading

def wait_for_ever():
    threading.Event().wait()

def test_thread():
    threading.Thread(target=wait_for_ever, name="stuck").start()
    assert False

def test_process():
    code = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    process = subprocess.Popen([sys.executable, "-c", code])
    process.returncode = 0  # so that its end warns of nothing
    pathlib.Path("pid").write_text(str(process.pid))
"""


def run(folder: Path, text: str, *options: str) -> tuple[int, list[str]]:
    """Run a file of tests in a pytest of its own; returns its exit code and its lines."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(HASTE)
    (folder / "test_it.py").write_text(text)
    plugins = ["-p", "tests.guard", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, "test_it.py"],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def environment(folder: Path) -> dict[str, str]:
    """Return this one, as it is where no CI makes pytest's summary longer."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    return {**kept, "PYTHONPATH": f"{ROOT}:{folder}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def closing(lines: list[str]) -> str:
    """Return what the last line says, without its frame and its seconds."""
    assert lines[-1].startswith("===")
    return lines[-1].strip("= ").partition(" in ")[0]


def test_what_a_test_leaves_fails_it_and_pytest_ends(tmp_path: Path) -> None:
    """Processes are ended, a thread is reported by its test and at the end."""
    code, lines = run(tmp_path, LEAVING)
    assert code == 1
    assert closing(lines) == "1 failed, 1 passed, 2 errors"
    assert any("ERROR at teardown of test_thread " in line for line in lines)
    result = [line for line in lines if line.startswith("thread 'stuck', in wait_for_ever (")]
    assert len(result) == 2
    pid = int((tmp_path / "pid").read_text())
    assert any(line.startswith(f"process {pid}: ") for line in lines)
    assert any(line.endswith(": sleep 600") for line in lines), "its own as well"
    assert not psutil.pid_exists(pid)


def test_the_whole_run_has_a_limit(pytestconfig: pytest.Config) -> None:
    in_order = float(str(pytestconfig.getini("session_timeout")))
    assert 0 < in_order < guard.LIMIT < 80 * 60  # CI has 90 minutes, with its set-up

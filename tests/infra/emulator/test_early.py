"""An emulator's process that starts early: what it becomes, and that it ends unused."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudtune.infra.emulator import early, service
from cloudtune.infra.emulator.service import ensure_emulator, stop_emulator
from cloudtune.infra.processes import is_running
from tests.bench import wait_for

PARENT = """
import os, signal
from cloudtune.infra.emulator import early
from tests.bench import wait_for
early.EarlyEmulator(dict(os.environ))
os.kill(os.getpid(), signal.SIGKILL)
"""


# In the environment of what a test starts: other tests start such processes meanwhile.
OURS = "CLOUDTUNE_TEST_EARLY"


def waiting() -> set[psutil.Process]:
    """Return this test's processes that have started early, also those that have begun."""
    everyone = psutil.process_iter(["cmdline", "environ"])
    early_ones = [it for it in everyone if early.OPTION in (it.info["cmdline"] or ())]
    return {it for it in early_ones if (it.info["environ"] or {}).get(OURS) == os.environ[OURS]}


@pytest.fixture(autouse=True)
def leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(OURS, str(tmp_path))
    yield
    assert not waiting()


def test_the_next_emulator_is_the_early_process(tmp_path: Path) -> None:
    with early.started_early(service.environment_here()):
        emulator = ensure_emulator(tmp_path, boot_seconds=0.1)
        process = psutil.Process(emulator.pid)
        assert early.OPTION in process.cmdline()
        assert process.ppid() != psutil.Process().pid, "it is nobody's child here"
        assert "serving" in (tmp_path / "emulator.log").read_text()
        assert early.take() is None, "it is used once"
    assert is_running(process), "it outlives the context: the run's cloud ends it"
    assert ensure_emulator(tmp_path).pid == emulator.pid
    assert stop_emulator(tmp_path, only_if_idle=True)


def test_one_that_is_not_needed_ends() -> None:
    with early.started_early(service.environment_here()):
        wait_for(lambda: bool(waiting()))  # its new environment shows a moment after its start


def test_one_that_has_died_is_replaced(tmp_path: Path) -> None:
    with early.started_early(service.environment_here()):
        wait_for(lambda: bool(waiting()))
        (process,) = waiting()
        process.kill()
        emulator = ensure_emulator(tmp_path, boot_seconds=0.1)
        assert early.OPTION not in psutil.Process(emulator.pid).cmdline()
    assert stop_emulator(tmp_path, only_if_idle=True)


def test_it_ends_with_who_started_it() -> None:
    subprocess.run([sys.executable, "-c", PARENT], check=False)
    _, alive = psutil.wait_procs(waiting(), timeout=60.0)
    assert not alive

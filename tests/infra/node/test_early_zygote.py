"""A zygote that starts beside Ray: its agent takes it over, or has one of its own."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from cloudtune.infra.node import early_zygote
from cloudtune.infra.node.forks import Forks
from cloudtune.infra.processes import is_running

# It says what its process has seen, at its import.
MODULE = """
import os, sys
from pathlib import Path
import beside
names = ["CLOUDTUNE_INPUT", "MARK", "OMP_NUM_THREADS"]
print("saw", *[os.environ.get(name) for name in names], sys.path[0], os.getcwd(), flush=True)

def train(config): ...
"""


class Node:
    """A node whose boot has started a zygote; its agent's forks, and what their workers were."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.log = folder / "zygote.log"
        self._stack = stack
        self.ended = threading.Event()

    def forks(self, **environment: str) -> Forks:
        where = {"PYTHONPATH": f"{self.folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        forks = Forks(
            "train.py:train",
            {**where, **environment},
            self.log,
            lambda *_: self.ended.set(),
            str(self.folder),
        )
        self._stack.callback(forks.close)
        forks.wait_until_warm(600.0)
        return forks

    @property
    def saw(self) -> list[list[str]]:
        lines = self.log.read_text().splitlines()
        return [line.split()[1:] for line in lines if line.startswith("saw ")]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    (tmp_path / "train.py").write_text(MODULE)
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ExitStack() as stack:
        monkeypatch.setenv("CLOUDTUNE_THREADS", "3")
        known = stack.enter_context(early_zygote.started_early(dict(os.environ), 1))
        for name, address in known.items():
            monkeypatch.setenv(name, address)
            while not Path(address).exists():
                psutil.Process().children()
        yield Node(tmp_path, stack)
    assert not list(tmp_path.glob("z*/socket")), "its socket is left"


def early_pid() -> int:
    """Return the pid of the zygote that the boot has started."""
    (child,) = [it for it in psutil.Process().children() if "--early" in it.cmdline()]
    return child.pid


def test_its_agent_takes_it_over(node: Node) -> None:
    pid = early_pid()
    forks = node.forks(CLOUDTUNE_INPUT="here", OMP_NUM_THREADS="3")
    assert forks.note == "warm"
    assert forks.pid == pid
    assert node.saw == [["here", "None", "3", str(node.folder), str(node.folder)]]
    connection = forks.fork("worker-1", {})
    while (worker := forks.find_pid("worker-1")) is None:
        pass
    assert psutil.Process(worker).ppid() == pid
    connection.close()
    assert node.ended.wait(60.0), "a worker ends with its agent's connection"


def test_early_zygote_restarts_with_environment(node: Node) -> None:
    pid = early_pid()
    forks = node.forks(MARK="mine", OMP_NUM_THREADS="2")
    assert forks.note == "warm"
    assert forks.pid == pid
    assert "--early" not in psutil.Process(pid).cmdline()
    assert node.saw == [["None", "mine", "2", str(node.folder), str(node.folder)]]


def test_after_its_end_the_agent_starts_others(node: Node) -> None:
    forks = node.forks()
    first = psutil.Process(forks.pid)
    os.kill(first.pid, signal.SIGKILL)
    while forks.pid == first.pid or forks.note != "warm":
        forks.wait_until_warm(1.0)
    assert not is_running(first)
    assert psutil.Process(forks.pid).ppid() == os.getpid()


def test_one_that_has_died_is_not_waited_for(node: Node) -> None:
    early = psutil.Process(early_pid())
    early.kill()
    while is_running(early):
        pass
    forks = node.forks()
    assert forks.note == "warm"
    assert forks.pid != early.pid


def test_it_ends_with_its_agent(node: Node) -> None:
    forks = node.forks()
    process = psutil.Process(forks.pid)
    forks.close()
    assert not is_running(process)

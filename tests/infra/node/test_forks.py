"""The process that workers are forked from: when it is warm, and what its end ends."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudtune.infra.node.forks import Forks
from cloudtune.infra.processes import is_running

WAITS_FOR_A_WRITER = """
open("fifo").close()

def train(config): ...
"""


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forks]:
    """Give a zygote that is not warm before somebody writes to the user's pipe."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    (tmp_path / "train.py").write_text(WAITS_FOR_A_WRITER)
    made = Forks("train.py:train", {}, tmp_path / "zygote.log", lambda *_: None)
    yield made
    made.close()


def test_who_waits_is_reported_once_all_is_imported(forks: Forks, tmp_path: Path) -> None:
    waiting = threading.Thread(target=forks.wait_until_warm, args=(600.0,))
    waiting.start()
    with (tmp_path / "fifo").open("w"):  # the zygote has come to the user's module
        assert waiting.is_alive()
        assert forks.note == "warming up"
        forks.wait_until_warm(0.0)  # older than that: not waited for
        assert forks.note == "warming up"
    waiting.join(30.0)
    assert forks.note == "warm"


def test_abandoned_zygote_blocks_none(forks: Forks) -> None:
    waiting = threading.Thread(target=forks.wait_until_warm, args=(60.0,))
    waiting.start()
    killed: set[int] = set()
    while waiting.is_alive():
        if forks.pid not in killed:
            killed.add(forks.pid)
            os.kill(forks.pid, signal.SIGKILL)
        waiting.join(0.01)
    assert len(killed) == 4
    assert "has died 4 times" in forks.note


def test_who_closes_it_waits_for_none(forks: Forks) -> None:
    waiting = threading.Thread(target=forks.wait_until_warm, args=(60.0,))
    waiting.start()
    forks.close()
    waiting.join(60.0)
    assert not waiting.is_alive()


def test_a_killed_zygotes_workers_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def train(config): ...")
    pids: dict[str, int] = {}
    alive: dict[str, bool] = {}
    ended = threading.Event()

    def note(name: str, status: int | None) -> None:
        assert status is None
        alive[name] = psutil.pid_exists(pids[name]) and is_running(psutil.Process(pids[name]))
        if len(alive) == len(pids):
            ended.set()

    forks = Forks("train.py:train", {}, tmp_path / "zygote.log", note)
    connections = [forks.fork(f"worker-{number}", {}) for number in range(12)]
    forks.wait_until_warm(600.0)
    for number in range(12):
        while (pid := forks.find_pid(f"worker-{number}")) is None:
            time.sleep(0.01)
        pids[f"worker-{number}"] = pid
    os.kill(forks.pid, signal.SIGKILL)
    assert ended.wait(60.0)
    forks.close()
    for connection in connections:
        connection.close()
    assert not any(alive.values())

"""Whose processes are ended by a record: those that are proved to be its own, and no other's."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudtune.infra.processes import (
    GROUP_VARIABLE,
    DamagedRecordError,
    ProcessGroup,
    is_running,
    write_atomically,
)
from tests.bench import wait_for

FAMILY = f"sleep 300 & env -u {GROUP_VARIABLE} sleep 300 & wait"
"""A leader with a child that has its mark, and one that has lost it."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ProcessGroup]:
    environment = {"PATH": os.environ["PATH"]}
    made = ProcessGroup.start(["sh", "-c", FAMILY], log=tmp_path / "log", environment=environment)
    wait_for(lambda: len(sleepers(made)) == 2)
    members = made.members()
    yield made
    for process in filter(is_running, members):
        process.kill()
    psutil.wait_procs(members, timeout=30)
    made.alive()  # reaps it


def sleepers(group: ProcessGroup) -> list[psutil.Process]:
    return [item for item in psutil.process_iter() if in_session(item, group.pid)]


def in_session(process: psutil.Process, session: int) -> bool:
    try:
        mine = os.getsid(process.pid) == session
        return mine and process.name() == "sleep" and is_running(process)
    except (psutil.Error, OSError):
        return False


def test_a_living_leaders_whole_session_is_ended(group: ProcessGroup) -> None:
    group.stop()
    assert not sleepers(group)
    assert not group.alive()


def test_only_what_has_the_mark_is_ended(group: ProcessGroup, tmp_path: Path) -> None:
    group.record(tmp_path / "head.json", {})
    os.kill(group.pid, signal.SIGKILL)
    wait_for(lambda: not group.alive())
    recorded = ProcessGroup.recorded(tmp_path / "head.json")
    assert recorded is not None
    assert len(recorded[0].members()) == 1
    recorded[0].stop()
    (stranger,) = sleepers(group)
    assert GROUP_VARIABLE not in stranger.environ()


def test_a_group_of_another_time_has_no_members(group: ProcessGroup) -> None:
    assert ProcessGroup(group.pid, group.created - 60.0, group.mark).members() == []


@pytest.mark.parametrize("pid", [0, 1, -1, -7, 2**40, True, None, 3.5, "7", [1]])
def test_no_record_leads_to_the_kernel_or_init(pid: object, tmp_path: Path) -> None:
    (tmp_path / "head.json").write_text(json.dumps({"pid": pid, "created": time.time()}))
    with pytest.raises(DamagedRecordError, match=r"head\.json is no record of a process"):
        ProcessGroup.recorded(tmp_path / "head.json")


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_empty_group_has_no_process(pid: int) -> None:
    group = ProcessGroup(pid, time.time())
    assert (group.members(), group.alive()) == ([], False)


@pytest.mark.parametrize("text", ["", "null", "[]", "7", "{}", '{"pid": 7}', "\udcff", "[" * 9999])
def test_a_damaged_record_is_no_record(text: str, tmp_path: Path) -> None:
    (tmp_path / "head.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DamagedRecordError):
        ProcessGroup.recorded(tmp_path / "head.json")


def test_a_file_is_on_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []

    def fsync(descriptor: int) -> None:
        is_folder = os.path.isdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH112  a link
        seen.append((is_folder, (tmp_path / "a").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "a", "text")
    assert seen == [(False, False), (True, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

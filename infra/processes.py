"""Process groups that we start and end by id: never by name, and never someone else's."""

import contextlib
import json
import math
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from cloudtune.errors import CloudtuneError, quote

T = TypeVar("T")

# The mark of a group in the environment of all its processes, which identifies those that outlive
# their leader.
GROUP_VARIABLE = "CLOUDTUNE_GROUP"
_GRACE_SECONDS = _LAST = 5.0
# The index of a process's start in /proc/PID/stat, after its name; see proc(5).
_START_TIME = 19


def birth(pid: int) -> float:
    """Return the start of a process in seconds, independent of clock changes.

    On Linux since the machine's boot: psutil's time since 1970 depends on a boot time that moves
    when the clock is set, and a process must not seem a different one then.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    if not psutil.LINUX:
        return psutil.Process(pid).create_time()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    return int(stat.rpartition(")")[2].split()[_START_TIME]) / os.sysconf("SC_CLK_TCK")


def same_process(pid: int, born: float) -> bool:
    """Return whether `pid` is alive and still the process with that `birth`."""
    try:
        return is_running(psutil.Process(pid)) and birth(pid) == born
    except psutil.NoSuchProcess:
        return False


def is_running(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the whole file or nothing.

    On return the file and its name are on disk: after a power loss there is the old or the new one.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file, creating its folder, so that a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


class DamagedRecordError(CloudtuneError):
    """A record of a process is damaged: it proves nothing, so no process is ended because of it."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process in its own session, with all processes that it starts in it.

    `created` is the leader's `birth`: a reused pid isn't ours. `mark` is in the environment of all
    its processes (`GROUP_VARIABLE`) and identifies them once the leader is dead. Only processes
    proven to belong to the group are signalled: by the living leader's session, by the mark, or by
    descent from one of these.
    """

    pid: int
    created: float
    mark: str = ""

    @classmethod
    def start(
        cls, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> "ProcessGroup":
        """Start a command as the leader of a new session, with its output in a file."""
        mark = secrets.token_hex(16)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**environment, GROUP_VARIABLE: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        return cls(process.pid, birth(process.pid), mark)

    @classmethod
    def of(cls, pid: int) -> "ProcessGroup":
        return cls(pid, birth(pid))

    @classmethod
    def recorded(cls, path: Path) -> "tuple[ProcessGroup, dict[str, Any]] | None":
        """Return a group saved by `record`, and its `extra`.

        Raises:
            DamagedRecordError: the file exists, but names no process.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            pid = data.pop("pid")
            created = data.pop("created")
            mark = data.pop("mark", "")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedRecordError(f"{path} is no record of a process: {error}") from None
        is_time = isinstance(created, int | float) and not isinstance(created, bool)
        if not (_is_pid(pid) and is_time and 0 < created < math.inf and isinstance(mark, str)):
            raise DamagedRecordError(f"{path} is no record of a process: pid {quote(pid)}")
        return cls(pid, float(created), mark), data

    def record(self, path: Path, extra: Mapping[str, Any]) -> None:
        """Save its identity, so that another process can end it."""
        data = {"pid": self.pid, "created": self.created, "mark": self.mark, **extra}
        write_atomically(path, json.dumps(data))

    def alive(self) -> bool:
        if not _is_pid(self.pid):
            return False
        child = _CHILDREN.get(self.pid)
        if child is not None:
            return child.poll() is None
        return same_process(self.pid, self.created)

    def members(self) -> list[psutil.Process]:
        """Return every process of the session proven to be ours, except this one.

        The session id of a dead leader stays as long as a member lives; after that the system may
        reuse the number for a stranger, which may die and leave a session too. So without the
        leader a process is ours by the mark in its environment, or by descent.
        """
        if not _is_pid(self.pid):
            return []
        members = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(process.pid) == self.pid and process.pid != os.getpid():
                    members.append(process)
        try:
            return members if birth(self.pid) == self.created else []
        except psutil.NoSuchProcess:
            ours = {process.pid: self.pid for process in members if self._is_ours(process)}
            add_descendants(ours, members)
            return [process for process in members if process.pid in ours]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return bool(self.mark) and process.environ().get(GROUP_VARIABLE) == self.mark
        except (psutil.Error, OSError):  # it is gone, or another user's
            return False

    def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Ask the group to end, then kill it; return when no member is left that can be ended.

        It waits for everything that was once a member: without the leader, which may end first, the
        others can't be told from strangers any more.
        """
        members: set[psutil.Process] = set()
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, max(grace, _LAST))):
            give_up = time.monotonic() + seconds
            for process in self._living(members):
                with contextlib.suppress(psutil.Error):  # it is gone, or not ours to end
                    process.send_signal(number)
            while self._living(members) and time.monotonic() < give_up:
                time.sleep(0.02)

    def _living(self, members: set[psutil.Process]) -> list[psutil.Process]:
        """Return the running processes among the known and the present members."""
        members.update(self.members())
        child = _CHILDREN.get(self.pid)
        if child is not None:
            child.poll()
        return list(filter(is_running, members))

    def members_alive(self) -> bool:
        """Whether any process of the group still runs."""
        return bool(self._living(set()))


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def _is_pid(pid: object) -> bool:
    """Whether a number may be a group of ours: never the kernel's or init's."""
    return isinstance(pid, int) and not isinstance(pid, bool) and 1 < pid < 2**31


def add_descendants(owners: dict[int, T], among: Sequence[psutil.Process]) -> None:
    """Add descendants to `owners`, by pid, with the owners of their ancestors."""
    parents: dict[int, int] = {}
    for process in among:
        with contextlib.suppress(psutil.Error):
            parents[process.pid] = process.ppid()
    while fresh := {
        pid: owners[parent]
        for pid, parent in parents.items()
        if pid not in owners and parent in owners
    }:
        owners |= fresh

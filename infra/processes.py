"""Process groups that we start, know by id, and end: never by name, never somebody else's."""

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

from cloudtune.errors import CloudtuneError, shown

T = TypeVar("T")

# The mark of a group in the environment of all its processes: whose they are, if they outlive
# their leader.
GROUP_VARIABLE = "CLOUDTUNE_GROUP"
_GRACE_SECONDS = _LAST = 5.0
# Where /proc/PID/stat has a process's start, counted from behind its name; see proc(5).
_START_TIME = 19


def birth(pid: int) -> float:
    """Return when a process began, in seconds that setting the clock doesn't move.

    On Linux since the machine's boot: psutil's time since 1970 is reckoned from a boot time that
    moves whenever the clock is set, and a process must not seem another one then.

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
    """Return whether `pid` is alive and still the process that began then, by `birth`."""
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

    On return it is on disk, its name too: a machine that loses power finds the old or the new one.
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
    """Write a file, in a folder made if need be, so that a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


class DamagedRecordError(CloudtuneError):
    """A record of a process names none: it proves nothing, so no process is ended by it."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process in a session of its own, with all that it starts in it.

    `created` is the leader's `birth`: a pid that the system has given to another process
    since isn't ours. `mark` stands in the environment of all its processes (`GROUP_VARIABLE`): by
    it they are known once the leader is dead. Only processes are signalled that can be proved to be
    of the group: by the living leader's session, by the mark, or by descent from one of these.
    """

    pid: int
    created: float
    mark: str = ""

    @classmethod
    def start(
        cls, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> "ProcessGroup":
        """Start a command as the leader of a new session, its output going to a file."""
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
        """Return a group that `record` wrote down, and the extra that went with it.

        Raises:
            DamagedRecordError: the file is there, and names no process.
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
            raise DamagedRecordError(f"{path} is no record of a process: pid {shown(pid)}")
        return cls(pid, float(created), mark), data

    def record(self, path: Path, extra: Mapping[str, Any]) -> None:
        """Write down who it is, so that another process can end it."""
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
        """Return every process of the session that is proved to be ours, but not this very one.

        A leader that has died leaves its session id behind as long as a member lives; after that
        the system may give the number to a stranger, who may die and leave a session as well. So
        without the leader a process is ours by the mark in its environment, or by descent.
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
            ours = {process.pid: self.pid for process in members if self._marked(process)}
            add_descendants(ours, members)
            return [process for process in members if process.pid in ours]

    def _marked(self, process: psutil.Process) -> bool:
        try:
            return bool(self.mark) and process.environ().get(GROUP_VARIABLE) == self.mark
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            return False

    def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Ask the group to end, then end it; returns when no member is left that can be ended.

        Whoever was a member once is waited for: without the leader, which may end first, the
        others can no longer be distinguished from strangers.
        """
        members: set[psutil.Process] = set()
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, max(grace, _LAST))):
            give_up = time.monotonic() + seconds
            for process in self._living(members):
                with contextlib.suppress(psutil.Error):  # gone meanwhile, or not ours to end
                    process.send_signal(number)
            while self._living(members) and time.monotonic() < give_up:
                time.sleep(0.02)

    def _living(self, members: set[psutil.Process]) -> list[psutil.Process]:
        """Return those that still run of the known members and of those that there are now."""
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
    """Whether a number may be that of a group of ours: never that of the kernel or of init."""
    return isinstance(pid, int) and not isinstance(pid, bool) and 1 < pid < 2**31


def add_descendants(owners: dict[int, T], among: Sequence[psutil.Process]) -> None:
    """Give processes the owners of those that they descend from; `owners` goes by pid."""
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

"""Process groups that we start, know by id, and end: never by name, never somebody else's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_GRACE_SECONDS = 5.0


def same_process(pid: int, created: float) -> bool:
    """Return whether `pid` is alive and still the process that was created then.

    A second of slack: Linux derives the time from a boot time that moves when the clock is set.
    """
    try:
        process = psutil.Process(pid)
        alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(alive and abs(process.create_time() - created) < 1.0)
    except psutil.NoSuchProcess:
        return False


def is_running(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the whole file or nothing."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


@dataclass(frozen=True)
class ProcessGroup:
    """A process in a session of its own, with all that it starts in it.

    `created` is the leader's creation time: a pid that the system has given to another process
    since isn't ours.
    """

    pid: int
    created: float

    @classmethod
    def start(
        cls, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> ProcessGroup:
        """Start a command as the leader of a new session, its output going to a file."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        return cls.of(process.pid)

    @classmethod
    def of(cls, pid: int) -> ProcessGroup:
        """Return the group of a running process."""
        return cls(pid, psutil.Process(pid).create_time())

    @classmethod
    def recorded(cls, path: Path) -> tuple[ProcessGroup, dict[str, Any]] | None:
        """Return a group that `record` wrote down, and the extra that went with it."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(data.pop("pid"), data.pop("created")), data

    def record(self, path: Path, extra: Mapping[str, Any]) -> None:
        """Write down who it is, so that another process can end it."""
        data = {"pid": self.pid, "created": self.created, **extra}
        write_atomically(path, json.dumps(data))

    def alive(self) -> bool:
        """Whether the leader still runs."""
        child = _CHILDREN.get(self.pid)
        if child is not None:
            return child.poll() is None
        return same_process(self.pid, self.created)

    def members(self) -> list[psutil.Process]:
        """Return every process of the session, none if the session id has become another's.

        A leader that has died leaves its session id behind as long as a member lives, so members
        are ours if no *other* process leads the session now.
        """
        if psutil.pid_exists(self.pid) and not self._is_leader():
            return []
        return [process for process in psutil.process_iter() if _session(process) == self.pid]

    def _is_leader(self) -> bool:
        """Whether the pid is the leader's own, dead and not reaped yet included."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) < 1.0
        except psutil.NoSuchProcess:
            return True

    def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Ask the group to end, then end it; returns when no member is left."""
        self._signal(signal.SIGTERM)
        give_up = time.monotonic() + grace
        while self.members_alive() and time.monotonic() < give_up:
            time.sleep(0.02)
        while self.members_alive():
            self._signal(signal.SIGKILL)
            time.sleep(0.02)

    def members_alive(self) -> bool:
        """Whether any process of the group still runs."""
        child = _CHILDREN.get(self.pid)
        if child is not None:
            child.poll()
        return any(is_running(process) for process in self.members())

    def _signal(self, number: signal.Signals) -> None:
        for process in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None

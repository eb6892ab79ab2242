"""The real world: instances through Ray's autoscaler, trials as Ray actors, one queue of events.

Nothing here decides anything. What EC2, Ray and the workers say becomes events; what the policy
asks for is set going and not waited for.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, assert_never

import ray

from cloudtune.commands import (
    Command,
    EndRun,
    ExtendTrial,
    Launch,
    Release,
    SetTimer,
    StartTrial,
    StopTrial,
)
from cloudtune.errors import CloudtuneError
from cloudtune.events import (
    EpochDone,
    Interrupted,
    RunStarted,
    TimerFired,
    TrialFailed,
)
from cloudtune.infra.trial_session import TrialSession
from cloudtune.infra.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cloudtune.events import Event
    from cloudtune.infra.ec2 import Ec2
    from cloudtune.infra.head import RayHead
    from cloudtune.infra.trainer import Training

_JOIN_SECONDS = 5.0


class CloudWorld:
    """A Ray cluster on EC2, or on its emulator, as a world.

    Args:
        head: the cluster's head, not started yet.
        ec2: where the instances are.
        training: what the trials run.
        directory: the user's folder; the workers get a copy of it.
        began: the run's time zero, in Unix seconds; limits count from it.
    """

    def __init__(
        self, head: RayHead, ec2: Ec2, training: Training, directory: Path, began: float
    ) -> None:
        self._head = head
        self._training = training
        self._directory = directory
        self._began = began
        # Simple, because a signal handler may put into it while the main thread takes from it.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._timers: dict[str, float] = {}
        self._sessions: dict[str, TrialSession] = {}
        self._loading: dict[str, StartTrial] = {}  # by trial: it may have to load that once more
        self._told: Event | None = None
        self._emitting = threading.Lock()
        self._last = 0.0
        self._ended = False
        self._watcher = Watcher(ec2, head, began, self.emit)

    def __enter__(self) -> CloudWorld:
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._head.start()
        ray.init(
            address=self._head.address,
            runtime_env={"working_dir": str(self._directory)},
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
        _keep_quiet(self._head.folder / "ray.log")
        self._watcher.start()
        self.emit(RunStarted)

    def __exit__(self, *_: object) -> None:
        """End everything on this machine. Instances are returned by the run, and swept after."""
        self._watcher.stop()
        if self._head.alive():
            self._leave()
        else:
            # Asked to shut down, Ray would wait a minute for its dead head and then end this very
            # process; not asked, it crashes at exit. So it never gets its turn: the instances are
            # given back, the error is told, and the process ends.
            atexit.register(_end_at_once)
        self._head.stop()

    def _leave(self) -> None:
        """Let the sessions end, and leave the cluster."""
        for session in self._sessions.values():
            session.stop()
        give_up = time.monotonic() + _JOIN_SECONDS
        for session in self._sessions.values():
            session.join(max(0.0, give_up - time.monotonic()))
        ray.shutdown()

    # ---- events --------------------------------------------------------------------------

    def emit(self, make: Callable[[float], Event]) -> None:
        """Put an event into the queue, stamped with the time; any thread may."""
        with self._emitting:
            self._events.put(make(time.time() - self._began))

    def interrupt(self) -> None:
        """Tell the policy that a person wants the run to end. Safe in a signal handler."""
        self._events.put(Interrupted(time.time() - self._began))

    def next_event(self) -> Event | None:
        """Return what happens next, waiting for it; None once the run has ended.

        Raises:
            CloudtuneError: the cluster itself is gone, so that nothing more will happen.
        """
        self._acknowledge()
        while not self._ended:
            self._check_alive()
            event: Event | None
            try:
                event = self._events.get(timeout=self._until_timer())
            except queue.Empty:
                event = self._due_timer()
            if event is not None:
                # Two threads may have been overtaken between clock and queue by a hair.
                self._last = max(self._last, event.at)
                self._told = dataclasses.replace(event, at=self._last)
                return self._told
        return None

    def _acknowledge(self) -> None:
        """Let a worker drop old checkpoints, now that the policy has dealt with the last event."""
        told, self._told = self._told, None
        # Not when it is stopped or lost: what has no checkpoint of its own goes on from that one.
        if isinstance(told, TrialFailed):
            self._loading.pop(told.session.rpartition(".")[0], None)
        if isinstance(told, EpochDone) and told.checkpoint is not None:
            self._loading.pop(told.session.rpartition(".")[0], None)
            oldest = self._oldest_wanted(told.checkpoint, told.epoch)
            self._sessions[told.session].acknowledge(oldest)

    def _oldest_wanted(self, checkpoint: str | None, epoch: int) -> int:
        """Return from which epoch on a trial's checkpoints are to stay; `checkpoint` is one of it.

        Those that a session may have to load stay as well: its own, or those of its clone.
        """
        if checkpoint is None:
            return 0
        folder = _folder(checkpoint)
        loading = [each for each in self._loading.values() if _folder(each.checkpoint) == folder]
        return min([epoch, *(each.start_epoch for each in loading)])

    def _check_alive(self) -> None:
        if self._watcher.failure is not None or not self._head.alive():
            gone = f"the head of the Ray cluster is gone; see {self._head.folder / 'head.log'}"
            reason = self._watcher.failure or gone
            raise CloudtuneError(f"the run can't go on: {reason}")

    def _until_timer(self) -> float:
        now = time.time() - self._began
        return max(0.0, min(self._timers.values(), default=now + 1.0) - now)

    def _due_timer(self) -> TimerFired | None:
        now = time.time() - self._began
        due = min(self._timers, key=lambda name: self._timers[name], default=None)
        if due is None or self._timers[due] > now:
            return None
        del self._timers[due]
        return TimerFired(now, due)

    # ---- commands ------------------------------------------------------------------------

    def apply(self, command: Command) -> None:
        """Set a command going."""
        match command:
            case Launch():
                self._watcher.expect(command.intent)
                self._head.want(command)
            case Release():
                self._head.give_back(command.intent)
                self._watcher.release(command.intent)
            case StartTrial():
                known = self._oldest_wanted(command.checkpoint, command.start_epoch)
                self._loading[command.trial] = command
                session = TrialSession(command, self._training, self.emit, known)
                self._sessions[command.session] = session
                session.start()
            case ExtendTrial():
                self._sessions[command.session].extend(command.until_epoch)
            case StopTrial():
                self._sessions[command.session].stop()
            case SetTimer():
                self._timers[command.name] = command.at
            case EndRun():
                self._ended = True
            case _:
                assert_never(command)


def _folder(checkpoint: str | None) -> str:
    """Return where the checkpoints of its trial are."""
    return "" if checkpoint is None else checkpoint.rpartition("/")[0]


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CloudtuneError.exit_code)


def _keep_quiet(log: Path) -> None:
    """Send what Ray would print between our lines to a file; there is no setting for that."""

    def write(data: dict[str, object], *_: object, **__: object) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{data.get('lines') or data}\n")

    ray._private.worker.print_to_stdstream = write  # noqa: SLF001

"""The real world: instances through Ray's autoscaler, trials by agents, one queue of events.

Nothing here decides anything. Reports of the cloud, Ray and the workers become events; commands of
the policy are started and not waited for.
"""

import dataclasses
import logging
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias, assert_never

import ray

from cloudtune.clock import unix_time
from cloudtune.engine.resume import InFlight
from cloudtune.errors import CloudtuneError, HurriedError
from cloudtune.infra.cluster.agents import Agents
from cloudtune.infra.cluster.base import RunCluster
from cloudtune.infra.cluster.rescue import Rescue
from cloudtune.infra.cluster.trial_session import TrialSession
from cloudtune.infra.cluster.watcher import Watcher
from cloudtune.infra.node.messages import (
    AtRisk,
    Described,
    Epoch,
    Interruption,
    Message,
    Remark,
    Training,
)
from cloudtune.infra.provider import Calls
from cloudtune.model import commands, events
from cloudtune.model.events import Event
from cloudtune.model.progress import trial_of
from cloudtune.model.trial import TrialId
from cloudtune.train.checkpoint import CheckpointStore

_Queued: TypeAlias = tuple[Event, Sequence[Callable[[], None]]]
_Heard: TypeAlias = tuple[str, Message, Callable[[], None]]

_ENDS = (events.TrialStopped, events.TrialFailed, events.TrialLost)
# If no event is taken, and a timer is due, for so many seconds, this process stood still.
_STILL_SECONDS = 10.0
# Seconds for sessions to end by themselves; the instances end in any case.
_JOIN_SECONDS = 8.0
_HEADLESS = "it had joined a cluster whose head died"
_GONE = "it was gone when the run was taken over"


class CloudWorld:
    """A Ray cluster on instances of a cloud, as a world.

    Args:
        head: the cluster's head, not started yet.
        calls: the cloud of the instances.
        training: the common settings of the trials.
        directory: the user's folder; the workers get a copy of it.
        began: the run's time zero, in Unix seconds; limits count from it.
        leased_until: when all instances must be gone if nothing more is decided, in seconds of the
            run; by default never.
        dispensable: the trials whose checkpoints may be deleted if the storage is full.
        resumes: the head is another controller's, with live agents and sessions: `take_over` them
            first.
    """

    def __init__(
        self,
        head: RunCluster,
        calls: Calls,
        training: Training,
        directory: Path,
        began: float,
        *,
        leased_until: Callable[[], float] = lambda: math.inf,
        dispensable: Callable[[], Sequence[TrialId]] = tuple,
        resumes: bool = False,
    ) -> None:
        self._head = head
        self._storage = training.storage
        self._leased_until = leased_until
        self._dispensable = dispensable
        self._resumes = resumes
        self._cluster_lived_on = head.running
        self._directory = directory
        self._began = began
        # A SimpleQueue, because a signal handler may put into it while the main thread reads it.
        self._events: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._finished: set[str] = set()  # sessions whose end the policy knows
        self._first: deque[_Queued] = deque()  # before all of the queue
        self._taken_at = math.inf  # when the last event was taken, in seconds of the run
        self._timers: dict[str, float] = {}
        self._sessions: dict[str, TrialSession] = {}
        # By trial: it may have to load its checkpoint again.
        self._loading: dict[str, commands.StartTrial] = {}
        # Messages of sessions that aren't adopted yet.
        self._unclaimed: dict[str, list[_Heard]] = {}
        self._left: Mapping[str, Mapping[str, Described]] = {}
        self._event: Event | None = None
        # Called once the last event is in the ledger: only then may its sender forget it, or a
        # controller that dies now would lose it.
        self._settled: Sequence[Callable[[], None]] = ()
        self._hearing = threading.Lock()  # between adopting a session and receiving its messages
        self._emitting = threading.Lock()  # stamps and queues in one step: events stay in order
        self._last = 0.0
        self._ended = self._interrupted = self._hurried = False
        self._remarks: set[str] = set()
        self._lease_end = math.inf
        self._agents = Agents(
            head,
            training,
            self._hear,
            self._note_lost,
            lambda: self._lease_end,
            # The watcher isn't there yet.
            refuse=lambda *what: self._watcher.refuse(*what),  # noqa: PLW0108
            answered=lambda: self._watcher.look_now(),  # noqa: PLW0108
        )
        self._rescue = Rescue(head.folder, training, self._agents.call, self._remark)
        self._watcher = Watcher(calls, head, began, self.emit, self._agents.ready)

    def __enter__(self) -> "CloudWorld":
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            self._head.connect(self._directory)
            _keep_quiet(self._head.folder / "ray.log")
            if self._resumes:
                self._left = self._agents.find()
            self._watcher.start()
        except BaseException:
            self.__exit__()
            raise
        if not self._resumes:
            self.emit(events.RunStarted)
        return self

    def __exit__(self, *_: object) -> None:
        """End everything on this machine. The run returns instances, and sweeps afterwards."""
        self._watcher.stop()
        if self._head.alive():
            for session in self._sessions.values():
                session.stop()
            give_up = time.monotonic() + (0.0 if self._hurried else _JOIN_SECONDS)
            for session in self._sessions.values():
                session.join(max(0.0, give_up - time.monotonic()))
            self._agents.close()
            ray.shutdown()
        else:
            self._agents.forget()
            with self._head.stand_in() as answers:
                if answers:
                    ray.shutdown()
        self._head.stop()

    def sessions_alive(self) -> dict[str, dict[str, Described]]:
        """Return the sessions left by another controller, with the ranks on each instance."""
        sessions: dict[str, dict[str, Described]] = {}
        for instance, described in self._left.items():
            for name, session in described.items():
                sessions.setdefault(name, {})[instance] = session
        return sessions

    def adopt(self, start: commands.StartTrial, *, stopping: bool = False) -> None:
        """Take over a session that another controller started; its missed messages follow.

        One that was `stopping` may have ended since: that is known before its messages are read.

        Messages that the other controller received but may not have acknowledged are emitted again.
        A session that no agent knows is lost, without blame.
        """
        parts = self.sessions_alive().get(start.session, {})
        if not parts:
            self.emit(lambda at: events.TrialLost(at, start.session, _GONE, blameless=True))
            return
        keep_from = self._oldest_needed_epoch(start.checkpoint, start.start_epoch)
        session = TrialSession(start, keep_from, self._agents.call, self.emit)
        self._loading[start.trial] = start
        ready = {rank for part in parts.values() for rank in part.ready}
        if stopping:
            session.stop()
        session.adopt(ready, parts)
        session.extend(start.until_epoch)
        with self._hearing:
            self._sessions[start.session] = session
            missed = self._unclaimed.pop(start.session, [])
        for instance, message, settle in missed:
            self._pass_on(session, instance, message, settle)

    def take_over(self, in_flight: InFlight) -> None:
        """Continue with what another controller left behind, by its ledger."""
        self._last = in_flight.at
        self.emit(in_flight.first)
        for name, session in in_flight.sessions.items():
            if name not in self.sessions_alive():
                self._report_saved_epochs(session.start_now)  # before its instance is lost
        for intent, span in in_flight.instances.items():
            asked_at = self._began + span.requested_at
            self._watcher.expect(intent, span.instance, joined=span.joined, asked_at=asked_at)
            if span.joined and span.instance not in self._left:
                # Without its agent, a trial that starts there would be lost at once, repeatedly.
                reason = _GONE if self._cluster_lived_on else _HEADLESS
                self._watcher.lose(intent, reason)
            if not span.released:
                self._head.want(span.launch, self._began + self._leased_until())
                continue
            if intent in self._head.intents:  # otherwise EC2 was never called
                self._head.give_back(intent)
            self._watcher.release(intent)
        for name, session in in_flight.sessions.items():
            stopping = session.stopping is not None
            if stopping and name not in self.sessions_alive():
                self.emit(partial(events.TrialStopped, session=name))
            else:
                self.adopt(session.start_now, stopping=stopping)
        for name in self.sessions_alive().keys() - in_flight.sessions.keys():
            self.disown(name)
        self._timers.update(in_flight.timers)

    def _report_saved_epochs(self, start: commands.StartTrial) -> None:
        for done in self._saved_epochs(start, start.until_epoch):
            self.emit(done)

    def _saved_epochs(
        self, start: commands.StartTrial, until_epoch: int
    ) -> Iterator[Callable[[float], Event]]:
        """Yield the epochs that a lost session has saved, some of which may be known already."""
        try:
            saved = CheckpointStore(self._storage).list_checkpoints(start.trial)
        except OSError as error:  # it continues from what the ledger knows
            self._remark(f"the storage can't be asked what the run has saved: {error}")
            return
        for path, manifest in saved.items():
            if start.start_epoch < manifest.epoch <= until_epoch:
                yield partial(
                    events.EpochDone,
                    session=start.session,
                    epoch=manifest.epoch,
                    metrics=dict(manifest.metrics),
                    checkpoint=path,
                    seconds=0.0,
                )

    def disown(self, session: str) -> None:
        """End the rest of a session of another controller, without an event."""
        for instance in self.sessions_alive().get(session, {}):
            self._agents.call(instance, "stop", session)

    def _hear(self, instance: str, message: Message, settle: Callable[[], None]) -> None:
        if isinstance(message.body, Interruption | AtRisk):
            self._watcher.note_warning(instance, message.body, settle)
            return
        if isinstance(message.body, Remark):
            settle()
            self._remark(message.body.text)
            return
        if isinstance(message.body, Epoch) and message.body.report.epoch == 0:
            settle()
            self._make_room()
            return
        with self._hearing:
            session = self._sessions.get(message.session)
            if session is None:
                self._unclaimed.setdefault(message.session, []).append((instance, message, settle))
                return
        self._pass_on(session, instance, message, settle)

    def _pass_on(
        self, session: TrialSession, instance: str, message: Message, settle: Callable[[], None]
    ) -> None:
        if isinstance(message.body, Epoch):
            self._rescue.hear(instance, session.command.trial, message.body.report)
        session.hear(instance, message, settle)

    def _make_room(self) -> None:
        """Delete the checkpoints of finished trials, so that others can be saved."""
        store = CheckpointStore(self._storage)
        loading = list(self._loading.values())
        loaded = {_folder(start.checkpoint).rpartition("/")[2] for start in loading}
        for trial in self._dispensable():
            if trial not in loaded and store.drop(trial):
                self._remark(f"the storage is full: {trial} is over, and its checkpoints are gone")

    def _remark(self, text: str) -> None:
        """Print a remark once, if it is the same on every node."""
        if text not in self._remarks:
            self._remarks.add(text)
            sys.stderr.write(f"note: {text}\n")

    def _note_lost(self, instance: str, reason: str, replaced: bool) -> None:
        path = self._head.folder / "agents.log"
        with path.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{unix_time() - self._began:.1f} s: {reason}\n")
        if not replaced:  # first, because its trials would otherwise start there again
            self._watcher.note_lost(instance, reason)
        for session in list(self._sessions.values()):
            session.note_lost(instance, reason)

    def emit(
        self, make: Callable[[float], Event], settled: Sequence[Callable[[], None]] = ()
    ) -> None:
        """Queue an event, stamped with the time; thread-safe.

        `settled` are called when the policy has handled it and it is in the ledger.
        """
        with self._emitting:
            self._events.put((make(unix_time() - self._began), settled))

    def interrupt(self) -> None:
        """Tell the policy that the user wants the run to end. Safe in a signal handler.

        After a second call there is no more waiting: `next_event` raises a `HurriedError`.
        """
        self._hurried = self._interrupted
        self._interrupted = True
        self._events.put((events.Interrupted(unix_time() - self._began), ()))

    def next_event(self) -> Event | None:
        """Wait for the next event and return it; None once the run has ended.

        Raises:
            CloudtuneError: the cluster itself is gone, so that nothing more will happen.
            HurriedError: the user has interrupted a second time.
        """
        self._acknowledge()
        self._lease_end = self._began + self._leased_until()
        while not self._ended:
            if self._watcher.failure is not None or not self._head.alive():
                log = self._head.folder / "head.log"
                see = f"; see {log}" if log.exists() else ""
                gone = self._watcher.failure or f"the head of the Ray cluster is gone{see}"
                raise CloudtuneError(f"the run can't go on: {gone}")
            taken = self._take()
            if self._hurried:
                raise HurriedError(
                    "interrupted twice: nothing was waited for, and all is given back. Epochs that "
                    f"were saved are kept: `cloudtune resume {self._head.rental.run}` ends the run "
                    "in order, and once more goes on with it"
                )
            if taken is not None:
                event, self._settled = taken
                # Two threads may have overtaken each other between clock and queue.
                self._last = max(self._last, event.at)
                self._event = dataclasses.replace(event, at=self._last)
                if isinstance(event, _ENDS):
                    self._finished.add(event.session)
                return self._event
        return None

    def _take(self) -> _Queued | None:
        """Wait for an event of the queue, or for a timer; None if there was neither."""
        if self._first:
            return self._first.popleft()
        now = unix_time() - self._began
        due = min(self._timers.values(), default=now + 1.0)
        try:
            taken: _Queued | None = self._events.get(timeout=max(0.0, due - now))
        except queue.Empty:
            timer = self._due_timer()
            taken = None if timer is None else (timer, ())
        before, self._taken_at = self._taken_at, unix_time() - self._began
        if taken is None or self._taken_at < max(due, before) + _STILL_SECONDS:
            return taken
        # This process stood still, or its machine slept. The leases may have ended the instances
        # meanwhile: what their trials have saved comes before the news of their end.
        self._first += [*self._unreported(), taken]
        return self._first.popleft()

    def _unreported(self) -> Iterator[_Queued]:
        """Yield the epochs in the storage of all sessions whose end the policy doesn't know yet."""
        at = unix_time() - self._began
        for name in sorted(self._sessions.keys() - self._finished):
            session = self._sessions[name]
            for done in self._saved_epochs(session.command, session.until_epoch):
                yield done(at), ()

    def _acknowledge(self) -> None:
        """Release old messages and checkpoints: the policy has handled the last event."""
        event = self._event
        self._event = None
        for settle in self._settled:
            settle()
        self._settled = ()
        # Not if it is stopped or lost: a trial without its own checkpoint resumes from that one.
        if isinstance(event, events.TrialFailed):
            self._loading.pop(trial_of(event.session), None)
        if isinstance(event, events.EpochDone) and event.checkpoint is not None:
            self._loading.pop(trial_of(event.session), None)
            oldest = self._oldest_needed_epoch(event.checkpoint, event.epoch)
            if event.session in self._sessions:  # otherwise it was found gone
                self._sessions[event.session].acknowledge(oldest)

    def _oldest_needed_epoch(self, checkpoint: str | None, epoch: int) -> int:
        """Return the epoch from which on a trial's checkpoints stay; `checkpoint` is one of them.

        Checkpoints that a session may have to load stay too: the trial's own, or its clone's.
        """
        if checkpoint is None:
            return 0
        folder = _folder(checkpoint)
        loading = [start for start in self._loading.values() if _folder(start.checkpoint) == folder]
        return min([epoch, *(start.start_epoch for start in loading)])

    def _due_timer(self) -> events.TimerFired | None:
        now = unix_time() - self._began
        due = min(self._timers, key=lambda name: self._timers[name], default=None)
        if due is None or self._timers[due] > now:
            return None
        del self._timers[due]
        return events.TimerFired(now, due)

    def apply(self, command: commands.Command) -> None:
        match command:
            case commands.Launch():
                self._watcher.expect(command.intent)
                self._head.want(command, self._began + self._leased_until())
            case commands.Release():
                self._head.give_back(command.intent)
                self._watcher.release(command.intent)
            case commands.StartTrial():
                keep_from = self._oldest_needed_epoch(command.checkpoint, command.start_epoch)
                self._loading[command.trial] = command
                session = TrialSession(command, keep_from, self._agents.call, self.emit)
                self._sessions[command.session] = session
                session.start()
            case commands.ExtendTrial():
                if command.session in self._sessions:  # otherwise it was lost at the take-over
                    self._sessions[command.session].extend(command.until_epoch)
            case commands.StopTrial():
                # A session that was gone at the take-over is reported lost: nothing is left.
                if command.session in self._sessions:
                    self._sessions[command.session].stop(stacks=command.stacks)
            case commands.SetTimer():
                self._timers[command.name] = command.at
            case commands.PlanAnew() | commands.KeepInstance() | commands.EndRun():
                # There is nothing to carry out.
                self._ended |= isinstance(command, commands.EndRun)
            case _:
                assert_never(command)


def _folder(checkpoint: str | None) -> str:
    """Return the folder with all checkpoints of a checkpoint's trial."""
    return "" if checkpoint is None else checkpoint.rpartition("/")[0]


def _keep_quiet(log: Path) -> None:
    """Redirect Ray's output to a file, for which it has no setting."""

    def write(data: dict[str, object], *_: object, **__: object) -> None:
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{data.get('lines') or data}\n")

    ray._private.worker.print_to_stdstream = write  # noqa: SLF001

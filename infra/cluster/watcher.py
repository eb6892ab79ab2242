"""Watches the cloud, Ray and the node provider, and turns changes into events."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra.cluster.base import RunCluster
from cloudtune.infra.cluster.boot_lines import BootLines
from cloudtune.infra.cluster.node_provider import GIVEN_UP, Note
from cloudtune.infra.cluster.trial_session import Emit
from cloudtune.infra.node.boot import telling_lines
from cloudtune.infra.node.messages import AtRisk, Interruption
from cloudtune.infra.provider import QUEUED, Calls, Instance
from cloudtune.model import events
from cloudtune.train.storage import StorageError, content

_POLL_SECONDS = 0.5
# Seconds after a release in which the provider may still be launching.
_SETTLE_SECONDS = 3.0
# Seconds without an answer from EC2 until the run ends: leases keep the limits without it.
_BLIND_SECONDS = 900.0
# EC2's lists lag by seconds, so an instance not listed for this many seconds is gone.
_FORGOTTEN_SECONDS = 60.0
# EC2 lists launched instances within this many seconds.
_LISTED_SECONDS = 15.0
# The last lines of a console in an error; a file has all.
_CONSOLE_LINES = 3
_CONSOLE_LETTERS = 400
# The number of looks after which an inactive autoscaler of Ray's is an error.
_IDLE_LOOKS = 120


@dataclass
class _Intent:
    """What has been reported about an intent so far."""

    expected_at: float
    instance: str | None = None
    launched: bool = False
    joined: bool = False
    lost: bool = False
    over: bool = False
    released_at: float | None = None
    releases: int = 0
    queued: str = ""
    listed_at: float | None = None


class Watcher:
    """Polls in its own thread. Launch and end times are the cloud's own."""

    def __init__(
        self, calls: Calls, head: RunCluster, began: float, emit: Emit, ready: Callable[..., bool]
    ) -> None:
        """`ready(node, wanted=)` returns whether a node takes trials by now.

        It also renews the lease of a wanted node.
        """
        self._ready = ready
        self._calls = calls
        self._head = head
        self._began = began
        self._emit = emit
        self._warnings: dict[str, list[tuple[Interruption | AtRisk, Callable[[], None]]]] = {}
        self._blind_since = time.monotonic()
        self.failure: Exception | None = None
        self._listed_at = -math.inf
        self._idle_looks = 0
        self._progress = (0, 0)
        self._intents: dict[str, _Intent] = {}
        self._queue_reasons: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self._hurrying = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._boot_lines = BootLines(head.rental.boot_log, emit)

    def start(self) -> None:
        self._blind_since = time.monotonic()
        self._thread.start()
        self._boot_lines.start()

    def stop(self) -> None:
        self._stopping = True
        self._hurrying.set()
        self._boot_lines.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)  # it may hang in a call to a dead head

    def look_now(self) -> None:
        """Look again at once: something has changed."""
        self._hurrying.set()

    def expect(
        self,
        intent: str,
        instance: str | None = None,
        *,
        joined: bool = False,
        asked_at: float = math.inf,
    ) -> None:
        """Watch for the instance of an intent, without repeating known events.

        It was requested at `asked_at` (Unix time), now or before by another controller.
        """
        at = unix_time() if instance is not None else min(unix_time(), asked_at)
        fresh = _Intent(at, instance, launched=instance is not None, joined=joined)
        with self._lock:
            self._intents.setdefault(intent, fresh)

    def release(self, intent: str) -> None:
        """Watch for the end of an intent that may never have been launched."""
        with self._lock:
            watched = self._intents[intent]
            watched.released_at = watched.released_at or unix_time()
            watched.releases += 1

    def _watch(self) -> None:
        try:
            while True:
                self._hurrying.wait(_POLL_SECONDS)
                self._hurrying.clear()
                if self._stopping:
                    return
                self._look()
        except Exception as error:  # noqa: BLE001  the run must learn that it is blind
            self.failure = error

    def _look(self) -> None:
        with self._lock:
            open_intents = {name: it for name, it in self._intents.items() if not it.over}
        if not open_intents:
            return
        self._note_refusals(open_intents)
        if time.monotonic() >= self._listed_at + self._head.rental.endpoint.look_seconds:
            self._list(open_intents)
        if self._head.answers():  # otherwise Ray would wait a minute, and then end this process
            self._note_nodes(open_intents)

    def _list(self, open_intents: dict[str, _Intent]) -> None:
        self._listed_at = time.monotonic()
        try:
            instances = {it.intent: it for it in self._calls.ours(self._head.rental.run)}
        except self._calls.errors:
            if time.monotonic() > self._blind_since + _BLIND_SECONDS:
                raise
            return  # retried soon, with renewed credentials; timers still fire
        self._blind_since = time.monotonic()
        self._note_instances(open_intents, instances)
        # Instances that Ray didn't end after two requests.
        doomed = [it.instance for it in open_intents.values() if it.releases > 1 and it.instance]
        with contextlib.suppress(*self._calls.errors):  # the sweep handles the rest
            self._calls.terminate(doomed)

    def _note_instances(self, intents: dict[str, _Intent], instances: dict[str, Instance]) -> None:
        for intent, watched in intents.items():
            instance = instances.get(intent)
            if instance is None:
                self._note_missing(intent, watched)
            if instance is None:
                continue
            if instance.state == QUEUED:
                self._note_queued(intent, watched, instance.reason)
                continue
            watched.listed_at = unix_time()
            if not watched.launched:
                watched.instance = instance.id
                watched.launched = True
                self._tell_launch(intent, watched, instance)
            if not instance.billing:
                watched.over = True
                self._tell_end(intent, watched, instance)

    def _note_missing(self, intent: str, watched: _Intent) -> None:
        """Treat an instance as gone that hasn't been listed for long: EC2 forgets it in an hour."""
        seen = watched.listed_at or watched.expected_at
        if watched.launched and unix_time() - seen > _FORGOTTEN_SECONDS:
            watched.over = True
            self._boot_lines.end(intent)
            self._emit(lambda at: events.InstanceGone(at, intent, at, events.FORGOTTEN))

    def _note_queued(self, intent: str, watched: _Intent, reason: str) -> None:
        """Report why an instance waits in a cluster's queue, if it does so at two looks."""
        if reason and reason == watched.queued and reason not in self._queue_reasons:
            self._queue_reasons.add(reason)
            self._emit(partial(events.InstanceBooting, intent=intent, line=reason))
        watched.queued = reason

    def _tell_launch(self, intent: str, watched: _Intent, instance: Instance) -> None:
        # EC2's times are whole seconds, rounded down: a launch isn't earlier than its request, nor
        # later than now, if this machine's clock is behind EC2's.
        launched_at = max(instance.launched_at, watched.expected_at) - self._began
        self._emit(
            lambda at: events.InstanceLaunched(at, intent, instance.id, min(at, launched_at))
        )
        if not watched.joined:
            self._boot_lines.begin(intent)

    def _tell_end(self, intent: str, watched: _Intent, instance: Instance) -> None:
        self._boot_lines.end(intent)
        ended = None
        if instance.ended_at is not None:
            ended = instance.ended_at
            asked = watched.released_at or 0.0
            # Whole seconds, rounded down; but a lost one may have ended before the request.
            if not watched.lost or ended >= asked - 1:
                ended = max(ended, asked)
            ended -= self._began
        console = "" if watched.joined else self._console(intent, instance.id)

        def gone(at: float) -> events.InstanceGone:
            end = at if ended is None else min(at, ended)
            return events.InstanceGone(at, intent, end, instance.reason, console)

        self._emit(gone)

    def _console(self, intent: str, instance: str) -> str:
        """Save the output of an instance that never joined, and return its end.

        Its own uploads come first: EC2 has a console minutes later, or never.
        """
        output = ""
        with contextlib.suppress(StorageError):
            output = content(self._head.rental.boot_log(intent)).decode(errors="replace").rstrip()
        output = output or self._calls.console(instance).rstrip()
        if not output:
            return ""
        path = self._head.folder / f"console-{intent}.log"
        path.write_text(f"{output}\n", encoding="utf-8", errors="backslashreplace")
        last = telling_lines(output)[-_CONSOLE_LINES:]
        return f"{' / '.join(last)[-_CONSOLE_LETTERS:]} (all of it: {path})"

    def _note_nodes(self, intents: dict[str, _Intent]) -> None:
        joining = {it.instance: name for name, it in intents.items() if it.launched}
        for node in self._head.nodes():
            intent = joining.get(node.instance)
            if intent is None:
                continue
            watched = intents[intent]
            if node.lost:
                self.lose(intent, node.lost)
                continue
            ready = self._ready(node, wanted=watched.released_at is None)
            with self._lock:
                warnings = self._warnings.pop(node.instance, ())
            for warning, settle in warnings:
                if isinstance(warning, AtRisk):
                    self._emit(partial(events.RebalanceRecommended, intent=intent), (settle,))
                else:
                    end = partial(events.InterruptionNotice, due=warning.due - self._began)
                    self._emit(partial(end, intent=intent), (settle,))
            if ready and not watched.joined:
                watched.joined = True
                self._boot_lines.end(intent)
                self._emit(partial(events.NodeJoined, intent=intent))

    def note_lost(self, instance: str, reason: str) -> None:
        """Record that an instance takes no more trials, whatever Ray says about its node."""
        with self._lock:
            wanted = {name: it for name, it in self._intents.items() if it.released_at is None}
            intents = [name for name, it in wanted.items() if it.instance == instance]
        for intent in intents:
            self.lose(intent, reason)

    def refuse(self, instance: str, reason: str) -> None:
        """Report an instance that has come but is useless."""
        with self._lock:
            intents = [name for name, it in self._intents.items() if it.instance == instance]
        for intent in intents:
            self.lose(intent, reason, before_joining=True)

    def lose(self, intent: str, reason: str, *, before_joining: bool = False) -> None:
        """Report, once, that an instance that has joined takes no more trials."""
        with self._lock:
            watched = self._intents[intent]
            if watched.lost or watched.over or not (watched.joined or before_joining):
                return
            watched.lost = True
        self._emit(lambda at: events.NodeLost(at, intent, reason))

    def note_warning(
        self, instance: str, warning: Interruption | AtRisk, settle: Callable[[], None]
    ) -> None:
        """Record that the cloud interrupts an instance, or may; settled once reported."""
        with self._lock:
            self._warnings.setdefault(instance, []).append((warning, settle))

    def _note_refusals(self, intents: dict[str, _Intent]) -> None:
        notes = list(self._head.journal.read())
        refused = {note.intent: note for note in notes if note.what in GIVEN_UP}
        asked = {note.intent for note in notes}
        self._check_autoscaler(intents, notes)
        for intent, watched in intents.items():
            if watched.launched:
                continue
            note = refused.get(intent)
            released_at = watched.released_at or math.inf
            permanent = False
            if note is not None:
                if note.what == "lost" and unix_time() - note.at < _LISTED_SECONDS:
                    continue  # there may be an instance, and then it is a good one
                code = note.code
                message = note.message
                permanent = note.what == "broken" or (
                    note.what == "refused" and self._calls.is_permanent(code)
                )
                self._head.give_back(intent)
            elif intent not in asked and unix_time() > released_at + _SETTLE_SECONDS:
                code = "Released"
                message = "given back before it was launched"
            else:
                continue
            watched.over = True
            failed = partial(
                events.LaunchFailed,
                intent=intent,
                code=code,
                message=message,
                permanent=permanent,
                kind=self._calls.refusal_kind(code),
            )
            self._emit(failed)

    def _check_autoscaler(self, intents: dict[str, _Intent], notes: Sequence[Note]) -> None:
        """Fail if Ray's autoscaler doesn't request what is wanted, for any reason.

        It does so within seconds. Looks count, not seconds: after this machine has slept, or was
        suspended, the autoscaler needs its time too. Any progress restarts the count, because of
        many launches some wait for others.
        """
        asked = {note.intent for note in notes}
        waiting = [
            name
            for name, it in intents.items()
            if name not in asked and not it.launched and it.released_at is None
        ]
        progress = len(notes), len(waiting)
        self._idle_looks = self._idle_looks + 1 if waiting and progress == self._progress else 0
        self._progress = progress
        if self._idle_looks > _IDLE_LOOKS:
            errors = [note for note in notes if note.what == "broken" and not note.intent]
            why = f": {errors[-1].code}: {errors[-1].message}" if errors else ""
            raise CloudtuneError(
                f"Ray's autoscaler has not asked for {', '.join(sorted(waiting)[:3])} in "
                f"{_IDLE_LOOKS * _POLL_SECONDS:.0f} s{why}; its log: "
                f"{self._head.folder / 'monitor.log'}"
            )

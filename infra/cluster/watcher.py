"""Watches what EC2, Ray and the node provider say, and turns the changes into events."""

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
# After a release the provider may still be in the midst of a launch for so long.
_SETTLE_SECONDS = 3.0
# How long EC2 may not answer until the run ends: leases keep the limits without it.
_BLIND_SECONDS = 900.0
# EC2's lists lag by seconds, so what isn't listed for a minute is gone.
_FORGOTTEN_SECONDS = 60.0
# EC2 lists what it has launched within seconds.
_LISTED_SECONDS = 15.0
# Of a console in an error; all of it is in a file.
_CONSOLE_LINES = 3
_CONSOLE_LETTERS = 400
# How many looks may find that Ray's autoscaler does nothing of what it is to do.
_IDLE_LOOKS = 120


@dataclass
class _Intent:
    """What has been said of an intent so far."""

    expected_at: float
    instance: str | None = None
    launched: bool = False
    joined: bool = False
    lost: bool = False
    over: bool = False
    released_at: float | None = None
    releases: int = 0
    listed_at: float | None = None


class Watcher:
    """Polls from a thread of its own. EC2's word counts: launch and end times are its own."""

    def __init__(
        self, ec2: Calls, head: RunCluster, began: float, emit: Emit, ready: Callable[..., bool]
    ) -> None:
        """`ready(node, wanted=)` says whether a node that is there takes trials by now.

        One that is wanted keeps its lease by that.
        """
        self._ready = ready
        self._ec2 = ec2
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
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._boot_lines = BootLines(head.rental.boot_log, emit)

    def start(self) -> None:
        self._blind_since = time.monotonic()
        self._thread.start()
        self._boot_lines.start()

    def stop(self) -> None:
        self._stopping.set()
        self._boot_lines.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)  # it may hang in a call to a dead head

    def expect(
        self,
        intent: str,
        instance: str | None = None,
        *,
        joined: bool = False,
        asked_at: float = math.inf,
    ) -> None:
        """Look out for the instance of an intent, without telling again what is known already.

        It was asked for now, or before, by another controller (Unix time).
        """
        at = unix_time() if instance is not None else min(unix_time(), asked_at)
        fresh = _Intent(at, instance, launched=instance is not None, joined=joined)
        with self._lock:
            self._intents.setdefault(intent, fresh)

    def release(self, intent: str) -> None:
        """Look out for the end of an intent that may never have been launched."""
        with self._lock:
            watched = self._intents[intent]
            watched.released_at = watched.released_at or unix_time()
            watched.releases += 1

    def _watch(self) -> None:
        try:
            while not self._stopping.wait(_POLL_SECONDS):
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
        if self._head.answers():  # else Ray would wait a minute, and then end this process
            self._note_nodes(open_intents)

    def _list(self, open_intents: dict[str, _Intent]) -> None:
        self._listed_at = time.monotonic()
        try:
            instances = {it.intent: it for it in self._ec2.ours(self._head.rental.run)}
        except self._ec2.errors:
            if time.monotonic() > self._blind_since + _BLIND_SECONDS:
                raise
            return  # asked again soon, with credentials that are renewed; the policy's timers go on
        self._blind_since = time.monotonic()
        self._note_instances(open_intents, instances)
        # What Ray was asked twice in vain to end.
        doomed = [it.instance for it in open_intents.values() if it.releases > 1 and it.instance]
        with contextlib.suppress(*self._ec2.errors):  # what stays is for the sweep
            self._ec2.terminate(doomed)

    def _note_instances(self, intents: dict[str, _Intent], instances: dict[str, Instance]) -> None:
        for intent, watched in intents.items():
            instance = instances.get(intent)
            if instance is None:
                self._note_unlisted(intent, watched)
            if instance is None or instance.state == QUEUED:
                continue
            watched.listed_at = unix_time()
            if not watched.launched:
                watched.instance = instance.id
                watched.launched = True
                self._tell_launch(intent, watched, instance)
            if not instance.billing:
                watched.over = True
                self._tell_end(intent, watched, instance)

    def _note_unlisted(self, intent: str, watched: _Intent) -> None:
        """Take what was listed, and long hasn't been, to be gone: EC2 forgets it in an hour."""
        seen = watched.listed_at or watched.expected_at
        if watched.launched and unix_time() - seen > _FORGOTTEN_SECONDS:
            watched.over = True
            self._boot_lines.end(intent)
            self._emit(lambda at: events.InstanceGone(at, intent, at, events.FORGOTTEN))

    def _tell_launch(self, intent: str, watched: _Intent, instance: Instance) -> None:
        # EC2 gives whole seconds, rounded down: nothing is launched before it was asked for.
        # Nor later than now, where this machine's clock is behind EC2's.
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
            # Whole seconds, rounded down; but one that was lost may have ended before it was asked.
            if not watched.lost or ended >= asked - 1:
                ended = max(ended, asked)
            ended -= self._began
        console = "" if watched.joined else self._console(intent, instance.id)
        self._emit(
            lambda at: events.InstanceGone(
                at, intent, at if ended is None else min(at, ended), instance.reason, console
            )
        )

    def _console(self, intent: str, instance: str) -> str:
        """Keep what an instance has printed that never joined, and return the end of it.

        What it uploaded itself goes first: EC2 has a console minutes late, or never.
        """
        said = ""
        with contextlib.suppress(StorageError):
            said = content(self._head.rental.boot_log(intent)).decode(errors="replace").rstrip()
        said = said or self._ec2.console(instance).rstrip()
        if not said:
            return ""
        path = self._head.folder / f"console-{intent}.log"
        path.write_text(f"{said}\n", encoding="utf-8", errors="backslashreplace")
        last = telling_lines(said)[-_CONSOLE_LINES:]
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
        """Take note that an instance takes no trials any more, whatever Ray says of its node."""
        with self._lock:
            wanted = {name: it for name, it in self._intents.items() if it.released_at is None}
            intents = [name for name, it in wanted.items() if it.instance == instance]
        for intent in intents:
            self.lose(intent, reason)

    def refuse(self, instance: str, reason: str) -> None:
        """Tell of an instance that has come, and is of no use."""
        with self._lock:
            intents = [name for name, it in self._intents.items() if it.instance == instance]
        for intent in intents:
            self.lose(intent, reason, before_joining=True)

    def lose(self, intent: str, reason: str, *, before_joining: bool = False) -> None:
        """Tell, once, that an instance that has joined takes no trials any more."""
        with self._lock:
            watched = self._intents[intent]
            if watched.lost or watched.over or not (watched.joined or before_joining):
                return
            watched.lost = True
        self._emit(lambda at: events.NodeLost(at, intent, reason))

    def note_warning(
        self, instance: str, warning: Interruption | AtRisk, settle: Callable[[], None]
    ) -> None:
        """Take note that the cloud takes an instance back, or may; settled once reported."""
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
                    continue  # there may be an instance, and then it is as good as any
                code = note.code
                message = note.message
                permanent = note.what == "broken" or (
                    note.what == "refused" and self._ec2.is_permanent(code)
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
                kind=self._ec2.refusal_kind(code),
            )
            self._emit(failed)

    def _check_autoscaler(self, intents: dict[str, _Intent], notes: Sequence[Note]) -> None:
        """Fail where Ray's autoscaler doesn't ask for what is wanted, whatever keeps it from it.

        It asks within seconds. Counted are looks and not seconds: after this machine has slept, or
        was stopped, the autoscaler must have had its time as well. Any progress begins the count
        again, as of many launches some wait for others.
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

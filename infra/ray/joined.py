"""An existing cluster of a run: joined, and left as it was found."""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtune.clock import unix_time
from cloudtune.infra.cluster.base import JoinedNode, Rental
from cloudtune.infra.cluster.head import JOURNAL
from cloudtune.infra.cluster.node_provider import Journal, Note
from cloudtune.infra.node.messages import Training
from cloudtune.infra.node.ray_access import FOR_DRIVERS
from cloudtune.infra.node.ray_agent import find_actor
from cloudtune.infra.provider import INTENT_TAG, LEASE_TAG, QUEUED, RUN_TAG
from cloudtune.infra.ray.calls import NAMESPACE, RELEASED, RayCalls, join
from cloudtune.infra.sent_files import link_sent_files
from cloudtune.model.commands import Launch

_SILENT_SECONDS = 20.0
_GONE = "its actor is gone"


class JoinedCluster:
    """A Ray cluster that a run shares. The cluster itself has the run's requests."""

    running = True

    def __init__(self, folder: Path, rental: Rental) -> None:
        self.folder = folder
        self.rental = rental
        self.journal = Journal(folder / JOURNAL)
        self._calls = RayCalls(rental.endpoint.url or "")
        self._answered_at = time.monotonic()
        self._asking: set[str] = set()
        self._unwanted: set[str] = set()
        self._names: dict[str, str] = {}
        self._joined: dict[str, JoinedNode] = {}
        self._given_back: set[str] = set()

    @property
    def intents(self) -> frozenset[str]:
        asked = {note.intent for note in self.journal.read()}
        return frozenset(asked | self._asking)

    def connect(self, directory: Path) -> None:
        """Join as a driver. A folder of links is sent: Ray's patterns would match our code too.

        Raises:
            UsageError: the cluster has another Ray or Python.
        """
        self._calls.view.check_versions()
        os.environ.update(FOR_DRIVERS)
        with tempfile.TemporaryDirectory() as folder:
            link_sent_files(directory, Path(folder))
            # Ray gives runs with equal files one folder, and each links its data there.
            (Path(folder) / ".cloudtune-run").write_text(self.rental.run, encoding="utf-8")
            join(self._calls.view.address, {**self.rental.request["code"], "working_dir": folder})

    def answers(self) -> bool:
        if self._calls.view.answers():
            self._answered_at = time.monotonic()
            return True
        return False

    def alive(self) -> bool:
        """Whether the cluster has answered lately."""
        return self.answers() or time.monotonic() < self._answered_at + _SILENT_SECONDS

    def want(self, launch: Launch, until: float) -> None:
        """Reserve a node for an intent in a separate thread, unless that was done before.

        Pending requests of another controller are waited for again.
        """
        ours = {instance.intent: instance for instance in self._calls.ours(self.rental.run)}
        instance = ours.get(launch.intent)
        if launch.intent in self._asking or (instance is not None and instance.state != QUEUED):
            return
        self._asking.add(launch.intent)
        now = unix_time()
        lease, first = self.rental.leases(now, until)
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + lease))
        tags = {
            RUN_TAG: self.rental.run,
            INTENT_TAG: launch.intent,
            LEASE_TAG: end if instance is None else instance.lease,
        }
        request = {
            **self.rental.request,
            "instance_type": launch.instance_type,
            "first": now + first,
            "wanted": lambda: launch.intent not in self._unwanted,
        }
        name = f"asks for {launch.intent}"
        asks = threading.Thread(target=self._ask, args=(launch, tags, request), name=name)
        asks.daemon = True
        asks.start()

    def _ask(self, launch: Launch, tags: Mapping[str, str], request: Mapping[str, Any]) -> None:
        self._note("asking", launch.intent)
        try:
            instance = self._calls.run_instance("", tags, request)
        except Exception as error:  # noqa: BLE001  the run must learn of whatever it is
            what = "refused" if self._calls.is_definite(error) else "broken"
            code = RELEASED if launch.intent in self._unwanted else self._calls.code(error)
            self._note(what, launch.intent, code=code, message=str(error))
        else:
            self._note("launched", launch.intent, instance=instance)

    def _note(self, what: str, intent: str, **more: str) -> None:
        self.journal.write(Note(unix_time(), what, intent, **more))

    def give_back(self, intent: str) -> None:
        self._unwanted.add(intent)
        ours = self._calls.ours(self.rental.run, ended=False)
        doomed = {instance.id for instance in ours if instance.intent == intent}
        self._given_back |= doomed
        self._calls.terminate(sorted(doomed))

    def nodes(self) -> list[JoinedNode]:
        """Return the nodes with live actors; and, as lost, those that lived before."""
        with contextlib.suppress(*self._calls.errors):  # asked again soon
            alive = self._calls.alive(self.rental.run)
            self._names |= {it.id: name for name, it in alive.items()}
            gone = {name: replace(node, lost=_GONE) for name, node in self._joined.items()}
            self._joined = gone | {
                it.id: JoinedNode(it.id, "", self.rental.gpus[it.instance_type])
                for it in alive.values()
            }
        return [node for node in self._joined.values() if node.instance not in self._given_back]

    def agent(self, node: JoinedNode, training: Training, *, existing: bool = False) -> Any | None:  # noqa: ARG002
        """Return the actor that holds the node's GPUs, which is its agent."""
        actor = find_actor(self._names[node.instance], NAMESPACE)
        if actor is not None:
            actor.begin.remote(node.gpus, training)
        return actor

    @contextlib.contextmanager
    def stand_in(self) -> Iterator[bool]:
        yield False

    def stop(self) -> None:
        """Do nothing: the cluster isn't ours."""

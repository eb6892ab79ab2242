"""The Ray cluster of a run, its own or an existing one: its nodes, and requests for more."""

import math
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cloudtune.infra.cluster.node_provider import Journal
from cloudtune.infra.environments.delivery import Delivery
from cloudtune.infra.node.messages import Training
from cloudtune.infra.provider import Endpoint
from cloudtune.model.commands import Launch


@dataclass(frozen=True)
class JoinedNode:
    """An instance in the cluster: Ray's id of its node, its GPUs, and why it is lost, if it is."""

    instance: str
    node: str
    gpus: int
    lost: str = ""


@dataclass(frozen=True)
class Rental:
    """How the instances of a run are requested.

    `gpus` has the GPUs of each instance type that may be requested. An instance ends itself
    `lease_seconds` after its request, at `lease_end` (Unix time) at the latest. It always has
    `join_seconds` to boot and be renewed, but not past the `deadline` (Unix time) of the run.
    `request` goes unchanged into each request (image, group, …), with the part of the launch's zone
    of `places`; `tags` are added to our own. Instances upload their boot output into the folder
    `boot_logs` (a URI), if that is in S3. Instances that are this machine train in a folder of
    links to the user's own, with copies of its `source_files`; others, for which that is None, get
    a copy of what is sent.
    """

    run: str
    endpoint: Endpoint
    gpus: Mapping[str, int]
    lease_seconds: float
    lease_end: float
    request: Mapping[str, Any]
    tags: Mapping[str, str]
    join_seconds: float = 900.0
    deadline: float = math.inf
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    delivery: Delivery = field(default_factory=Delivery)
    boot_logs: str = ""
    source_files: Collection[str] | None = None

    def boot_log(self, intent: str) -> str:
        """Return the URI of the boot output of an intent's instance."""
        return f"{self.boot_logs}/{intent}.log"

    def leases(self, now: float, until: float) -> tuple[float, float]:
        """Return the total and the initial lease of an instance requested now, in seconds.

        The limits pay until `until` (Unix time).
        """
        lease = max(60.0, min(now + self.lease_seconds, self.lease_end) - now)
        never_joined = max(0.0, min(self.deadline - now, max(until - now, self.join_seconds)))
        return lease, min(lease, never_joined)


class RunCluster(Protocol):
    """The interface of a run's cluster; its own records are in `folder`."""

    folder: Path
    rental: Rental
    journal: Journal

    @property
    def running(self) -> bool:
        """Whether the cluster was running already, so that there may be nodes and trials."""

    @property
    def intents(self) -> frozenset[str]:
        """The requested launches."""

    def connect(self, directory: Path) -> None:
        """Start or join the cluster as a driver; its workers get a copy of that folder.

        Raises:
            CloudtuneError: it can't be joined.
        """

    def answers(self) -> bool:
        """Whether its server takes connections. Ray's calls hang if it has just died."""

    def alive(self) -> bool:
        """Whether the cluster exists."""

    def want(self, launch: Launch, until: float, /) -> None:
        """Launch the instance of an intent, leased until then (Unix time)."""

    def give_back(self, intent: str) -> None:
        """End the instance of an intent, or never launch it."""

    def nodes(self) -> list[JoinedNode]:
        """Return the instances that have joined, including lost ones."""

    def agent(
        self, node: JoinedNode, training: Training, /, *, existing: bool = False
    ) -> Any | None:
        """Return the agent of a node, started unless it must be `existing`; None without one."""

    def stand_in(self) -> AbstractContextManager[bool]:
        """Let something answer in place of a dead server; yield whether it does."""

    def stop(self) -> None:
        """Leave, and end what was started for the run; nothing can be launched after that."""

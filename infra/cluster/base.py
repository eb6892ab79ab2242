"""The Ray cluster of a run, whoever started it: who joined, and what asks for more."""

import math
from collections.abc import Mapping
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
    """An instance in the cluster: Ray's id of its node, its GPUs; why it isn't alive any more."""

    instance: str
    node: str
    gpus: int
    lost: str = ""


@dataclass(frozen=True)
class Rental:
    """How the instances of a run are asked for.

    `gpus` has the GPUs of each instance type that may be asked for. An instance ends itself
    `lease_seconds` after it was asked for, at `lease_end` (Unix time) at the latest; `join_seconds`
    it has in any case, to come up and be renewed, but not past the `deadline` (Unix time) of the
    run. `request` goes into each request as it is (image, subnet, …), the subnet of the launch's
    zone in place of its own where `subnets` has one; `tags` are added to our own. Instances upload
    what they print as they boot into the folder `boot_logs` (a URI), if that is in S3.
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
    subnets: Mapping[str, str] = field(default_factory=dict)
    delivery: Delivery = field(default_factory=Delivery)
    boot_logs: str = ""

    def boot_log(self, intent: str) -> str:
        """Return the URI of what the instance of an intent prints as it boots."""
        return f"{self.boot_logs}/{intent}.log"

    def leases(self, now: float, until: float) -> tuple[float, float]:
        """Return how long what is asked for now may last in all, and unless it is renewed.

        In seconds, where limits pay till `until` (Unix time).
        """
        lease = max(60.0, min(now + self.lease_seconds, self.lease_end) - now)
        never_joined = max(0.0, min(self.deadline - now, max(until - now, self.join_seconds)))
        return lease, min(lease, never_joined)


class RunCluster(Protocol):
    """What a run needs of its cluster; its own records are in `folder`."""

    folder: Path
    rental: Rental
    journal: Journal

    @property
    def running(self) -> bool:
        """Whether the cluster ran when it was found: nodes and trials may be there."""

    @property
    def intents(self) -> frozenset[str]:
        """The launches that were asked for."""

    def connect(self, directory: Path) -> None:
        """Start or join the cluster as a driver; its workers get a copy of that folder.

        Raises:
            CloudtuneError: it can't be joined.
        """

    def answers(self) -> bool:
        """Whether its server takes connections. Ray's calls hang where that has just died."""

    def alive(self) -> bool:
        """Whether the cluster is there."""

    def want(self, launch: Launch, until: float, /) -> None:
        """Have the instance of an intent launched, leased till then (Unix time)."""

    def give_back(self, intent: str) -> None:
        """Have the instance of an intent ended, or never launched."""

    def nodes(self) -> list[JoinedNode]:
        """Return the instances that have joined, lost ones included."""

    def agent(
        self, node: JoinedNode, training: Training, /, *, existing: bool = False
    ) -> Any | None:
        """Return the agent of a node, begun if there is none; None if it was to be `existing`."""

    def stand_in(self) -> AbstractContextManager[bool]:
        """Have something answer in place of a server that has died; gives whether it does."""

    def stop(self) -> None:
        """Leave, and end what was started for the run; from then on nothing can be launched."""

"""The Ray cluster of a run, whoever started it: who joined, and what asks for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cloudtune.infra.cluster.head import Rental
    from cloudtune.infra.cluster.node_provider import Journal
    from cloudtune.infra.node.messages import Training
    from cloudtune.model.commands import Launch


@dataclass(frozen=True)
class JoinedNode:
    """An instance in the cluster: Ray's id of its node, its GPUs; why it isn't alive any more."""

    instance: str
    node: str
    gpus: int
    lost: str = ""


class RunCluster(Protocol):
    """What a run needs of its cluster; its own records are in `folder`."""

    folder: Path
    rental: Rental
    journal: Journal

    @property
    def running(self) -> bool:
        """Whether the cluster ran when it was found: nodes and trials may be there."""
        ...

    @property
    def intents(self) -> frozenset[str]:
        """The launches that were asked for."""
        ...

    def connect(self, directory: Path) -> None:
        """Start or join the cluster as a driver; its workers get a copy of that folder.

        Raises:
            CloudtuneError: it can't be joined.
        """
        ...

    def answers(self) -> bool:
        """Whether its server takes connections. Ray's calls hang where that has just died."""
        ...

    def alive(self) -> bool:
        """Whether the cluster is there."""
        ...

    def want(self, launch: Launch, until: float, /) -> None:
        """Have the instance of an intent launched, leased till then (Unix time)."""
        ...

    def give_back(self, intent: str) -> None:
        """Have the instance of an intent ended, or never launched."""
        ...

    def nodes(self) -> list[JoinedNode]:
        """Return the instances that have joined, lost ones included."""
        ...

    def agent(
        self, node: JoinedNode, training: Training, /, *, existing: bool = False
    ) -> Any | None:
        """Return the agent of a node, begun if there is none; None if it was to be `existing`."""
        ...

    def stand_in(self) -> AbstractContextManager[bool]:
        """Have something answer in place of a server that has died; gives whether it does."""
        ...

    def stop(self) -> None:
        """Leave, and end what was started for the run; from then on nothing can be launched."""
        ...

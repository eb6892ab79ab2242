"""A node whose GPUs are slots of this machine: real workers, that are sent what to train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any

import pytest

from cloudtune.infra.node.agent import Agent
from cloudtune.infra.node.messages import (
    Body,
    Epoch,
    Failure,
    Gone,
    OfNode,
    Part,
    Training,
    WorkerSlot,
)
from cloudtune.model.commands import StartTrial
from cloudtune.model.trial import Slice

Message = Body | OfNode


def make_part(
    session: str,
    width: float,
    until: int,
    checkpoint: str | None = None,
    gpu: int = -1,
    **config: object,
) -> Part:
    workers = max(1, round(width))
    slots = tuple(WorkerSlot(rank, rank, workers, 1, min(1.0, width)) for rank in range(workers))
    trial = session.rpartition(".")[0]
    command = StartTrial(session, trial, config, width, (), checkpoint, 0, until)
    return Part(command, Slice("i-0", width, gpu), slots)


def training_in(folder: Path, **changes: Any) -> Training:
    made = Training("train.py:train", "loss", "min", 9, str(folder / "store"), 0)
    return replace(made, **changes)


def node_fixture(script: str, *, spares: bool = True, gpus: int = 2, **changes: Any) -> Any:
    """Return a fixture: a node for all tests of a module, that trains by a script."""

    @pytest.fixture(scope="module")
    def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
        folder = tmp_path_factory.mktemp("node")
        training = training_in(folder, **changes)
        with node_in(folder, script, training, spares=spares, gpus=gpus) as node:
            yield node

    return node


@contextmanager
def node_in(
    folder: Path,
    script: str,
    training: Training,
    *,
    spares: bool = True,
    name: str = "train.py",
    gpus: int = 2,
) -> Iterator[Node]:
    """A node that trains by a script in a folder, where this process is meanwhile."""
    (folder / name).write_text(script)
    with chdir(folder):
        node = Node(folder, training, spares=spares, gpus=gpus)
        yield node
        node.agent.close()


class Node:
    def __init__(
        self, folder: Path, training: Training, *, spares: bool = True, gpus: int = 2
    ) -> None:
        self.folder = folder
        self.agent = Agent("127.0.0.1", gpus, training, folder / "logs", spares=spares)
        self.last = 0

    def hear(
        self, session: str, until: type[Body] | UnionType = Gone, seconds: float = 100.0
    ) -> list[Message]:
        """Give the messages of a session up to the first of that kind; others are passed over."""
        result: list[Message] = []
        while not result or not isinstance(result[-1], until):
            messages = self.agent.messages(self.last, self.last, seconds)  # on loaded cores, too
            assert messages, f"nothing more comes after {result}"
            self.last = messages[0].number
            result += [messages[0].body] if messages[0].session == session else []
        return result

    def stop(self, *sessions: str) -> list[Message]:
        """Stop sessions, one by one; return the messages of the last one until it was gone."""
        reported: list[Message] = []
        for session in sessions:
            self.agent.stop(session)
            reported = self.hear(session)
        return reported

    def log(self, session: str, rank: int = 0) -> str:
        return (self.folder / "logs" / f"{session}.{rank}.log").read_text()

    def printed(self, session: str, rank: int = 0, line: int = 0) -> list[str]:
        return self.log(session, rank).split("\n")[line].split()

    def pid(self, session: str, rank: int = 0) -> int:
        return int(self.printed(session, rank)[1])


def kinds(messages: list[Message]) -> list[str]:
    return [type(body).__name__ for body in messages]


def failure(messages: list[Message]) -> Failure:
    return next(body for body in messages if isinstance(body, Failure))


def reports(messages: list[Message]) -> list[dict[str, Any]]:
    return [vars(body.report) for body in messages if isinstance(body, Epoch)]

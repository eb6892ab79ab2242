"""A node of this machine with real workers, and no controller: what its agent gets and sends."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.results import PATH, ROOT, TRAIN, python_path
from cloudtune.infra.node.agent import Agent
from cloudtune.infra.node.messages import (
    Epoch,
    Failure,
    Gone,
    Lost,
    Part,
    Training,
    WorkerSlot,
)
from cloudtune.model.commands import StartTrial
from cloudtune.model.trial import Slice

if TYPE_CHECKING:
    from types import TracebackType

    from cloudtune.infra.node.messages import Message

PATIENCE = 180.0


class EndedError(Exception):
    """A session has ended otherwise than it was to."""


class Bench:
    """An agent in a folder of its own, in which this process is while it lives."""

    def __init__(self, gpus: int = 1, *, spares: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-"))
        shutil.copy(TRAIN, self.folder)
        os.environ["BENCHMARKS"] = str(ROOT)
        os.environ[PATH] = python_path()
        self._here = Path.cwd()
        os.chdir(self.folder)
        storage = str(self.folder / "store")
        training = Training("train.py:train", "loss", "min", 99, storage, 0)
        self._training = replace(training, losses_per_hour=0.0)
        self._last = 0
        began = time.monotonic()
        self.agent = Agent("127.0.0.1", gpus, training, self.folder / "logs", spares=spares)
        self.hello = self.agent.hello()
        self.warm_seconds = time.monotonic() - began
        if not str(self.hello["note"]).startswith("warm"):
            log = (self.folder / "logs" / "zygote.log").read_text()[-600:]
            self.__exit__(None, None, None)
            raise EndedError(f"no worker can be forked: {self.hello['note']}; {log}")

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.agent.close()
        os.chdir(self._here)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, session: str, width: float, until: int = 1, **config: Any) -> float:
        """Order a session; returns when that was, in Unix time."""
        checkpoint = config.pop("checkpoint", None)
        workers = max(1, round(width))
        slots = tuple(
            WorkerSlot(rank, rank, workers, 1, min(1.0, width)) for rank in range(workers)
        )
        trial = session.rpartition(".")[0]
        result = {"load": "mlp", "log": str(self.folder / session), **config}
        command = StartTrial(session, trial, result, width, (), checkpoint, 0, until)
        at = time.time()
        piece = Slice("here", width, 0 if width < 1 else -1)
        self.agent.start(Part(command, piece, slots))
        return at

    def hear(self, session: str, until: type[Epoch | Gone] = Gone) -> Message:
        """Return a session's next message of that kind.

        Raises:
            EndedError: it has failed or is lost; the text says why.
        """
        why = ""
        while True:
            messages = self.agent.messages(self._last, self._last, PATIENCE)
            if not messages:
                raise EndedError(f"{session}: nothing in {PATIENCE:g} s; {why}")
            for message in messages[:1]:
                self._last = message.number
                if message.session != session:
                    continue
                body = message.body
                if isinstance(body, Failure | Lost):
                    why = body.error if isinstance(body, Failure) else body.reason
                if isinstance(body, until):
                    if why:
                        raise EndedError(why)
                    return message
                if isinstance(body, Gone):
                    raise EndedError(why or "it has ended")

    def end(self, session: str) -> None:
        """Stop a session; returns when it is gone."""
        self.agent.stop(session)
        self.hear(session)

    def notes(self, session: str, rank: int = 0) -> list[tuple[str, int, float, dict[str, Any]]]:
        """Return what the script of a session wrote down, with Unix times."""
        lines = Path(f"{self.folder / session}.{rank}").read_text().splitlines()
        return [tuple(json.loads(line)) for line in lines]

    def noted(self, session: str, what: str, rank: int = 0) -> tuple[float, dict[str, Any]]:
        """Return when a script first wrote that down, and what else."""
        return next((at, more) for kind, _, at, more in self.notes(session, rank) if kind == what)

"""A node of this machine with real workers, and no controller: what its agent is told and tells."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.results import PATH, ROOT, python_path
from cloudtune.infra.node.agent import Agent
from cloudtune.infra.node.messages import (
    Assignment,
    Epoch,
    Failure,
    Gone,
    Lost,
    Part,
    Training,
    WorkerSlot,
)

if TYPE_CHECKING:
    from types import TracebackType

    from cloudtune.infra.node.messages import Message

PATIENCE = 180.0

SCRIPT = """
import json, os, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, os.environ["BENCHMARKS"])
import torch
import cloudtune
from benchmarks.gpu.loads import load_named

def train(config):
    rank = cloudtune.get_context().get_world_rank()
    log = Path(config["log"] + f".{rank}").open("a")
    def note(what, epoch, **more):
        print(json.dumps([what, epoch, time.time(), more]), file=log, flush=True)
    note("entered", 0)
    load = load_named(config["load"])
    device = str(cloudtune.get_device())
    if config.get("nccl"):
        began = time.time()
        torch.distributed.init_process_group("nccl" if device != "cpu" else "gloo")
        told = torch.ones(1 << 20, device=device)
        torch.distributed.all_reduce(told)
        note("joined", 0, seconds=time.time() - began, right=bool((told == 1).all()))
    model = load.model()
    net = cloudtune.prepare_model(model)
    if config.get("nccl"):
        ids = [device] if device != "cpu" else None
        net = torch.nn.parallel.DistributedDataParallel(net, device_ids=ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    inputs = load.inputs(load.batch, device)
    targets = torch.randint(0, load.classes, (load.batch,), device=device)
    for epoch in cloudtune.epochs():
        for step in range(config.get("steps", 10)):
            if step == 0:
                note("begin", epoch)
            loss = torch.nn.functional.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 0:
                loss.item()
                note("stepped", epoch, device=device, threads=torch.get_num_threads())
        note("end", epoch, loss=loss.item())
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / "state.pt")
            saved = cloudtune.Checkpoint.from_directory(folder)
            cloudtune.report({"loss": loss.item()}, saved)
"""


class EndedError(Exception):
    """A session has ended otherwise than it was to."""


class Bench:
    """An agent in a folder of its own, in which this process is while it lives."""

    def __init__(self, gpus: int = 1, *, spares: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-"))
        (self.folder / "train.py").write_text(SCRIPT)
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
        told = {"load": "mlp", "log": str(self.folder / session), **config}
        assignment = Assignment(trial, told, checkpoint, 0, until, 0)
        at = time.time()
        gpu = 0 if width < 1 else -1
        self.agent.start(Part(session, slots, width, assignment, gpu))
        return at

    def hear(self, session: str, until: type[Epoch | Gone] = Gone) -> Message:
        """Return a session's next message of that kind.

        Raises:
            EndedError: it has failed or is lost; the text is what is told of that.
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

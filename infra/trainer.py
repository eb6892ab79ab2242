"""The worker of a trial: a Ray actor that runs the user's function on one GPU (or a share)."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from cloudtune.checkpoint import CheckpointStore
from cloudtune.training import Session, load_function

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Training:
    """What the sessions of a run have in common. `train` is "file.py:function" of the user's."""

    train: str
    metric_name: str
    metric_mode: str
    max_epoch: int
    storage: str
    seed: int


@dataclass(frozen=True)
class Seat:
    """Where one worker sits: rank among the workers, local rank among those of its instance.

    `share` is its part of a GPU: 1 but for packed trials.
    """

    rank: int
    local_rank: int
    world_size: int
    nodes: int
    share: float = 1.0


@dataclass(frozen=True)
class Assignment:
    """One trial for one worker: from which checkpoint and epoch, until which.

    What it saved itself from epoch `known` on stays.
    """

    trial: str
    config: Mapping[str, object]
    checkpoint: str | None
    start_epoch: int
    until_epoch: int
    known: int


@dataclass(frozen=True)
class Failure:
    """An error of the user's code: one line, and the traceback."""

    error: str
    traceback: str


class Worker:
    """Runs the user's function in a thread; answers while it trains. Made a Ray actor by us."""

    def __init__(self, training: Training, seat: Seat) -> None:
        self._training = training
        self._seat = seat
        self._session: Session | None = None
        self._granted = 0
        self._opening = threading.Lock()
        self._news: queue.Queue[dict[str, Any]] = queue.Queue()

    def address(self) -> str:
        """Return where the workers of this trial meet, if this is rank 0."""
        import ray  # noqa: PLC0415  a worker process has it loaded

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def begin(self, assignment: Assignment, meeting: str) -> None:
        """Set everything up, join the other workers, and begin to train; returns at once."""
        thread = threading.Thread(target=self._train, args=(assignment, meeting), daemon=True)
        thread.start()

    def next_news(self) -> dict[str, Any]:
        """Wait for news: {"ready"}, {"epoch": …}, {"failure": …} or {"done"}."""
        return self._news.get()

    def grant(self, until_epoch: int) -> None:
        """Let training go on to that epoch; may come before this worker is set up."""
        with self._opening:
            self._granted = max(self._granted, until_epoch)
            if self._session is not None:
                self._session.grant(self._granted)

    def acknowledge(self, epoch: int) -> None:
        """Take note that the controller knows of an epoch, and will go on from no earlier one."""
        if self._session is not None:
            self._session.acknowledge(epoch)

    def _train(self, assignment: Assignment, meeting: str) -> None:
        try:
            self._run(assignment, meeting)
        except BaseException as error:  # noqa: BLE001  the user's code may raise anything
            line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
            self._news.put({"failure": Failure(line, traceback.format_exc())})
        else:
            self._news.put({"done": True})

    def _run(self, assignment: Assignment, meeting: str) -> None:
        import torch  # noqa: PLC0415  seconds, and only here

        device = self._device(torch.cuda.is_available())
        if device == "cpu":
            torch.set_num_threads(1)
        function = load_function(Path.cwd(), self._training.train)
        if self._seat.world_size > 1:
            torch.distributed.init_process_group(
                "nccl" if device.startswith("cuda") else "gloo",
                init_method=meeting,
                rank=self._seat.rank,
                world_size=self._seat.world_size,
                device_id=torch.device(device) if device.startswith("cuda") else None,
            )
        session = self._open(assignment, device)
        with self._opening:
            self._session = session
            session.grant(max(self._granted, assignment.until_epoch))
        self._news.put({"ready": True})
        session.run(function, assignment.config)

    def _device(self, cuda: bool) -> str:
        """Return this worker's device: Ray shows it its own GPUs only, so it is the first."""
        return "cuda:0" if cuda and os.environ.get("CUDA_VISIBLE_DEVICES") else "cpu"

    def _open(self, assignment: Assignment, device: str) -> Session:
        return Session(
            trial_id=assignment.trial,
            report_hook=lambda report: self._news.put({"epoch": vars(report)}),
            metric_name=self._training.metric_name,
            metric_mode=self._training.metric_mode,
            max_epoch=self._training.max_epoch,
            rank=self._seat.rank,
            local_rank=self._seat.local_rank,
            world_size=self._seat.world_size,
            nodes=self._seat.nodes,
            device=device,
            start_epoch=assignment.start_epoch,
            store=CheckpointStore(self._training.storage),
            restore=assignment.checkpoint,
            seed=self._training.seed,
            born=_born(),
            share=self._seat.share,
            known=assignment.known,
        )


def _born() -> float:
    """Return when this process began, on the monotonic clock."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())

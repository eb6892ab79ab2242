"""One session of a trial on the cluster: placement group, workers, reports, end.

Each session is followed by a thread of its own, so that nothing it waits for holds up the run.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cloudtune.events import EpochDone, TrialFailed, TrialLost, TrialStarted, TrialStopped
from cloudtune.infra.node import INSTANCE_LABEL
from cloudtune.infra.trainer import Assignment, Failure, Seat, Training, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudtune.commands import StartTrial
    from cloudtune.events import Event

_POLL_SECONDS = 0.2
_PLACE_SECONDS = 120.0
_RETURNED = (
    "the training function returned before its last epoch; loop over cloudtune.epochs(), and let "
    "cloudtune.report() end the loop"
)
_WorkerActor = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=8)(Worker)


@dataclass(frozen=True)
class _Bundle:
    """The GPUs of one worker on one instance."""

    instance: str
    gpus: float
    local_rank: int


def bundles(command: StartTrial) -> list[_Bundle]:
    """Return one bundle a worker: whole GPUs one each, a share of one GPU as it is."""
    return [
        _Bundle(piece.instance, min(1.0, piece.gpus), local_rank)
        for piece in command.placement
        for local_rank in range(max(1, round(piece.gpus)))
    ]


class TrialSession:
    """A session from `start` until one of TrialStopped, TrialFailed or TrialLost was emitted.

    The trial's checkpoints from epoch `known` on stay, until more is acknowledged.
    """

    def __init__(
        self,
        command: StartTrial,
        training: Training,
        emit: Callable[[Callable[[float], Event]], None],
        known: int,
    ) -> None:
        self.command = command
        self._training = training
        self._emit = emit
        self._known = known
        self._stopping = threading.Event()
        self._group: Any = None
        self._workers: list[Any] = []
        self._thread = threading.Thread(target=self._follow, name=command.session, daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def extend(self, until_epoch: int) -> None:
        """Let the waiting workers go on; returns at once."""
        for worker in self._workers:
            worker.grant.remote(until_epoch)

    def acknowledge(self, epoch: int) -> None:
        """Tell the worker that saves that the controller knows of an epoch; returns at once.

        Not once the session is to stop: what it still reports is taken no note of.
        """
        if self._workers and not self._stopping.is_set():
            self._workers[0].acknowledge.remote(epoch)

    def stop(self) -> None:
        """End the workers wherever they are; returns at once, TrialStopped follows."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Wait until the session is over, so long at most."""
        self._thread.join(seconds)

    def _follow(self) -> None:
        session = self.command.session
        try:
            ended = self._train()
        except RayError as error:
            ended = self._loss(str(error).strip().splitlines()[0])
        except Exception as error:  # noqa: BLE001  a session that ends untold would hang its trial
            ended = self._failure(Failure(repr(error), traceback.format_exc()))
        self._clear()
        if self._stopping.is_set():
            self._emit(lambda at: TrialStopped(at, session))
        else:
            self._emit(ended)

    def _loss(self, reason: str) -> Callable[[float], Event]:
        return lambda at: TrialLost(at, self.command.session, reason)

    def _failure(self, failure: Failure) -> Callable[[float], Event]:
        return lambda at: TrialFailed(at, self.command.session, failure.error, failure.traceback)

    def _train(self) -> Callable[[float], Event]:
        """Set the session up and pass its news on; return how it ended."""
        if not self._place():
            return self._loss("its place in the cluster was never free")
        self._seat_workers()
        news = {worker.next_news.remote(): worker for worker in self._workers}
        ready = 0
        while not self._stopping.is_set():
            arrived, _ = ray.wait(list(news), num_returns=1, timeout=_POLL_SECONDS)
            for reference in arrived:
                worker = news.pop(reference)
                told = ray.get(reference)
                ended = self._tell(told)
                if ended is not None:
                    return ended
                ready += "ready" in told
                if "ready" in told and ready == len(self._workers):
                    self._emit(lambda at: TrialStarted(at, self.command.session))
                if "done" not in told:
                    news[worker.next_news.remote()] = worker
        return self._loss("stopped")

    def _place(self) -> bool:
        """Reserve the GPUs on exactly the instances of the placement; False if stopped before."""
        wanted = bundles(self.command)
        self._group = placement_group(
            [{"GPU": bundle.gpus} for bundle in wanted],
            strategy="PACK",
            bundle_label_selector=[{INSTANCE_LABEL: bundle.instance} for bundle in wanted],
        )
        give_up = time.monotonic() + _PLACE_SECONDS
        while not self._stopping.is_set() and time.monotonic() < give_up:
            if self._group.wait(timeout_seconds=1):
                return True
        return False

    def _seat_workers(self) -> None:
        wanted = bundles(self.command)
        nodes = len({bundle.instance for bundle in wanted})
        for rank, bundle in enumerate(wanted):
            place = PlacementGroupSchedulingStrategy(self._group, rank)
            options = {"num_gpus": bundle.gpus, "scheduling_strategy": place}
            seat = Seat(rank, bundle.local_rank, len(wanted), nodes, bundle.gpus)
            self._workers.append(_WorkerActor.options(**options).remote(self._training, seat))
        meeting = self._meeting() if len(wanted) > 1 else ""
        command = self.command
        assignment = Assignment(
            command.trial,
            command.config,
            command.checkpoint,
            command.start_epoch,
            command.until_epoch,
            self._known,
        )
        for worker in self._workers:
            worker.begin.remote(assignment, meeting)

    def _meeting(self) -> str:
        """Return where the workers meet; a first worker that doesn't come up is a loss."""
        return str(ray.get(self._workers[0].address.remote(), timeout=_PLACE_SECONDS))

    def _tell(self, told: dict[str, Any]) -> Callable[[float], Event] | None:
        """Pass an epoch on; return how the session ended, if that is what was told."""
        session = self.command.session
        if "epoch" in told:
            self._emit(lambda at: EpochDone(at, session, **told["epoch"]))
        if "failure" in told:
            return self._failure(told["failure"])
        if "done" in told:
            return self._failure(Failure(_RETURNED, ""))
        return None

    def _clear(self) -> None:
        # Whatever goes wrong with one, the others must go too, and the session's end be told.
        for worker in self._workers:
            with contextlib.suppress(Exception):
                ray.kill(worker)
        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)

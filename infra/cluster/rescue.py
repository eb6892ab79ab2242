"""The best epoch's files, if they can't be saved: they are copied to the controller's disk.

A worker whose save fails after all retries leaves the files on its node, which may soon be gone. So
they are fetched before the policy gets the epoch: it can't return the instance meanwhile, unless a
limit ends the run.
"""

import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from cloudtune.infra.node.messages import Training
from cloudtune.model.events import EpochReport
from cloudtune.train.best import RESCUED
from cloudtune.train.checkpoint import CheckpointStore

# Bytes of a file per answer of Ray: both ends hold it in memory.
_CHUNK_BYTES = 16 * 2**20
# Maximum seconds of a fetch: an instance bills meanwhile.
_SECONDS = 120.0


class Rescue:
    """Fetches the best epoch's files into a folder, one checkpoint at a time.

    Args:
        folder: the run's folder on this machine.
        training: its metric decides which epoch is the best.
        call: calls an instance's agent; returns None if the instance has no agent.
        say: reports to the user.
    """

    def __init__(
        self, folder: Path, training: Training, call: Callable[..., Any], say: Callable[[str], None]
    ) -> None:
        self._folder = folder / RESCUED
        self._metric = training.metric_name
        self._sign = 1.0 if training.metric_mode == "max" else -1.0
        self._call = call
        self._say = say
        self._best = -math.inf
        self._comparing = threading.Lock()  # each agent has its own listening thread
        self._fetching = threading.Lock()

    def hear(self, instance: str, trial: str, report: EpochReport) -> None:
        """Record an epoch; return once its files are here, or can't be fetched."""
        value = self._sign * report.metrics.get(self._metric, math.nan)
        with self._comparing:
            is_best = math.isfinite(value) and value > self._best
            if is_best:
                self._best = value
        if not report.held:
            return
        name = f"the files of {trial}, epoch {report.epoch},"
        try:
            if is_best:
                with self._fetching:  # one at a time: the last could drop a better one's files
                    if value == self._best:
                        path = self._fetch(instance, trial, report)
                        self._say(f"{name} are kept on this machine: {path}")
        except (RayError, OSError) as error:
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            self._say(f"{name} can't be fetched: {reason}")
        finally:
            self._call(instance, "drop_held", report.held)

    def _fetch(self, instance: str, trial: str, report: EpochReport) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        give_up = time.monotonic() + _SECONDS
        with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as folder:
            sizes = self._ask(instance, give_up, "held_files", report.held)
            for name, size in sizes.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    while (at := file.tell()) < size:
                        place = f"{report.held}/{name}"
                        file.write(
                            self._ask(instance, give_up, "read_held", place, at, _CHUNK_BYTES)
                        )
            store = CheckpointStore(str(self._folder), ())
            saved = store.save(trial, report.epoch, report.metrics, folder)
        for other in self._folder.glob("*/epoch-*"):
            if other != Path(saved):
                shutil.rmtree(other, ignore_errors=True)
        return saved

    def _ask(self, instance: str, give_up: float, method: str, *arguments: object) -> Any:
        answer = self._call(instance, method, *arguments)
        if answer is None:
            raise OSError(f"{instance} is gone")
        return ray.get(answer, timeout=max(0.0, give_up - time.monotonic()))

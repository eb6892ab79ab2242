"""The session behind a training script: it is granted epochs and takes the script's reports.

A worker creates one in its process. The functions for scripts are in `cloudtune.train.calls`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from cloudtune.errors import UsageError
from cloudtune.model.events import EpochReport
from cloudtune.train.checkpoint import (
    Checkpoint,
    CheckpointStore,
    fetch,
    read_manifest,
    usable,
)
from cloudtune.train.progress_cursor import Progress, Trained
from cloudtune.train.save_times import SaveTimes
from cloudtune.train.storage import StorageError, tell
from cloudtune.train.torch_state import peak_memory_mib, seed_everything, split_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from cloudtune.model.trial import Parallel
    from cloudtune.train.checkpoint import PendingCheckpoint
    from cloudtune.train.sync_check import Ranks
    from cloudtune.train.user_script import TrainFunction

ADDRESS_VARIABLE: Final = "CLOUDTUNE_WORKER"
HOOK_VARIABLE: Final = "CLOUDTUNE_EPOCH_HOOK"
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class MissingMetricError(UsageError):
    """A report lacks the metric that compares the experiment's trials."""


class NeverReportedError(UsageError):
    """The training function ended, or an epoch of `epochs()` did, without a `report()`."""


class StopTraining(SystemExit):
    """The trial stops here: unwinds the training function from within `report()`.

    It isn't an `Exception`, so that a script's `except Exception` lets it pass; it is a SystemExit,
    so that a script on its own ends quietly.
    """


def waited_seconds() -> float:
    """Return the total seconds for which the calling thread has waited for a core.

    It is Linux's own count; 0 if there is none. Sleeping and reading don't count.
    """
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def load_epoch_hook() -> Callable[..., object] | None:
    """Return the hook that the environment names as module:factory; None if it names none.

    It is called on every rank at the end of each epoch, before the epoch's report is delivered, as
    `hook(trial=, epoch=, width=, nodes=, elapsed=)`: `elapsed` is in seconds since the epoch began,
    and epoch 0 is the set-up of the worker.

    Raises:
        UsageError: it has another form.
    """
    spec = os.environ.get(HOOK_VARIABLE)
    if spec is None:
        return None
    module, _, factory = spec.partition(":")
    if not module or not factory:
        raise UsageError(f"{HOOK_VARIABLE} is {spec!r}; write it as module:factory")
    return cast("Callable[..., object]", getattr(importlib.import_module(module), factory)())


class Deliveries:
    """Does work in its own thread, one piece at a time; any thread can wait for it."""

    def __init__(self) -> None:
        self._under_way: threading.Thread | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin this work once the previous piece is done; return as soon as it has begun.

        `work` must not raise. A process that ends doesn't wait for it: call `wait` before.
        """
        self.wait()
        thread = threading.Thread(target=work, name="deliveries", daemon=True)
        thread.start()
        self._under_way = thread  # only now, because only a started thread can be joined

    def wait(self, seconds: float | None = None) -> None:
        """Wait up to `seconds` until the work is done."""
        if self._under_way is not None:
            self._under_way.join(seconds)


@dataclass(eq=False)
class Session:
    """One worker's part of one trial in training.

    The script runs in one thread (`run`, or within `activate`); `grant` and `stop` are called from
    others. Every rank has its own session, granted and stopped separately. A stop takes effect at
    the end of an epoch, when no collective of torch.distributed is pending. `restore` is the
    checkpoint to resume from: its manifest says which epoch is the first. `born` is the start of
    the worker's set-up on the monotonic clock; activation if not given.

    A report is delivered once its checkpoint is in the storage, by the session's own thread. If
    another epoch is granted already, training continues meanwhile.
    """

    trial_id: str
    report_hook: Callable[[EpochReport], object]
    metric_name: str
    metric_mode: str
    max_epoch: int
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    nodes: int = 1
    device: str = "cpu"
    start_epoch: int = 0
    store: CheckpointStore | None = None
    restore: str | None = None
    seed: int = 0
    born: float | None = None
    share: float = 1.0
    """The share of a GPU of each worker."""
    acknowledged: int | None = None
    """The last epoch that the controller has recorded; None if it never says so."""
    ranks: Ranks | None = None
    """The workers of the trial, whose models are compared; None for a single worker."""
    saves: SaveTimes = field(default_factory=SaveTimes)
    progress: Progress = field(default_factory=Progress)
    batch_weight: float = 1.0  # of its samples in the mean over the workers; see `DataWorker`
    batch_size: int | None = None
    """The total batch of all workers, of the first prepared loader."""
    seeds: bool = True
    """Whether activation seeds the random numbers."""
    parallel: Parallel = ""

    epoch: int = field(init=False)
    """The last reported epoch, or the one that the trial was restored at."""
    leaving: bool = field(default=False, init=False)
    """Whether the machine is about to be interrupted."""
    before: Trained = field(default_factory=Trained, init=False)
    """What trained the last epoch of the checkpoint to resume from."""
    _kept: Mapping[str, float] | None = field(default=None, init=False)
    """The metrics of the last epoch, if the trial has its own checkpoint of it."""
    _between: Mapping[str, float] | None = field(default=None, init=False)
    """The metrics of the last report, if it came further than the epoch, but not to the next."""
    _reports_between: int = field(default=0, init=False)
    _place: float = field(default=0.0, init=False)
    """Where the script stood at the epoch's report, by its own number."""
    _waiting: bool = field(default=False, init=False)
    _granted: int = field(default=0, init=False)
    _stopped: bool = field(default=False, init=False)
    _broken: BaseException | None = field(default=None, init=False)
    _deliveries: Deliveries = field(default_factory=Deliveries, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _waited: float = field(default_factory=waited_seconds, init=False)
    _hook: Callable[..., object] | None = field(default=None, init=False)
    models: list[torch.nn.Module] = field(default_factory=list, init=False)
    """The trained models, if known; otherwise the parameters of torch's optimizers count."""
    sharded: bool = field(default=False, init=False)
    """Whether states are gathered from all ranks, so that none can save without the others."""
    leaves_parallel: bool = field(default=False, init=False)
    """Whether the script leaves `parallel` to the run."""

    def __post_init__(self) -> None:
        self.epoch = self.start_epoch
        if self.store is not None:
            full = EpochReport(0, {}, None, 0.0)
            self.store.no_room = lambda: self.report_hook(full)

    def grant(self, until_epoch: int) -> None:
        """Let the script train through `until_epoch`; a lower grant than before has no effect."""
        with self._changed:
            self._granted = max(self._granted, until_epoch)
            self._changed.notify_all()

    def acknowledge(self, epoch: int) -> None:
        """Allow pruning the checkpoints of epochs before this one: the run won't need them."""
        self.acknowledged = epoch

    def stop(self) -> bool:
        """Unwind the script at the end of its epoch, or at once if it waits for a grant.

        Returns whether it waits.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            return self._waiting

    def flush(self, seconds: float | None = None) -> None:
        """Wait up to `seconds` until all reports are delivered."""
        self._deliveries.wait(seconds)

    @contextlib.contextmanager
    def activate(self) -> Iterator[Session]:
        """Make this the session of the calling thread; set seeds, hook and start epoch."""
        if self.restore is not None:
            self.restore = usable(self.restore)
            self.epoch = 0
            self.start_epoch = 0
        if self.restore is not None:
            fetch(self.restore)  # while the script makes its model
            manifest = read_manifest(self.restore)
            self.epoch = self.start_epoch = manifest.epoch
            self.before = manifest.trained
            if self.store is not None:
                self.store.trained = self.before  # for a save before the next epoch's end
            if manifest.trial == self.trial_id:  # a clone's is its parent's
                self._kept = dict(manifest.metrics)
        self._hook = load_epoch_hook()
        if self.ranks is not None:
            self.ranks.watch()
        if self.seeds:
            seed_everything(self.derived_seed)
        token = active_session.set(self)
        self._begin()
        self.born = self._began if self.born is None else self.born
        try:
            yield self
        finally:
            active_session.reset(token)
            if self.ranks is not None:
                self.ranks.close()

    def run(self, function: TrainFunction, config: Mapping[str, Any]) -> None:
        """Train to the end, or until stopped; all reports are delivered on return.

        Raises:
            NeverReportedError: the function returned without a report, with epochs left.
        """
        with self.activate():
            try:
                function(dict(config))
                self.conclude()
            except StopTraining:
                return
            finally:
                self.flush()
        if self._broken is not None:
            raise self._broken
        if self.epoch == 0:
            raise NeverReportedError(
                f"the training function of trial {self.trial_id} returned without ever calling "
                "cloudtune.report(); call it at the end of each epoch"
            )

    @property
    def derived_seed(self) -> int:
        """The seed of this trial, the same on all its ranks and in every attempt."""
        digest = hashlib.sha256(f"{self.seed}/{self.trial_id}".encode()).digest()
        return int.from_bytes(digest[:4], "big")

    def epochs(self) -> Iterator[int]:
        if self.epoch == self.start_epoch:
            self._call_hook(0, self.born or self._began)
        self._begin()  # the script's set-up isn't part of an epoch
        while self.epoch < self.max_epoch:
            epoch = self.epoch + 1
            yield epoch
            if self.epoch < epoch:
                raise NeverReportedError(
                    f"epoch {epoch} ended without cloudtune.report(); call it once an epoch"
                )

    def report(
        self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, **position: float | None
    ) -> None:
        numbers, texts = split_metrics(metrics)
        if checkpoint is not None and not hasattr(checkpoint, "as_directory"):
            kind = type(checkpoint).__name__
            raise UsageError(
                f"report() takes a checkpoint such as cloudtune.Checkpoint.from_directory(folder), "
                f"not a {kind}"
            )
        place = self.progress.place(numbers, position)
        number = self.progress.number(self.epoch, numbers, position)
        if number is None:
            self._reports_between += 1
            if self.epoch == 0 or (place or 0.0) > self._place:
                self._between = numbers
            return
        if self.rank == 0 and self.metric_name and self.metric_name not in numbers:
            raise self._missing(numbers, metrics)
        if self.epoch >= self.max_epoch:
            raise StopTraining
        epoch = min(number, self.max_epoch)
        passed = range(self.epoch + 1, epoch)
        self._call_hook(epoch, self._began)
        # Before anything is stored: workers with separate models have no valid result.
        in_sync = None if self.ranks is None else self.ranks.compare(epoch, self.models)
        began_saving = time.monotonic()
        pending = self._stage(epoch, checkpoint) if self.rank == 0 else None
        saving = time.monotonic() - began_saving
        if pending is not None:
            self.saves.saved(saving, whole=False)
        self.epoch = epoch
        between, self._reports_between = self._reports_between, 0
        self._place, self._between = place or 0.0, None
        self._kept = None if pending is None else numbers
        if self.rank == 0:
            seconds = (time.monotonic() - self._began) / (len(passed) + 1)
            for before in passed:
                self.report_hook(EpochReport(before, numbers, None, seconds, of_epoch=epoch))
            lost = self.store is not None and checkpoint is not None and pending is None
            report = EpochReport(
                epoch=epoch,
                metrics=numbers,
                checkpoint=None,
                seconds=seconds,
                in_sync=in_sync,
                saving=saving,
                memory_mib=peak_memory_mib(self.device),
                waited=waited_seconds() - self._waited,
                unsaved=self.store.failure if self.store is not None and lost else "",
                parallel=(self.parallel or "ddp") if self.leaves_parallel else "",
                texts=texts,
                between=between,
            )
            if pending is None:
                self.report_hook(report)
            else:
                self._deliveries.begin(partial(self._save, report, pending))
        self._wait_for_grant()

    def _missing(
        self, numbers: Mapping[str, float], metrics: Mapping[str, Any]
    ) -> MissingMetricError:
        name = self.metric_name
        if name in metrics:
            value = metrics[name]
            return MissingMetricError(
                f"report() gave {name} = {value!r}; the experiment's metric is a number"
            )
        return MissingMetricError(
            f"report() gave {{{', '.join(sorted(numbers))}}}; the experiment's metric is {name!r}"
        )

    def conclude(self) -> None:
        """Report what a script that ended in the midst of an epoch, or of steps, said last."""
        last = self._between
        if last is not None and self.epoch < self.max_epoch and self._has_metric(last):
            following = (self.epoch + 1) * self.progress.every
            self.report(last, None, **{self.progress.unit: following})

    def _has_metric(self, numbers: Mapping[str, float]) -> bool:
        return self.epoch == 0 or not self.metric_name or self.metric_name in numbers

    def save(self, checkpoint: Checkpoint) -> bool:
        if self.rank != 0 or self.store is None or self._kept is None:
            return False
        began = time.monotonic()
        self.flush()
        with checkpoint.as_directory() as folder:
            try:
                self.store.save(self.trial_id, self.epoch, self._kept, folder)
            except StorageError as error:
                tell(f"epoch {self.epoch + 1} is not saved in its middle: {error}")
                return False
        self.saves.saved(time.monotonic() - began)
        return True

    @property
    def save_due(self) -> bool:
        if self._kept is None or self.rank > 0 or self.sharded:
            return False
        return self.leaving or self.saves.due()

    def _begin(self) -> None:
        self._began, self._waited = time.monotonic(), waited_seconds()
        self.saves.begin()

    def _call_hook(self, epoch: int, since: float) -> None:
        if self._hook is not None:
            self._hook(
                trial=self.trial_id,
                epoch=epoch,
                width=self.world_size * self.share,
                nodes=self.nodes,
                elapsed=time.monotonic() - since,
            )

    def _stage(self, epoch: int, checkpoint: Checkpoint | None) -> PendingCheckpoint | None:
        """Copy the script's files, once the previous report is delivered.

        So at most one report is under way, and reports arrive in order.
        """
        self.flush()
        if self._broken is not None:
            raise self._broken
        if checkpoint is None or self.store is None:
            return None
        self.store.trained = Trained(self.world_size * self.share, self.batch_size)
        with checkpoint.as_directory() as folder:
            return self.store.stage(self.trial_id, epoch, folder)

    def _save(self, report: EpochReport, pending: PendingCheckpoint) -> None:
        """Upload a checkpoint, then report its epoch; errors are raised in the script."""
        assert self.store is not None
        # Before the save, not after it, and never the last reported one: the controller may not
        # know the new one yet when this node is lost, and would resume from the last. It may be
        # several epochs behind: a trial that it stops keeps training until the stop arrives.
        last = report.epoch - 1
        first = last if self.acknowledged is None else min(self.acknowledged, last)
        spare = range(first, report.epoch + 1)
        try:
            self.store.prune(self.trial_id, self.metric_name, self.metric_mode, spare=spare)
            path = self.store.commit(pending, report.metrics)
            if path is None:
                report = replace(report, unsaved=self.store.failure, held=self.store.held)
            self.report_hook(replace(report, checkpoint=path))
        except BaseException as error:  # noqa: BLE001  raised again where the script reports
            with self._changed:
                self._broken = error
                self._changed.notify_all()

    def _wait_for_grant(self) -> None:
        with self._changed:
            self._waiting = self.epoch >= self._granted
            self._changed.wait_for(
                lambda: self._stopped or self._broken or self.epoch < self._granted
            )
            self._waiting = False
            if self._stopped:
                raise StopTraining
            if self._broken is not None:
                raise self._broken
        self._begin()


# Per thread: a thread of a stopped trial that still trains keeps its own session.
active_session: ContextVar[Session | None] = ContextVar("cloudtune_session", default=None)

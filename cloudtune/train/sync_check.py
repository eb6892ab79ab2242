"""Checks that the workers of a trial train one model, by comparing their work in an epoch.

A script may not use `prepare_model` but its own DistributedDataParallel, accelerate or Lightning.
So the check uses what all of these have in common: the steps of torch's optimizers, the parameters
that they change, and the number of collectives of torch.distributed's process groups. Workers with
fewer collectives than steps train separate models, or the same one redundantly.
"""

from __future__ import annotations

import datetime as dt
import gc
import itertools
import json
import time
import weakref
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError
from cloudtune.train.torch_state import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch._C._distributed_c10d import Store

# Classes whose parameters differ between the workers of one model, because each has a part of it.
_SHARDING: Final = frozenset(
    {"FullyShardedDataParallel", "ZeroRedundancyOptimizer", "DeepSpeedEngine", "DTensor"}
)
# How long a report of rank 0 waits for those of the others; as long as torch's collectives.
_PATIENCE: Final = dt.timedelta(minutes=30)
_POLL_SECONDS: Final = 0.005


class NotOneModelError(UsageError):
    """The workers of a trial train separate models, or the same one redundantly."""


@dataclass(frozen=True)
class Work:
    """The work of one worker in an epoch.

    `steps` is the largest number of steps of any of its optimizers, `exchanges` the number of
    collectives of its process groups. `model` is a digest of its parameters, "" if none are known;
    `sharded` says that it has only a part of them.
    """

    steps: int
    exchanges: int
    model: str
    sharded: bool = False


def flaw(work: Sequence[Work]) -> str:
    """Return why these workers of a trial don't train one model; "" if nothing shows that."""
    steps = max(worker.steps for worker in work)
    exchanges = min(worker.exchanges for worker in work)
    count = len(work)
    if steps > exchanges:
        return (
            f"its {count} workers took {steps} steps of the optimizer, and exchanged gradients "
            f"{'never' if exchanges == 0 else f'{exchanges} times at most'}"
        )
    if any(worker.sharded for worker in work) or len({worker.model for worker in work}) == 1:
        return ""
    return f"the parameters of its {count} workers differ"


class Ranks:
    """The workers of a trial, which exchange their work through one of torch's stores.

    They can't use collectives: those belong to the script, and one of ours would be matched with
    one of the script's on another rank.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int]
        self._steps = weakref.WeakKeyDictionary()
        self._exchanged = 0
        self._shards: bool | None = None
        self._states = 0
        self._hook: Any = None

    def watch(self) -> None:
        """Start counting this worker's steps and collectives."""
        from torch.optim import optimizer  # noqa: PLC0415

        self._hook = optimizer.register_optimizer_step_post_hook(self._note_step)
        self._exchanged = _exchanges()

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _note_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1

    def compare(self, epoch: int, models: Sequence[torch.nn.Module]) -> bool | None:
        """Send rank 0 the work of an epoch; on rank 0, return whether all train one model.

        `models` are the trained models, if known; otherwise the optimizers' parameters count.
        Returns None if nothing is known, and on the other ranks, which don't wait.

        Raises:
            NotOneModelError: on rank 0: they don't.
            UsageError: on rank 0: another rank hasn't reported.
        """
        self._store.set(f"reported/{self._rank}", str(epoch))
        mine = self._work(models)
        if self._rank > 0:
            self._store.set(f"{epoch}/{self._rank}", json.dumps(asdict(mine)))
            return None
        work = [mine, *(self._hear(epoch, rank) for rank in range(1, self._world_size))]
        why = flaw(work)
        if why:
            raise NotOneModelError(f"in epoch {epoch} {why}")
        return True if mine.model else None

    def wait_for_states(self, epoch: int) -> None:
        """Wait until all ranks ask for a state of a sharded model in the present epoch.

        Raises:
            UsageError: another rank has already reported that epoch, so it never will.
        """
        self._states += 1
        self._store.set(f"states/{self._rank}", str(self._states))
        for rank in range(self._world_size):
            reported = False  # checked first: a rank asks before it reports
            while self._number(f"states/{rank}") < self._states:
                if reported:
                    raise UsageError(
                        f"rank {rank} reported epoch {epoch} without a state_dict() that rank "
                        f"{self._rank} asks for; a model under fsdp is gathered from all ranks, so "
                        "call state_dict() on each"
                    )
                reported = self._number(f"reported/{rank}") >= epoch
                time.sleep(_POLL_SECONDS)

    def _number(self, key: str) -> int:
        return int(self._store.get(key)) if self._store.check([key]) else 0

    def _hear(self, epoch: int, rank: int) -> Work:
        key = f"{epoch}/{rank}"
        try:
            self._store.wait([key], _PATIENCE)
        except RuntimeError as error:
            raise UsageError(
                f"rank {rank} has not reported epoch {epoch}, {_PATIENCE} after rank 0 did; call "
                f"cloudtune.report() on every rank ({error})"
            ) from None
        work = json.loads(self._store.get(key))
        self._store.delete_key(key)
        return Work(**work)

    def _work(self, models: Sequence[torch.nn.Module]) -> Work:
        before = self._exchanged
        self._exchanged = _exchanges()
        steps = max(self._steps.values(), default=0)
        parameters = [item for model in models for item in model.parameters()]
        if not models:
            groups = (group for item in list(self._steps) for group in item.param_groups)
            parameters = [item for group in groups for item in group["params"]]
        for optimizer in self._steps:
            self._steps[optimizer] = 0
        if self._shards is None:  # in any of the usual ways
            objects = itertools.chain(parameters, gc.get_objects())
            self._shards = any(type(item).__name__ in _SHARDING for item in objects)
        model = digest(parameters) if parameters and not self._shards else ""
        return Work(steps, max(0, self._exchanged - before), model, self._shards)


def _exchanges() -> int:
    """Return the number of collectives of all process groups of this process."""
    import torch.distributed  # noqa: PLC0415

    if not torch.distributed.is_initialized():
        return 0
    groups = torch.distributed.distributed_c10d._world.pg_map  # noqa: SLF001  it has no other name
    count = 0
    for group in groups:
        counting: Any = group
        try:
            count += counting._get_sequence_number_for_group()  # noqa: SLF001
        except RuntimeError:  # a backend that doesn't count
            continue
    return count

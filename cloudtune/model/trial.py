"""A trial, how a run can end, and the words that events, commands and policy share."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

TrialId: TypeAlias = str
# GPUs given to one trial: 1/c … 1 (packed), 1 … d (data-parallel).
Width: TypeAlias = float
# By how many GPUs sums of widths may be off: three trials of 1/3 must fit on one GPU.
GPU_ROUNDING = 1e-6

Mode: TypeAlias = Literal["min", "max"]
# How the workers of a trial share its model, where the script leaves that to the run; "" is "ddp".
Parallel: TypeAlias = Literal["", "ddp", "fsdp"]


def nested(config: Mapping[str, object]) -> dict[str, object]:
    """Return a flat configuration as the script gets it: `optimizer/lr` is lr in optimizer."""
    result: dict[str, object] = {}
    for name, value in config.items():
        *above, last = name.split("/")
        inside = result
        for part in above:
            inside = inside.setdefault(part, {})  # type: ignore[assignment]
        inside[last] = value
    return result


def flat(config: Mapping[str, object], above: str = "") -> dict[str, object]:
    """Return a nested configuration under flat names, as tables and records have it."""
    result: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{above}{name}/")
        else:
            result[f"{above}{name}"] = value
    return result


@dataclass(frozen=True)
class Trial:
    """One configuration in training; it ends at epoch `epochs` at the latest, where that is set."""

    id: TrialId
    config: Mapping[str, object]
    epochs: int | None = None


@dataclass(frozen=True)
class Slice:
    """A number of GPUs of one instance.

    `gpu`: which GPU of the instance a share of less than one sits on, by a number that shares of
    the same GPU have in common; which physical one that is, the instance decides. -1: any.
    """

    instance: str
    gpus: Width
    gpu: int = -1


class EndReason(enum.Enum):
    """Why a run ended; `exit_code` is what the command line returns for it."""

    DONE = "done"
    FAILED = "failed"
    BUDGET = "budget"
    DEADLINE = "deadline"
    NO_CAPACITY = "no capacity"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        """The documented exit code (docs/reference.md, Exit codes)."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    EndReason.DONE: 0,
    EndReason.FAILED: 1,
    EndReason.BUDGET: 4,
    EndReason.DEADLINE: 5,
    EndReason.NO_CAPACITY: 6,
    EndReason.INTERRUPTED: 130,
}


def diverged(mode: Mode, metric: float) -> bool:
    """Whether a metric says that training has come off the rails.

    So nan does, and an infinity that would win: no model is infinitely good.
    """
    return math.isnan(metric) or metric == (math.inf if mode == "max" else -math.inf)


def better(mode: Mode, metric: float | None, other: float | None) -> bool:
    """Whether `metric` beats `other`; what has diverged and None lose to every number."""
    if metric is None or diverged(mode, metric):
        return False
    if other is None or diverged(mode, other):
        return True
    return metric > other if mode == "max" else metric < other


def rank_key(mode: Mode, metric: float | None) -> tuple[int, float]:
    """Return a sort key that puts the best metric first, what has diverged and None last."""
    if metric is None or diverged(mode, metric):
        return (1, 0.0)
    return (0, -metric if mode == "max" else metric)

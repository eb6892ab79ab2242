"""A trial, how a run can end, and the types that events, commands and policy share."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

TrialId: TypeAlias = str
# GPUs given to one trial: 1/c … 1 (packed), 1 … d (data-parallel).
Width: TypeAlias = float
# Tolerance in GPUs for sums of widths: three trials of 1/3 must fit on one GPU.
GPU_ROUNDING = 1e-6

Mode: TypeAlias = Literal["min", "max"]
# How the workers of a trial share its model, if the script leaves that to the run; "" means "ddp".
Parallel: TypeAlias = Literal["", "ddp", "fsdp"]


def nest(config: Mapping[str, object]) -> dict[str, object]:
    """Return a flat configuration as the script gets it: `optimizer/lr` is `lr` in `optimizer`."""
    result: dict[str, object] = {}
    for name, value in config.items():
        *above, last = name.split("/")
        inside = result
        for part in above:
            inside = inside.setdefault(part, {})  # type: ignore[assignment]
        inside[last] = value
    return result


def flat(config: Mapping[str, object], above: str = "") -> dict[str, object]:
    """Return a nested configuration with flat names, as in tables and records."""
    result: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{above}{name}/")
        else:
            result[f"{above}{name}"] = value
    return result


@dataclass(frozen=True)
class Trial:
    """One configuration in training; `epochs`, if set, is its last epoch."""

    id: TrialId
    config: Mapping[str, object]
    epochs: int | None = None


@dataclass(frozen=True)
class Slice:
    """A number of GPUs of one instance.

    `gpu`: for a share, the number of its GPU, which shares of the same GPU have in common; the
    instance decides which physical one it is. -1: any.
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


def has_diverged(metric: float) -> bool:
    """Whether a metric shows that training has diverged: it is nan or an infinity."""
    return not math.isfinite(metric)


def better(mode: Mode, metric: float | None, other: float | None) -> bool:
    """Whether `metric` beats `other`; diverged metrics and None lose to every number."""
    if metric is None or has_diverged(metric):
        return False
    if other is None or has_diverged(other):
        return True
    return metric > other if mode == "max" else metric < other


def rank_key(mode: Mode, metric: float | None) -> tuple[int, float]:
    """Return a sort key with the best metric first, diverged ones and None last."""
    if metric is None or has_diverged(metric):
        return (1, 0.0)
    return (0, -metric if mode == "max" else metric)

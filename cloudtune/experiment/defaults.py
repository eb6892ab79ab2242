"""The strategy of an experiment that names none, decided by its other fields.

| given                          | strategy                                                  |
|--------------------------------|-----------------------------------------------------------|
| a budget, with or without time | `best`: the best model that these limits buy              |
| a deadline, on this machine    | `best`: the best model by then, as its GPUs are free      |
| a deadline, or only trials     | `sha`: a fixed amount of work, as cheaply as possible; on |
|                                | a shared cluster without prices, with the fewest GPU-hours|
| an objective                   | `best` for best; `sha` for cost, time and trials          |
| trials that can't be resumed   | `asha-stopping` instead of `best`, and instead of `sha`   |
|                                | if their number is set                                    |
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from cloudtune.model.text import limit_texts
from cloudtune.model.units import format_dollars, format_gpu_hours

BEST: Final = "best"
FIXED: Final = "sha"
# Never pauses, moves or widens a trial, which would restart it from scratch.
STAYING: Final = "asha-stopping"
Objective: TypeAlias = Literal["best", "cost", "time", "trials"]

_STAYS: Final = (
    "its trials resume from no checkpoints, so each stays where it is until it ends or is cut; "
    "with checkpoints (cloudtune docs scripts) the search pauses and widens trials"
)
# The minimum and maximum number of trials of a fixed amount of work, if it isn't set.
_SMALLEST = 8
# More trials than this must be set explicitly, because they cost money.
_LARGEST = 64


@dataclass(frozen=True)
class Chosen:
    """A strategy, and why it was chosen: a sentence for the plan."""

    strategy: str
    why: str


def choose(
    *,
    objective: Objective | None,
    deadline: float | None,
    budget: float | None,
    trials: int | None,
    free: bool = False,
    counts_gpu_hours: bool = False,
    resumes: bool = True,
) -> Chosen:
    """Return the strategy for the given fields; `deadline` in seconds, `budget` in US dollars.

    With `free` the GPUs have no price, so there can be no budget. With `counts_gpu_hours` others
    use them, too, and dollars stand for GPU-hours. `resumes`: whether a trial can resume from a
    checkpoint.
    """
    if objective == "best":
        return _search(
            "the best model within the limits, as --objective best asks", resumes=resumes
        )
    if objective is not None:
        aim = {"cost": "cheapest", "time": "fastest", "trials": "largest"}[objective]
        return Chosen(FIXED, f"the {aim} plan, as --objective {objective} asks")
    if budget is not None or (free and deadline is not None and trials is None):
        cost = format_gpu_hours if counts_gpu_hours else format_dollars
        limits = " and ".join(limit_texts(deadline, budget, cost=cost))
        return _search(_why_best(limits, trials), resumes=resumes)
    if not resumes and trials is not None:
        return _search(f"{trials:,} configurations", resumes=resumes)
    fewest = "the fewest GPU-hours" if counts_gpu_hours else "the cheapest way"
    if deadline is None:
        return Chosen(FIXED, f"no limit is set: {fewest} to train these trials")
    more = "with a budget too it would search for the best model within both"
    if counts_gpu_hours:
        more = (
            "--objective best searches for the best model with all GPUs until then, and "
            "limits.gpu_hours with a part of them"
        )
    return Chosen(FIXED, f"only a deadline is set: {fewest} to be done by then; {more}")


def _search(why: str, *, resumes: bool) -> Chosen:
    return Chosen(BEST, why) if resumes else Chosen(STAYING, f"{why}; {_STAYS}")


def _why_best(limits: str, trials: int | None) -> str:
    why = f"the best model that {limits} can buy"
    if trials is None:
        return why
    return (
        f"{why}, from at most {trials:,} configurations "
        f"(--objective cost trains {trials:,} as cheaply as possible)"
    )


def bracket(min_epochs: int, max_epochs: int, eta: int) -> int:
    """Return the trials of one bracket of successive halving, within sensible bounds.

    That is how many it takes for one to reach the last epoch if one in `eta` continues.
    """
    trials = 1
    epoch = min_epochs
    while epoch * eta <= max_epochs and trials < _LARGEST:
        trials *= eta
        epoch *= eta
    return max(_SMALLEST, min(_LARGEST, trials))

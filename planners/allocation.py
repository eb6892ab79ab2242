"""Who trains how wide, and where, when the trials of a stage differ: all at once, no waves.

An integer program over kinds of trials and sizes of instances. What fits together is written as
patterns: the ways to share out one GPU among fractions, and the ways to cut one instance into
widths, so that no two equal trials, GPUs or instances are told apart while searching. A share lies
on one GPU: three of 0.6 don't fit on two GPUs. A trial within an instance sits on one; a wider one
takes whole instances of one size.

The least makespan is one of the seconds given, so it is found by bisection over them. Whether all
fit within a makespan is asked of the narrowest widths that are fast enough alone: wherever a wide
trial sits, a narrower one could.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.planners.packing import Kind, Packing
from cloudtune.planners.seating import Seat, seated
from cloudtune.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.planners.solver import SolveStatus
    from cloudtune.trial import TrialId, Width

Goal: TypeAlias = Literal["makespan", "gpu_seconds"]

_SAME = 1e-9


@dataclass(frozen=True)
class Task:
    """A trial's part of the stage: its seconds at every width that it can run at."""

    id: TrialId
    seconds: Mapping[Width, float]


@dataclass(frozen=True)
class Allocation:
    """A seat for every task, in the order of the tasks.

    `gap` bounds how much longer (or dearer, by objective) this is than the best there is, as a
    share: 0 where proven the best, None where nothing is known. `status`: "optimal" or "feasible".
    """

    seats: tuple[Seat, ...]
    gap: float | None
    status: str

    @property
    def makespan(self) -> float:
        """Seconds until the last one is done."""
        return max((seat.seconds for seat in self.seats), default=0.0)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that are taken, by each until it is done itself."""
        return math.fsum(seat.gpu_seconds for seat in self.seats)


def allocate(
    tasks: Sequence[Task],
    machines: Mapping[str, int],
    *,
    objective: Goal = "makespan",
    deadline: float | None = None,
    nodes: int | None = None,
) -> Allocation:
    """Return the allocation of least makespan, or of least GPU-seconds within the deadline.

    `machines`: the GPUs of each instance, all of them empty. Of allocations of the least makespan
    it is one of least GPU-seconds. `nodes` bounds each search; see `Allocation.gap`.

    Raises:
        InfeasibleError: they don't fit all at once, or not within the deadline.
        UsageError: a width above 1 is no whole number, or the search was cut before it found one.
    """
    _check(tasks)
    if not tasks:
        return Allocation((), 0.0, "optimal")
    stage = _Stage(tasks, machines, nodes)
    if objective == "makespan":
        return stage.soonest(deadline)
    return stage.thriftiest(math.inf if deadline is None else deadline)


def _check(tasks: Sequence[Task]) -> None:
    for task in tasks:
        for width in task.seconds:
            if width <= 0 or (width > 1 and width != round(width)):
                raise UsageError(
                    f"trial {task.id} has a width of {width:g} GPUs; "
                    "a width is a share of one GPU or a whole number of GPUs"
                )


class _Answer(NamedTuple):
    """What one search gave; `bound` is of the GPU-seconds."""

    status: SolveStatus
    bound: float | None = None
    seats: tuple[Seat, ...] | None = None


class _Stage:
    """All searches for one set of tasks and machines."""

    def __init__(
        self, tasks: Sequence[Task], machines: Mapping[str, int], nodes: int | None
    ) -> None:
        self._tasks, self._nodes = tasks, nodes
        self._machines = {name: gpus for name, gpus in machines.items() if gpus > 0}
        alike: dict[tuple[tuple[Width, float], ...], list[TrialId]] = {}
        for task in tasks:
            alike.setdefault(tuple(sorted(task.seconds.items())), []).append(task.id)
        self._kinds = [Kind(dict(key), tuple(names)) for key, names in alike.items()]

    def soonest(self, deadline: float | None) -> Allocation:
        """Return the allocation of least makespan, and of those one of least GPU-seconds."""
        times = sorted({taken for kind in self._kinds for taken in kind.seconds.values()})
        proven, best = self._bisect(times)
        if best is None:
            raise self._nothing_fits(cut_short=proven < len(times))
        if deadline is not None and times[best] > deadline:
            if times[proven] <= deadline:
                raise _cut_short()
            raise _too_late(deadline, times[best])
        gap = times[best] / times[proven] - 1 if times[proven] > 0 else None
        gap = 0.0 if best == proven else gap
        status = "optimal" if gap == 0.0 else "feasible"
        seats = self._solve(times[best]).seats
        if seats is None:
            seats = self._solve(times[best], narrowest=True).seats
        assert seats is not None, "what fitted a moment ago fits now"
        return Allocation(seats, gap, status)

    def _bisect(self, times: Sequence[float]) -> tuple[int, int | None]:
        """Return the first time that isn't proven too short, and the first that was met."""
        proven, low, best = 0, 0, None
        high = len(times)
        while low < high:
            middle = (low + high) // 2 if best is not None else high - 1
            answer = self._solve(times[middle], narrowest=True)
            if answer.seats is not None:
                best = high = middle
                continue
            low = middle + 1
            if answer.status == "infeasible":
                proven = low
        return proven, best

    def thriftiest(self, deadline: float) -> Allocation:
        """Return the allocation of least GPU-seconds within a deadline."""
        status, bound, seats = self._solve(deadline)
        if seats is None:
            if status != "infeasible":
                raise _cut_short()
            raise _too_late(deadline, self.soonest(None).makespan)
        spent = math.fsum(seat.gpu_seconds for seat in seats)
        if status == "optimal" or (bound is not None and spent <= bound * (1 + _SAME)):
            return Allocation(seats, 0.0, "optimal")
        gap = spent / bound - 1 if bound is not None and bound > 0 else None
        return Allocation(seats, gap, "feasible")

    def _solve(self, deadline: float, *, narrowest: bool = False) -> _Answer:
        widths = [kind.within(deadline)[: 1 if narrowest else None] for kind in self._kinds]
        if not all(widths) or not self._machines:
            return _Answer("infeasible")
        packing = Packing(self._kinds, widths, sorted(set(self._machines.values())))
        solved = packing.solve(self._machines, self._nodes, thrifty=not narrowest)
        if solved.status not in ("optimal", "feasible"):
            return _Answer(solved.status)
        return _Answer(solved.status, solved.bound, self._seats(packing))

    def _seats(self, packing: Packing) -> tuple[Seat, ...]:
        seats = seated(self._machines, packing.pieces(), packing.cuts(), packing.shares())
        by_name = {seat.task: seat for seat in seats}
        return tuple(by_name[task.id] for task in self._tasks)

    def _nothing_fits(self, *, cut_short: bool) -> Exception:
        if cut_short:
            return _cut_short()
        gpus = " + ".join(map(str, self._machines.values())) or "no"
        return InfeasibleError(
            f"{len(self._tasks)} trials don't fit at once on {gpus} GPUs, each as narrow as it "
            "can be; rent more instances, or measure narrower widths",
            None,
            None,
        )


def _too_late(deadline: float, fastest: float) -> InfeasibleError:
    return InfeasibleError(
        f"no allocation has every trial done within {format_seconds(deadline)}; "
        f"the fastest takes {format_seconds(fastest)}",
        None,
        None,
    )


def _cut_short() -> UsageError:
    return UsageError(
        "the allocation was cut short before it was clear whether the trials fit; allow more nodes"
    )

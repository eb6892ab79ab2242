from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.errors import InfeasibleError, UsageError
from cloudtune.planners import packing
from cloudtune.planners.allocation import Allocation, Task, allocate
from cloudtune.planners.solver import Solved, SolveStatus, solve
from cloudtune.trial import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FREE = 1 + 1e-6
WIDTHS = [0.25, 1 / 3, 0.4, 0.5, 0.6, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]


def every_allocation(
    tasks: Sequence[Task], free: dict[str, list[float]]
) -> Iterator[tuple[float, float]]:
    """Yield makespan and GPU-seconds of each way to seat tasks GPU by GPU; `free` is by GPU."""
    if not tasks:
        yield 0.0, 0.0
        return
    for width, seconds in tasks[0].seconds.items():
        for spots in every_spot(width, free):
            taken = min(width, 1.0)
            for name, gpu in spots:
                free[name][gpu] -= taken
            for makespan, spent in every_allocation(tasks[1:], free):
                yield max(seconds, makespan), spent + taken * len(spots) * seconds
            for name, gpu in spots:
                free[name][gpu] += taken


def every_spot(width: float, free: Mapping[str, list[float]]) -> Iterator[list[tuple[str, int]]]:
    """Yield the GPUs that one trial may have: within an instance, or several whole ones alike."""
    for name, gpus in free.items():
        if width < 1:
            yield from ([(name, gpu)] for gpu, left in enumerate(gpus) if left + 1e-6 >= width)
        elif width <= len(gpus):
            empty = [gpu for gpu, left in enumerate(gpus) if left > 1 - 1e-6]
            if len(empty) >= width:
                yield [(name, gpu) for gpu in empty[: round(width)]]
    for size in {len(gpus) for gpus in free.values() if len(gpus) < width}:
        whole = [name for name in free if len(free[name]) == size and min(free[name]) > 1 - 1e-6]
        for some in itertools.combinations(whole, math.ceil(width / size)):
            yield [(name, gpu) for name in some for gpu in range(size)]


def check(tasks: Sequence[Task], machines: Mapping[str, int], found: Allocation) -> None:
    """Check that every trial has a seat as wide as it should be, and no GPU is taken twice."""
    taken: dict[tuple[str, int], float] = {}
    assert [seat.task for seat in found.seats] == [task.id for task in tasks]
    for task, seat in zip(tasks, found.seats, strict=True):
        assert seat.seconds == task.seconds[seat.width]
        assert sum(piece.gpus for piece in seat.slices) == pytest.approx(seat.width)
        if len(seat.slices) > 1:
            assert all(len(seat.gpus) == machines[piece.instance] for piece in seat.slices)
        else:
            assert len(seat.gpus) == max(1, seat.width)
        for piece, gpu in itertools.product(seat.slices, seat.gpus):
            assert gpu < machines[piece.instance]
            key = (piece.instance, gpu)
            taken[key] = taken.get(key, 0.0) + min(seat.width, 1.0)
    assert all(share < FREE for share in taken.values())


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Task], dict[str, int]]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    machines = {f"i{n}": gpus for n, gpus in enumerate(sizes)}
    seconds = st.integers(1, 9).map(float)
    curves = st.dictionaries(st.sampled_from(WIDTHS), seconds, min_size=1, max_size=3)
    tasks = [Task(f"t{n}", draw(curves)) for n in range(draw(st.integers(1, 4)))]
    return tasks, machines


@given(cases())
@settings(max_examples=120, deadline=None)
def test_it_is_as_good_as_the_best_of_all(case: tuple[list[Task], dict[str, int]]) -> None:
    tasks, machines = case
    free = {name: [1.0] * gpus for name, gpus in machines.items()}
    everything = sorted(every_allocation(tasks, free))
    if not everything:
        with pytest.raises(InfeasibleError, match="don't fit at once"):
            allocate(tasks, machines)
        return
    soonest = allocate(tasks, machines)
    check(tasks, machines, soonest)
    assert (soonest.gap, soonest.status) == (0.0, "optimal")
    assert (soonest.makespan, soonest.gpu_seconds) == pytest.approx(everything[0])
    for deadline in {makespan for makespan, _ in everything}:
        thrifty = allocate(tasks, machines, objective="gpu_seconds", deadline=deadline)
        check(tasks, machines, thrifty)
        assert (thrifty.gap, thrifty.status) == (0.0, "optimal")
        assert thrifty.makespan <= deadline
        within = [spent for makespan, spent in everything if makespan <= deadline]
        assert thrifty.gpu_seconds == pytest.approx(min(within))


def test_the_slow_one_gets_the_wide_seat() -> None:
    tasks = [
        Task("slow", {1.0: 20.0, 2.0: 11.0, 4.0: 6.0}),
        Task("fast", {1.0: 5.0, 2.0: 4.0}),
        Task("mean", {1.0: 10.0, 2.0: 6.0, 4.0: 4.0}),
    ]
    found = allocate(tasks, {"i-1": 4, "i-2": 4})
    assert [seat.width for seat in found.seats] == [4.0, 1.0, 2.0]
    assert (found.makespan, found.gpu_seconds) == (6.0, 24.0 + 5.0 + 12.0)


def test_a_share_lies_on_one_gpu() -> None:
    tasks = [Task(f"t{n}", {0.6: 3.0}) for n in range(3)]
    with pytest.raises(InfeasibleError, match=r"3 trials don't fit at once on 2 GPUs"):
        allocate(tasks, {"i-1": 2})
    assert {seat.gpus for seat in allocate(tasks, {"i-1": 3}).seats} == {(0,), (1,), (2,)}
    halves = [Task(f"t{n}", {0.5: 3.0}) for n in range(4)]
    assert sorted(seat.gpus for seat in allocate(halves, {"i-1": 2}).seats) == [
        (0,), (0,), (1,), (1,)
    ]  # fmt: skip


def test_a_trial_wider_than_an_instance_takes_whole_ones() -> None:
    found = allocate([Task("t0", {6.0: 5.0})], {"i-1": 4, "i-2": 4, "i-3": 2})
    assert found.seats[0].slices == (Slice("i-1", 3.0), Slice("i-2", 3.0))
    assert found.gpu_seconds == 8 * 5.0
    with pytest.raises(InfeasibleError, match=r"2 trials don't fit at once on 4 \+ 4 GPUs"):
        allocate([Task("t0", {6.0: 5.0}), Task("t1", {0.5: 5.0})], {"i-1": 4, "i-2": 4})


def test_a_curve_need_not_be_monotone() -> None:
    found = allocate([Task("t0", {1.0: 8.0, 4.0: 2.5, 8.0: 3.8})], {"i-1": 4, "i-2": 4})
    assert found.seats[0].width == 4.0


def test_a_deadline_too_soon_names_the_fastest() -> None:
    tasks = [Task("t0", {1.0: 100.0, 2.0: 60.0})]
    for objective in ("makespan", "gpu_seconds"):
        with pytest.raises(InfeasibleError, match=r"within 50s; the fastest takes 1m"):
            allocate(tasks, {"i-1": 2}, objective=objective, deadline=50.0)


def test_nothing_to_do_needs_nothing() -> None:
    assert allocate([], {}) == Allocation((), 0.0, "optimal")
    with pytest.raises(InfeasibleError, match="don't fit at once on no GPUs"):
        allocate([Task("t0", {1.0: 1.0})], {})


def test_half_a_gpu_too_many_is_a_mistake() -> None:
    with pytest.raises(UsageError, match=r"trial t0 has a width of 1\.5 GPUs"):
        allocate([Task("t0", {1.5: 1.0})], {"i-1": 4})


TWO = ([Task("t0", {1.0: 9.0, 2.0: 5.0}), Task("t1", {1.0: 8.0, 2.0: 7.0})], {"i-1": 3})


def answering(monkeypatch: pytest.MonkeyPatch, *statuses: SolveStatus, bound: float = 1.0) -> None:
    """Let the solver answer like this, search by search: for optima are all found at once."""
    answers = iter(statuses)

    def answer(problem: object, nodes: int | None) -> Solved:
        solved = solve(problem, nodes)
        assert solved.bound is not None
        return replace(solved, status=next(answers), bound=solved.bound * bound)

    monkeypatch.setattr(packing, "solve", answer)


def test_a_search_cut_short_says_how_far_off_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "feasible", bound=0.8)
    found = allocate(*TWO, objective="gpu_seconds")
    assert (found.gpu_seconds, found.status) == (17.0, "feasible")
    assert found.gap == pytest.approx(0.25)


def test_a_makespan_is_the_least_only_if_all_less_are_proven_too_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = [Task("t0", {1.0: 9.0, 2.0: 8.0, 3.0: 7.0, 4.0: 6.0})]
    answering(monkeypatch, "feasible", "infeasible", "unknown", "optimal")
    found = allocate(tasks, {"i-1": 4})
    assert (found.makespan, found.status) == (9.0, "feasible")
    assert found.gap == pytest.approx(9 / 8 - 1)


def test_a_search_cut_before_it_found_anything_is_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for objective in ("makespan", "gpu_seconds"):
        answering(monkeypatch, "unknown")
        with pytest.raises(UsageError, match="cut short before it was clear"):
            allocate(*TWO, objective=objective)


def test_many_trials_are_no_trouble() -> None:
    tasks = [
        Task(f"t{n}", {0.5: 9 + n / 3, 1.0: 5 + n / 5, 2.0: 3 + n / 10, 4.0: 2 + n / 14})
        for n in range(60)
    ]
    machines = {f"i-{n}": 4 if n < 20 else 8 for n in range(24)}
    found = allocate(tasks, machines)
    check(tasks, machines, found)
    assert found.status == "optimal"

from __future__ import annotations

import random

import pytest

from benchmarks.compare.pools import SpotTrace
from benchmarks.spot_single import (
    ON_DEMAND,
    PAPER,
    SPOT,
    Job,
    Policy,
    bound,
    carried_out,
    compared,
    knows,
    row,
    there,
)

JOB = Job(work=2.0, deadline=2.5, changeover=0.1)
TICKS = JOB.ticks(JOB.deadline)


def drawn(seed: int) -> SpotTrace:
    """Return a pool that comes and goes every quarter of an hour or so."""
    dice = random.Random(seed)
    starts = [0.0]
    while starts[-1] < 9000.0:
        starts.append(starts[-1] + dice.expovariate(1 / 900.0))
    rooms = tuple(n % 2 for n in range(len(starts)))
    return SpotTrace("drawn", tuple(starts), rooms, starts[-1] + 60.0)


@pytest.mark.parametrize("policy", PAPER.values())
def test_spot_that_stays_is_held_from_begin_to_end(policy: Policy) -> None:
    came = carried_out(JOB, policy, [True] * TICKS)
    assert came.dollars == pytest.approx(2.1 * SPOT)
    assert came.dollars == pytest.approx(knows(JOB, [True] * TICKS).dollars)


def test_without_spot_greedy_waits_and_uniform_progress_does_not() -> None:
    never = [False] * TICKS
    for policy in PAPER.values():
        came = carried_out(JOB, policy, never)
        assert not came.late
        assert came.dollars >= 2.1 * ON_DEMAND - 1e-9
    assert knows(JOB, never).dollars == pytest.approx(2.1 * ON_DEMAND)
    assert carried_out(JOB, PAPER["greedy"], never).on_demand_hours == pytest.approx(2.1)


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_late_and_nobody_beats_who_knows(seed: int) -> None:
    spot = there(drawn(seed), 0.0, TICKS)
    least = knows(JOB, spot)
    assert bound(JOB, drawn(seed), 0.0) <= least.dollars + 1e-9
    for policy in PAPER.values():
        came = carried_out(JOB, policy, spot)
        assert not came.late
        assert came.dollars >= least.dollars - 1e-9
        assert came.dollars == pytest.approx(
            came.on_demand_hours * ON_DEMAND + came.spot_hours * SPOT
        )


def test_ours_is_on_time_and_stands_in_the_table() -> None:
    found = compared(Job(work=2.0, deadline=4.0, changeover=0.1), drawn(1), 1, [1, 2])
    for most in (1, 2):
        (came,) = found[f"ours {most}"]
        assert not came.late
        assert came.dollars >= found["bound"][0].dollars
    assert row("drawn", found).count("|") == len(found) + 2

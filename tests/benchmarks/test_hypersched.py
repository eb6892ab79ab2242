from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.hypersched import CHOICES, DEADLINES, Bench, outcomes, table

SEEDS = range(1, 6)


@pytest.mark.parametrize("deadline", DEADLINES)
def test_h23_hypersched_finds_no_worse_than_asha_and_starts_fewer_trials(deadline: float) -> None:
    found = {name: outcomes(Bench(), name, deadline, SEEDS) for name in CHOICES}
    best = {name: fmean(each.best for each in of) for name, of in found.items()}
    trials = {name: fmean(each.trials for each in of) for name, of in found.items()}
    for name in ("asha", "asha, stopping"):
        assert best["hypersched"] >= best[name]
        assert trials["hypersched"] < trials[name]
    sessions = {name: fmean(each.sessions for each in of) for name, of in found.items()}
    assert sessions["hypersched-patient"] <= sessions["hypersched"]


def test_curves_are_the_same_by_their_seed_and_rise() -> None:
    one, other = Bench(trials=3).curves(1), Bench(trials=3).curves(1)
    assert one == other
    assert all(curve[-1] > curve[0] for curve in one)
    assert one != Bench(trials=3).curves(2)


def test_the_table_has_what_was_published_beside_it() -> None:
    lines = table(Bench(trials=8), [1])
    assert len(lines) == 1 + 4 * len(DEADLINES)
    assert lines[3].endswith("published: 0.879, 14 trials")

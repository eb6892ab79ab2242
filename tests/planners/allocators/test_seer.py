"""How wide SEER trains, and what it keeps of its fleet, at the end of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtune.plan import Limits
from cloudtune.simulation.case import Case, play
from cloudtune.simulation.curves import Curve, Curves
from cloudtune.simulation.speed_table import Scaling
from tests.builders.curves import small_benchmark

LINEAR = Scaling({1.0: 1.0, 2.0: 2.0, 4.0: 4.0})


def test_the_last_trial_gets_the_gpus_with_which_it_still_reaches_most() -> None:
    """Nothing is left to explore once the short trial has ended: the other gets four GPUs.

    5 s launch, 30 boot, 4 start: the first epochs, on one GPU each, end at 99. With what is left on
    one GPU the other trial would get to its third epoch, at 219. At 99 it stops, and 6 s later goes
    on with four: 15 s an epoch, the next would end at 240, the deadline.
    """
    short = Curve("c0", (0.001,), 1)
    long = Curve("c1", tuple(epoch / 100 for epoch in range(1, 28)), 27)
    made = small_benchmark(Curves("acc", "max", (short, long)), gpus=1, spread=0.0, scaling=LINEAR)
    found = play(replace(made, max_instances=4), Case("seer", Limits(240.0), sampler="random"))
    assert [count for _, count in found.fleet] == [4, 0]
    assert found.winner == "c1"
    ends = [point.at for point in found.path if point.trial == "c1"]
    assert ends[-1] > 219
    assert found.epochs >= 6


def test_the_end_has_fewer_instances_than_exploring_and_each_goes_once() -> None:
    """Exploring takes one and a half times the money by the second, the end half of it."""
    rising = [tuple(n / 100 + e / 1000 for e in range(1, 28)) for n in range(60)]
    table = Curves("acc", "max", tuple(Curve(f"c{n}", v, 27) for n, v in enumerate(rising)))
    made = small_benchmark(table, gpus=4, spread=0.0, scaling=LINEAR)
    found = play(made, Case("seer", Limits(3000.0, 30.0), sampler="random"))
    sizes = [count for _, count in found.fleet]
    top = sizes.index(max(sizes))
    assert sizes[: top + 1] == sorted(sizes[: top + 1])
    assert sizes[top:] == sorted(sizes[top:], reverse=True)
    assert 0 < sizes[-2] < max(sizes)
    assert found.flaps == ()
    assert found.regret == pytest.approx(0.0, abs=0.011)

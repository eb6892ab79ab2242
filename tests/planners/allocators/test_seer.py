"""What SEER keeps of its fleet at the end of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtune.plan import Limits
from cloudtune.simulation.case import Case, play
from cloudtune.simulation.curves import Curve, Curves
from cloudtune.simulation.speed_table import Scaling
from tests.builders.curves import small_benchmark


def test_gpus_that_a_trial_gets_at_its_next_result_are_not_given_back_before() -> None:
    """Nothing will start any more, and three of four GPUs are empty: but the last trial gains by 4.

    5 s launch, 30 boot, 4 start: the first epochs, on one GPU each, end at 99. One trial is at its
    end by then, and too little time is left for others. The second trial trains another epoch, to
    159, where it gets all four GPUs. 6 s resize: its epochs end at 180, 195, 210, 225; the next
    would end at 240, the deadline. On one GPU it would get to the third epoch, at 219.
    """
    short = Curve("c0", (0.001,), 1)
    long = Curve("c1", tuple(epoch / 100 for epoch in range(1, 28)), 27)
    speeds = Scaling({1.0: 1.0, 2.0: 2.0, 4.0: 4.0})
    made = small_benchmark(Curves("acc", "max", (short, long)), gpus=1, spread=0.0, scaling=speeds)
    found = play(replace(made, max_instances=4), Case("seer", Limits(240.0), sampler="random"))
    assert [count for _, count in found.fleet] == [4, 0]
    assert (found.winner, found.epochs) == ("c1", 6)
    ends = [point.at for point in found.path if point.trial == "c1"]
    assert ends == pytest.approx([99, 159, 180, 195, 210, 225])

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from cloudtune.papers.hypersched_rules import Admission, Cutoff, Overhead, Switches
from cloudtune.strategies.base import View


def rung(*scores: float, eta: int, ranked: bool = False) -> Cutoff:
    """Return a rung with records of trials t0, t1 …"""
    made = Cutoff(1, eta, ranked=ranked)
    for number, score in enumerate(scores):
        made.record(f"t{number}", score)
    return made


def test_equal_records_all_pass() -> None:
    """Though 0.1 + 0.2 and their like don't come out even."""
    score = 0.1 + 0.2
    alike = rung(*[score] * 7, eta=3)
    assert all(alike.passes(f"t{n}") for n in range(7))


def test_rank_rule_passes_floor_n_over_eta() -> None:
    ranked = rung(0.5, 0.4, 0.3, 0.9, 0.1, 0.2, 0.0, 0.8, eta=4, ranked=True)
    assert [n for n in range(8) if ranked.passes(f"t{n}")] == [3, 7]


def test_an_infinite_record_is_a_record() -> None:
    assert rung(-float("inf"), 0.2, 0.3, eta=2).value == 0.2
    assert not rung(-float("inf"), 0.2, eta=2).passes("t0")


def test_h13_overhead_follows_the_setups_as_they_come() -> None:
    setups, overhead = list[float](), Overhead()
    view = cast("View", SimpleNamespace(setups=setups))
    for more in ([], [4.0, 2.0], [8.0]):
        setups.extend(more)
        expected = np.percentile(setups, 90) if setups else 0.0
        assert overhead.seconds(view) == pytest.approx(expected)


def test_first_start_ignores_remaining_time() -> None:
    admission = Admission(max_epochs=64, eta=4, atom=1.0, switches=Switches())
    view = cast("View", SimpleNamespace(setups=[], seconds_left=0.5))
    assert admission.admits(view)

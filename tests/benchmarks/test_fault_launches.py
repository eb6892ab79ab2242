"""The fault campaign on launching, cut short, and that it would find what it looks for."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from benchmarks.fault_launches import campaign
from cloudtune.infra import autoscaler

if TYPE_CHECKING:
    import pytest


def test_nothing_is_bought_twice_or_left_behind() -> None:
    tally = campaign(250, seed=0)  # 47, 218, 220: an answer lost, and then a refusal
    assert (tally.bought_twice, tally.instances_left, tally.unknown) == (0, 0, 0)
    assert tally.deaths > 100
    assert set(tally.faults) == {"throttled", "answer lost", "refused"}


def test_a_token_of_its_own_for_each_call_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()
    monkeypatch.setattr(autoscaler, "launch_token", lambda *_: str(next(count)))
    assert campaign(150, seed=0).bought_twice > 0

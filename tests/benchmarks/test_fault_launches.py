"""The fault campaign on launching, cut short, and that it would find what it looks for."""

import pytest

from benchmarks.fault_launches import HostileEc2, campaign


def test_nothing_is_bought_twice_or_left_behind() -> None:
    tally = campaign(250, seed=0)  # 47, 218, 220: an answer lost, and then a refusal
    assert tally.seeds == []
    assert [tally.counts[what] for what in ("bought twice", "instances left", "unknown")] == [0] * 3
    assert tally.counts["deaths"] > 100
    assert all(tally.counts[what] for what in ("throttled", "answer lost", "refused"))


def test_ec2_without_tokens_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostileEc2, "launched_by", lambda _self, _token: None)
    assert campaign(150, seed=0).counts["bought twice"] > 0

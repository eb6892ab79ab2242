"""The fault campaign in virtual time, cut short, and that it would find what it looks for."""

import math
from dataclasses import replace

import pytest

from benchmarks.fault_world import OutlivingCloud
from benchmarks.faults import campaign, case
from cloudtune.engine.resume import InFlight
from cloudtune.policy.run import RunPolicy


def test_short_campaign_loses_nothing() -> None:
    tally = campaign(40, seed=52_000)
    assert tally.seeds == {}
    assert tally.deaths > 40
    assert tally.compared > 5
    assert set(tally.endings) >= {"done", "deadline", "budget"}


def test_hypersched_goes_on_while_a_lost_trial_waits() -> None:
    """Another trial reports, and its share is worked out with that of one that is nowhere."""
    assert case(4610).strategy == "hypersched"
    assert campaign(1, seed=4610).seeds == {}


def test_leases_without_an_end_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunPolicy, "safe_until", lambda _self: math.inf)
    assert "dollars over budget" in campaign(5, seed=50_070).seeds


def test_a_takeover_that_buys_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take_over = OutlivingCloud.take_over

    def buys_again(self: OutlivingCloud, in_flight: InFlight) -> None:
        for span in tuple(in_flight.instances.values()):
            again = f"{span.intent}-again"
            launch = replace(span.launch, intent=again)
            in_flight.instances[again] = replace(span, intent=again, launch=launch)
        take_over(self, in_flight)

    monkeypatch.setattr(OutlivingCloud, "take_over", buys_again)
    with pytest.raises(KeyError, match="again"):  # an event of what the policy never asked for
        campaign(60, seed=52_000)

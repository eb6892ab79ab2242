"""Jobs of all shapes, for every strategy that has a name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtune.model.commands import EndRun
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.registry import STRATEGIES
from tests.builders import Setting, by_name, gone, level, offer, play, profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.builders import Mishap

    Metric = Callable[[int, int], float]


def curves(seed: int, bad: int) -> Metric:
    """Return curves of which some end in nan; with a seed of 0 all are equal."""

    def metric(number: int, epoch: int) -> float:
        if bad and (number * 3 + epoch) % bad == 0:
            return math.nan
        return level(number, epoch, seed) if seed else 0.5

    return metric


def trouble(fails: int, loses: int) -> Mishap:
    """Return a trouble that comes to each so many-th first session, and not for ever."""

    def found(trial: str, session: int, epoch: int) -> str:
        mark = int(trial[1:]) * 5 + epoch + session
        if fails and mark % fails == 0:
            return "failed"
        return "lost" if loses and session <= 2 and mark % loses == 0 else ""

    return found  # type: ignore[return-value]


@st.composite
def games(draw: st.DrawFn) -> Setting:
    """Give jobs of up to 24 trials on up to three instances, with all that can go wrong."""
    caps = st.dictionaries(st.integers(0, 23), st.integers(1, 12), max_size=6)
    seconds = st.floats(0.0, 20.0)
    return Setting(
        draw(st.integers(1, 24)),
        caps=draw(caps),
        metric=curves(draw(st.integers(0, 50)), draw(st.sampled_from([0, 0, 5, 11]))),
        mode=draw(st.sampled_from(["min", "max"])),
        offer=offer(draw(st.sampled_from([1, 2, 4]))),
        max_instances=draw(st.integers(1, 3)),
        naive=draw(st.booleans()),
        width=draw(st.sampled_from([0.5, 1.0])),
        profile=profile(
            {0.5: 14.0, 1.0: 8.0},
            launch=draw(seconds),
            boot=draw(seconds),
            start=draw(seconds),
            resize=draw(seconds),
            release=draw(seconds),
            spread=draw(st.sampled_from([0.0, 0.15])),
        ),
        limits=Limits(
            draw(st.none() | st.floats(1.0, 900.0)), draw(st.none() | st.floats(0.1, 12.0))
        ),
        max_concurrent=draw(st.none() | st.integers(1, 5)),
        seed=draw(st.integers(0, 99)),
        saves_every=draw(st.integers(1, 4)),
        trouble=gone(
            draw(st.dictionaries(st.sampled_from(["i000", "i001", "i002"]), st.floats(30.0, 300.0)))
        ),
        mishap=trouble(draw(st.sampled_from([0, 0, 7])), draw(st.sampled_from([0, 0, 4]))),
    )


@pytest.mark.parametrize("name", STRATEGIES)
@given(game=games(), first=st.integers(1, 3), last=st.integers(1, 12), eta=st.integers(2, 4))
@settings(max_examples=12)
def test_any_job_ends_within_its_limits(
    name: str, game: Setting, first: int, last: int, eta: int
) -> None:
    build = by_name(name, min_epochs=min(first, last), max_epochs=last, eta=eta)
    played = play(game, build)
    seconds, dollars = played.bill()
    assert game.limits.deadline is None or seconds <= game.limits.deadline
    assert game.limits.budget is None or dollars <= game.limits.budget + 1e-9
    for trial in game.given:
        assert played.epochs.get(trial.id, 0) <= min(last, trial.epochs or last)
    assert played.max_at_once() <= (game.max_concurrent or math.inf)
    assert sum(isinstance(c, EndRun) for said in played.commands for c in said) == 1
    if game.limits == Limits():
        assert played.policy.ending in {EndReason.DONE, EndReason.FAILED}
        assert not any(trial.status == "waiting" for trial in played.policy.trials.values())

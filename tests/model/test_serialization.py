import json
import typing
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model import commands, events
from cloudtune.model.plans import Charges, Limits, Plan, Rentable
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.serialization import decode, decode_kind, encode, encode_kind
from cloudtune.model.trial import EndReason, Slice
from cloudtune.planners.base import PlanRequest
from tests.builders import NODE_BOUNDARY, Setting, by_hand, group, grouped, offer, profile

CHARGES = Charges(0.25, 0.001)
words = st.text(max_size=20)
moments = st.floats(0.0, 1e9)
numbers = st.floats(allow_nan=False)
maybe_words = st.none() | words
configs = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
widths = st.sampled_from([1 / 7, 1 / 3, 0.5, 1.0, 2.0, 16.0])
places = st.lists(st.builds(Slice, words, widths), max_size=3).map(tuple)
epochs = st.integers(0, 10**9)

KINDS: dict[type, st.SearchStrategy[Any]] = {
    events.RunStarted: st.builds(events.RunStarted, moments),
    events.InstanceLaunched: st.builds(events.InstanceLaunched, moments, words, words, moments),
    events.NodeJoined: st.builds(events.NodeJoined, moments, words),
    events.NodeLost: st.builds(events.NodeLost, moments, words, words),
    events.InterruptionNotice: st.builds(events.InterruptionNotice, moments, words, moments),
    events.InstanceGone: st.builds(events.InstanceGone, moments, words, moments, words),
    events.LaunchFailed: st.builds(
        events.LaunchFailed,
        moments,
        words,
        words,
        words,
        st.booleans(),
        st.sampled_from(get_args(events.RefusalKind)),
    ),
    events.TrialStarted: st.builds(events.TrialStarted, moments, words),
    events.EpochDone: st.builds(
        events.EpochDone,
        moments,
        words,
        epochs,
        st.dictionaries(words, numbers, max_size=3),
        maybe_words,
        moments,
        st.none() | st.booleans(),
        moments,
    ),
    events.TrialStopped: st.builds(events.TrialStopped, moments, words),
    events.TrialFailed: st.builds(events.TrialFailed, moments, words, words, words, st.booleans()),
    events.TrialLost: st.builds(events.TrialLost, moments, words, words, st.booleans()),
    events.TimerFired: st.builds(events.TimerFired, moments, words),
    events.RunResumed: st.builds(events.RunResumed, moments),
    events.RunContinued: st.builds(
        events.RunContinued, moments, st.none() | moments, st.none() | moments
    ),
    events.Interrupted: st.builds(events.Interrupted, moments),
    commands.Launch: st.builds(commands.Launch, words, words, words, words),
    commands.Release: st.builds(commands.Release, words),
    commands.StartTrial: st.builds(
        commands.StartTrial,
        words,
        words,
        st.dictionaries(words, configs, max_size=3),
        widths,
        places,
        maybe_words,
        epochs,
        epochs,
    ),
    commands.ExtendTrial: st.builds(commands.ExtendTrial, words, epochs),
    commands.StopTrial: st.builds(commands.StopTrial, words, st.booleans()),
    commands.SetTimer: st.builds(commands.SetTimer, words, moments),
    commands.PlanAnew: st.builds(commands.PlanAnew, epochs, words, words, moments, numbers),
    commands.EndRun: st.builds(commands.EndRun, st.sampled_from(EndReason)),
}


def through_json(value: object) -> Any:
    return json.loads(json.dumps(value))


def test_no_kind_is_missing_here() -> None:
    assert set(KINDS) == {*typing.get_args(events.Event), *typing.get_args(commands.Command)}


@given(value=st.one_of(list(KINDS.values())))
def test_every_event_and_command_reads_back_equal(value: Any) -> None:
    again = decode_kind(through_json(encode_kind(value)))
    assert again == value
    assert type(again) is type(value)
    assert encode_kind(again) == encode_kind(value)


def test_a_kind_says_what_it_is() -> None:
    assert encode_kind(commands.EndRun(EndReason.DONE)) == {"type": "EndRun", "reason": "done"}
    with pytest.raises(KeyError, match="Explode"):
        decode_kind({"type": "Explode"})


def test_metrics_that_are_no_numbers_survive() -> None:
    told = events.EpochDone(1.0, "t00.1", 1, {"a": float("nan"), "b": float("inf")}, None, 1.0)
    again = decode_kind(through_json(encode_kind(told)))
    assert again.metrics["a"] != again.metrics["a"]
    assert again.metrics["b"] == float("inf")


def test_profiles_keep_their_widths_as_numbers() -> None:
    made = profile({1 / 3: 20.0, **NODE_BOUNDARY}, spread=0.1)
    again = decode(ScalingProfile, through_json(encode(made)))
    assert again == made
    assert again.widths == made.widths


def test_what_can_be_rented_reads_back_equal() -> None:
    spot = offer(market="spot", zone="us-east-1b", interruptions_per_hour=0.5)
    rentable = Rentable(spot, profile(NODE_BOUNDARY, error=0.2), 3)
    again = decode(Rentable, through_json(encode(rentable)))
    assert again == rentable
    assert again.profile.widths == rentable.profile.widths


def test_requests_keep_what_is_given_by_name() -> None:
    request = replace(Setting().request(), vcpu_quotas={"spot g": 96})
    assert decode(PlanRequest, through_json(encode(request))) == request


def test_plans_read_back_equal() -> None:
    plan = Setting(8, 1, 8, 2, profile=profile(NODE_BOUNDARY), charges=CHARGES).plan()
    assert decode(Plan, through_json(encode(plan))) == plan
    both = grouped(0, 2, group(offer(), 1, 2.0, 3), group(offer(1, zone="us-east-1b"), 2, 1.0, 2))
    mixed = replace(by_hand(both, charges=CHARGES), gap=0.125, status="feasible")
    assert decode(Plan, through_json(encode(mixed))) == mixed
    assert decode(Limits, through_json(encode(Limits(None, 40)))) == Limits(None, 40.0)

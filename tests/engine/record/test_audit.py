"""The bill and the end of a run, summed from its ledger alone."""

import math

import pytest

from benchmarks.compare.audit import Point, audit
from cloudtune.model import events
from cloudtune.model.commands import EndRun, Launch, Release, StopTrial
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from tests.builders import epoch, offer
from tests.builders.events import entry, start

OFFER = offer(4)  # a cent a second, for a minute at least


def launch(intent: str) -> Launch:
    return Launch(intent, "g.4x", "on-demand", "", OFFER.usd_per_hour)


RUN = (
    entry(events.RunStarted(0.0), launch("i0"), launch("i1")),
    entry(events.InstanceLaunched(1.0, "i0", "i-0", 1.0)),
    entry(events.LaunchFailed(2.0, "i1", "NoCapacity", "none left")),
    entry(events.NodeJoined(21.0, "i0"), start("a.1", 1.0), start("b.1", 2.0)),
    entry(epoch(31.0, "a.1", 1, 0.2)),
    entry(epoch(33.0, "b.1", 1, 0.4), StopTrial("b.1")),
    entry(epoch(34.0, "b.1", 2, 0.9)),  # not waited for any more
    entry(events.TrialStopped(35.0, "b.1"), start("b.2", 1.0, 1)),
    entry(epoch(41.0, "a.1", 2, 0.3)),
    entry(epoch(42.0, "b.2", 2, math.nan), StopTrial("b.2")),
    entry(events.TrialStopped(42.0, "b.2"), StopTrial("a.1")),
    entry(events.TrialStopped(42.0, "a.1"), Release("i0")),
    entry(events.InstanceGone(101.0, "i0", 101.0, "released"), EndRun(EndReason.DONE)),
)


def test_the_bill_is_what_the_cloud_launched_and_took_back() -> None:
    result = audit(RUN, [OFFER], "score", "max")
    assert result.seconds == 101.0
    assert result.dollars == pytest.approx(1.0)
    assert result.gpu_seconds == 400.0
    assert result.violations(Limits(101.0, 1.0)) == ()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(100.0, None), "i0 was gone 1s after the deadline of 1m 40s"),
        (Limits(None, 0.99), "cost $1.000000 of a budget of $0.99"),
    ],
)
def test_passing_a_limit_is_reported(limits: Limits, message: str) -> None:
    assert audit(RUN, [OFFER], "score", "max").violations(limits) == (message,)


def test_what_was_never_given_back_is_reported() -> None:
    launched = audit(RUN[:-1], [OFFER], "score", "max")
    assert launched.violations(Limits()) == ("i0 was never given back",)
    assert launched.dollars == pytest.approx(0.6)
    asked = audit(RUN[:1], [OFFER], "score", "max")
    assert len(asked.violations(Limits())) == 2


def test_a_minimum_is_paid_even_for_a_moment() -> None:
    short = (*RUN[:2], entry(events.InstanceGone(3.0, "i0", 3.0, "released")))
    result = audit(short, [OFFER], "score", "max")
    assert result.dollars == pytest.approx(0.6)
    assert result.gpu_seconds == 8.0


def test_the_result_is_the_best_epoch_that_somebody_waited_for() -> None:
    result = audit(RUN, [OFFER], "score", "max")
    minimum = OFFER.charge(0.0)
    # Another trial's 0.4 is no result: it diverges in its next epoch.
    assert result.path == (Point(31.0, minimum, 0.2, "a", 1), Point(41.0, minimum, 0.3, "a", 2))
    assert result.epochs == {"a": 2, "b": 2}
    assert audit(RUN, [OFFER], "score", "min").path[-1].metric == 0.2


def test_dollars_of_a_result_are_the_bill_at_that_time() -> None:
    late = (*RUN[:4], entry(epoch(91.0, "a.1", 1, 0.2)))
    assert audit(late, [OFFER], "score", "max").path[0].dollars == pytest.approx(0.9)


def test_gpu_seconds_are_held_trained_or_idle() -> None:
    result = audit(RUN, [OFFER], "score", "max")
    assert result.held == 21.0 * 1 + 14.0 * 2 + 7.0 * 1
    assert result.trained == 2 * 1.0 * 1 + 1.0 * 2 + 1.0 * 1
    assert result.idle == 400.0 - result.held
    assert result.resizes == 1
    assert [(span.trial, span.width) for span in result.spans] == [("a", 1), ("b", 2), ("b", 1)]


def test_a_session_that_failed_holds_its_gpus_no_longer() -> None:
    failed = (*RUN[:4], entry(events.TrialFailed(25.0, "a.1", "boom", "")), *RUN[-1:])
    spans = {span.trial: span.end for span in audit(failed, [OFFER], "score", "max").spans}
    assert spans == {"a": 25.0, "b": 101.0}

"""What earlier runs saw, put together with a profile: precision, age, widths that none saw."""

import math
from dataclasses import replace

import pytest

from cloudtune.model.scaling import Measurement, Provenance, ScalingProfile
from cloudtune.profiles.observed_timings import DelayTimes, EpochTimes, RunTimes, with_earlier_runs
from cloudtune.profiles.priors import add_spreads, prior
from cloudtune.profiles.provenance import origin_text, seen_text
from tests.builders import profile

TODAY = "2026-11-22"
P3 = "p3.2xlarge"
MEASURED = replace(
    profile({1.0: 10.0, 2.0: 6.0, 4.0: 4.0}, name=P3), measured_at="2026-11-19T10:00:00Z"
)
"""One configuration, at three widths."""


def saw(
    seconds: float,
    trials: int = 30,
    *,
    run: str = "digits-1121",
    at: str = "2026-11-21T10:00:00Z",
    width: float = 1.0,
    boots: tuple[float, int] = (40.0, 4),
    market: str = "on-demand",
) -> RunTimes:
    """Return a run whose trials took so long, four epochs each."""
    one = EpochTimes(P3, width, Measurement(seconds, 0.01 * seconds, 4))
    boot = DelayTimes(P3, market, "boot", Measurement(boots[0], 1.0, boots[1]))
    return RunTimes(run, at, ((one,),) * trials, (boot,))


def after(
    *runs: RunTimes, of: ScalingProfile | None = MEASURED, **options: object
) -> ScalingProfile:
    given = {"machine": P3, "market": "on-demand", "where": "aws", **options}
    result = with_earlier_runs(of, runs=runs, **given)  # type: ignore[arg-type]
    assert result is not None
    return result


def test_what_tells_more_counts_for_more() -> None:
    few, many = after(saw(12.0, 1)), after(saw(12.0, 40))
    assert few.epoch_seconds(1.0) == pytest.approx(math.sqrt(10.0 * 12.0), rel=0.01), "one each"
    assert 11.7 < many.epoch_seconds(1.0) < 12.0
    eight = after(saw(12.0, 2), of=replace(MEASURED, configurations=8))
    assert 10.0 < eight.epoch_seconds(1.0) < 10.6, "what was measured of eight stays first"
    assert [f.seen[0].share for f in (eight, few, many)] == sorted(
        f.seen[0].share for f in (eight, few, many)
    )


def test_the_forecast_is_surer_with_every_run() -> None:
    runs = [saw(10.5, run=f"r{n}", at=f"2026-11-21T1{n}:00:00Z") for n in range(5)]
    result = [add_spreads(after(*runs[:n]), "aws") for n in range(6)]
    for figures in ([f.error for f in result], [f.boot.error / f.boot.mean for f in result]):
        assert figures == sorted(figures, reverse=True)
        assert figures[-1] < 0.9 * figures[0]


def test_an_unseen_width_is_off_as_much_as_seen() -> None:
    result = after(saw(13.0, 40))
    factor = result.epoch_seconds(1.0) / 10.0
    assert result.epoch_seconds(4.0) == pytest.approx(4.0 * factor)
    assert result.widths == MEASURED.widths


def test_other_strategies_say_nothing_of_widths() -> None:
    sharded = replace(MEASURED, parallel={1.0: "ddp", 2.0: "ddp", 4.0: "fsdp"})
    assert after(saw(9.0, 40, width=4.0), of=sharded).epoch_seconds(4.0) == 4.0
    both = [after(saw(9.0, 40, width=2.0), of=of).epoch_seconds(2.0) for of in (sharded, MEASURED)]
    assert both[0] == both[1] > 8.5


def test_a_width_few_went_on_at_is_compared_itself() -> None:
    """The winner is slower than most trials, and was the only one with two GPUs."""
    wide = EpochTimes(P3, 2.0, Measurement(12.0, 0.1, 8))
    narrow = EpochTimes(P3, 1.0, Measurement(20.0, 0.2, 4))
    others = saw(10.0, 30)
    run = replace(others, trials=(*others.trials, (narrow, wide)))
    result = after(run)
    ratio = result.epoch_seconds(2.0) / result.epoch_seconds(1.0)
    assert ratio == pytest.approx(0.6, rel=0.02)


def test_first_epochs_count_where_there_are_no_others() -> None:
    slow = EpochTimes(P3, 1.0, Measurement(15.0, 0.0, 1), first=True)
    some = saw(10.0, 4)
    mixed = after(replace(some, trials=(*some.trials, (slow,), (slow,))))
    assert mixed.epoch_seconds(1.0) == pytest.approx(10.0)
    alone = after(replace(some, trials=((slow,),) * 40))
    assert alone.epoch_seconds(1.0) > 14.0


def test_what_contradicts_all_that_is_newer_is_out() -> None:
    """The data set has grown since: the script is the same, its epochs take three times as long."""
    long_ago = saw(10.0, 40, run="old", at="2026-10-01T00:00:00Z")
    result = after(saw(30.0, 40, run="new"), long_ago)
    assert result.epoch_seconds(1.0) == pytest.approx(30.0)
    assert result.epoch_seconds(4.0) == pytest.approx(12.0), "the form is still the profile's"
    assert [(seen.run, seen.share) for seen in result.seen] == [("new", 1.0), ("old", 0.0)]
    assert origin_text(result, TODAY) == f"seen in 2 runs, the last 1 day ago on {P3}"


def test_a_newer_measurement_goes_before_older_runs() -> None:
    fresh = replace(MEASURED, measured_at="2026-11-22T10:00:00Z")
    result = after(saw(30.0, 40), of=fresh)
    assert result.epoch_seconds(1.0) == pytest.approx(10.0)
    assert result.seen[0].share == 0.0
    assert seen_text(result.seen[0], P3, TODAY).endswith("counts for its delays alone")


def test_what_was_seen_goes_before_what_was_published() -> None:
    published = replace(MEASURED, script_hash="", provenance=Provenance("published", on=P3))
    result = after(saw(14.0, 3), of=published)
    assert result.epoch_seconds(1.0) == pytest.approx(14.0, rel=0.05)
    assert result.boot.mean == pytest.approx(40.0, rel=0.1)


def test_delays_alone_make_no_profile() -> None:
    lone = with_earlier_runs(None, runs=[saw(10.0)], machine=P3, market="on-demand", where="aws")
    assert lone is None, "how long a start takes is unknown"
    result = after(replace(saw(10.0), trials=()))
    assert result.epoch == MEASURED.epoch
    assert result.boot.mean == pytest.approx(30.0, rel=0.05)


def test_boots_prefer_the_market() -> None:
    both = saw(10.0, boots=(40.0, 4))
    spot = saw(10.0, boots=(100.0, 4), market="spot")
    run = replace(both, delays=(*both.delays, *spot.delays))
    assert after(run).boot.mean == pytest.approx(30.0, rel=0.05)
    assert after(run, market="spot").boot.mean == pytest.approx(60.0, rel=0.05)
    assert after(both, market="spot").boot.mean == pytest.approx(30.0, rel=0.05)


def test_one_measurement_is_believed_as_ever() -> None:
    """Without another run it is as sure as before; runs that differ much are less sure."""
    lone = add_spreads(MEASURED, "aws").boot
    assert lone.error == pytest.approx(prior("boot", "aws").between * 20.0, rel=0.01)
    alike = after(*(saw(10.0, run=f"r{n}", boots=(20.0, 4)) for n in range(6))).boot
    apart = after(*(saw(10.0, run=f"r{n}", boots=(5.0 + 6 * n, 4)) for n in range(6))).boot
    assert alike.mean == pytest.approx(apart.mean, rel=0.05)
    assert alike.error < lone.error
    assert apart.error > 1.3 * alike.error

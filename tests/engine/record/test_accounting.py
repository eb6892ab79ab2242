"""Where the money of a run went: by hand, and how it is shown."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from cloudtune.display.report_screen import money, show_report
from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.accounting import CATEGORIES, Amount, account
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.model import events
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import (
    Command,
    EndRun,
    ExtendTrial,
    Launch,
    Release,
    StartTrial,
    StopTrial,
)
from cloudtune.model.plans import Allowance, Charges, Limits, Rentable, Stage
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.runs.report import build, to_json
from tests.builders import NODE_BOUNDARY, Setting, group, offer, play, profile, scripted
from tests.builders.events import entry, start
from tests.builders.live import elastic_job, report_of

OFFER = offer(4)  # a cent a second, for a minute at least: a quarter of a cent a GPU-second
CENT = 0.01
CHARGES = Charges(0.5, 0.001)


def launch(intent: str = "i0", dollars: float = OFFER.usd_per_hour) -> Launch:
    return Launch(intent, "g.4x", "on-demand", "", dollars)


def done(
    at: float, session: str, epoch: int, seconds: float = 10.0, saving: float = 0.0
) -> events.EpochDone:
    return events.EpochDone(at, session, epoch, {"score": 0.5}, None, seconds, None, saving)


def ledger(*middle: Entry, begin: Sequence[Command] = (), end: float = 100.0) -> tuple[Entry, ...]:
    """Return a run on one instance: launched at 1, joined at 21, given back 4 s before its end."""
    return (
        entry(events.RunStarted(0.0), launch()),
        entry(events.InstanceLaunched(1.0, "i0", "i-0", 1.0)),
        entry(events.NodeJoined(21.0, "i0"), *begin),
        *middle,
        entry(events.TrialStopped(end - 4.0, "z.1"), Release("i0")),
        entry(events.InstanceGone(end, "i0", end, "released"), EndRun(EndReason.DONE)),
    )


def comes_to(result: Amount, gpu_seconds: float, dollars: float) -> None:
    assert result.gpu_seconds == gpu_seconds
    assert result.dollars == pytest.approx(dollars, abs=1e-6)


def trained(*middle: Entry, begin: StartTrial) -> dict[str, float]:
    """Return the GPU-seconds of trial a by use, of a run on one instance."""
    result = account(ledger(*middle, begin=(begin,)), [OFFER]).trials["a"]
    return {name: amount.gpu_seconds for name, amount in result.items() if amount.gpu_seconds}


RUN = ledger(
    entry(events.TrialStarted(24.0, "a.1")),
    entry(done(34.0, "a.1", 1, 10.0, saving=1.5)),
    entry(done(44.0, "a.1", 2, 10.0, saving=1.5)),  # at its rung: it waits
    entry(events.NodeJoined(50.0, "i0"), ExtendTrial("a.1", 4)),
    entry(done(60.0, "a.1", 3, 10.0)),
    entry(events.TrialFailed(63.0, "z.1", "of the past", "")),
    entry(events.TrialFailed(64.0, "y.1", "of the past", ""), StopTrial("a.1")),
    entry(events.TrialStopped(66.0, "a.1")),
    begin=(start("a.1", 2.0),),
)


def test_every_second_of_a_run_by_hand() -> None:
    result = account(RUN, [OFFER], CHARGES)
    assert {name: amount.gpu_seconds for name, amount in result.amounts.items()} == {
        "training": 2 * (8.5 + 8.5 + 10.0),
        "checkpoint": 2 * 3.0,
        "start-up": 4 * 20.0 + 2 * 3.0 + 2 * 2.0,
        "barrier": 2 * 6.0,
        "lost": 2 * 4.0,
        "idle": 4 * (96.0 - 21.0) - 2 * (66.0 - 21.0),
        "kept": 0.0,
        "returning": 4 * 4.0,
        "minimum": 0.0,
        "rounding": 0.0,
        "launches": 0.0,
        "hourly": 0.0,
    }
    comes_to(result.boot, 80.0, 0.2)
    assert result.amounts["training"].dollars == pytest.approx(54 * CENT / 4)
    assert result.amounts["launches"].dollars == 0.5
    assert result.amounts["hourly"].dollars == pytest.approx(0.1)
    comes_to(result.whole, 396.0, 0.99 + 0.5 + 0.1)
    assert result.busy_share == pytest.approx(54 / 396)


def test_trials_have_what_they_held_instances_all_they_cost() -> None:
    result = account(RUN, [OFFER], CHARGES)
    assert sum(amount.gpu_seconds for amount in result.trials["a"].values()) == 2 * 45.0
    [instance] = result.instances
    comes_to(instance.whole, 396.0, 0.99 + 0.5)
    assert (instance.begin, instance.end) == (1.0, 100.0)
    assert instance.returned
    assert instance.amounts["hourly"] == Amount()


def test_f17_utilisation_over_time_and_its_average() -> None:
    """F17: how many GPUs of an instance trained, at any time, and on average."""
    [instance] = account(RUN, [OFFER]).instances
    assert instance.busy == tuple(
        zip((24.0, 32.5, 34.0, 42.5, 50.0, 60.0), (2.0, 0.0) * 3, strict=True)
    )
    assert instance.busy_share == pytest.approx(54 / 396)


def test_packed_trials_fill_a_gpu() -> None:
    """F17: three thirds are one."""
    third = 1 / 3
    names = ("a.1", "b.1", "c.1")
    result = account(
        ledger(
            *(entry(events.TrialStarted(21.0, name)) for name in names),
            *(entry(done(31.0, name, 1)) for name in names),
            *(entry(events.TrialStopped(31.0, name)) for name in names),
            begin=tuple(start(name, third, 0, 1) for name in names),
        ),
        [OFFER],
    )
    assert result.instances[0].busy == ((21.0, 1.0), (31.0, 0.0))
    assert result.amounts["training"].gpu_seconds == pytest.approx(10.0)


def test_an_epoch_reported_while_the_next_one_trains_counts_once() -> None:
    """Its checkpoint was on its way for 4 s: it ended 4 s before that was reported."""
    result = trained(
        entry(events.TrialStarted(24.0, "a.1")),
        entry(done(38.0, "a.1", 1)),
        entry(done(44.0, "a.1", 2), StopTrial("a.1")),
        entry(events.TrialStopped(44.0, "a.1")),
        begin=start("a.1"),
    )
    assert result == {"training": 20.0, "start-up": 3.0}


def test_overlapping_epochs_are_cut_to_the_time_there_was() -> None:
    result = trained(
        entry(done(30.0, "a.1", 1, 20.0)),
        entry(done(31.0, "a.1", 2, 20.0), StopTrial("a.1")),
        entry(events.TrialStopped(31.0, "a.1")),
        begin=start("a.1"),
    )
    assert result == {"training": 10.0}


def test_epochs_that_had_to_be_trained_again_are_lost() -> None:
    result = trained(
        entry(events.TrialStarted(24.0, "a.1")),
        entry(done(34.0, "a.1", 1, saving=1.0)),
        entry(done(44.0, "a.1", 2)),  # without a checkpoint
        entry(events.TrialLost(47.0, "a.1", "its node vanished"), start("a.2", 1.0, 1)),
        entry(events.TrialStarted(50.0, "a.2")),
        entry(done(60.0, "a.2", 2), StopTrial("a.2")),
        entry(events.TrialStopped(60.0, "a.2")),
        begin=start("a.1", 1.0, 0, 3),
    )
    assert result == {"training": 9.0 + 10.0, "checkpoint": 1.0, "start-up": 6.0, "lost": 13.0}


def test_a_session_that_never_trained_was_start_up_or_lost() -> None:
    failed = entry(events.TrialFailed(40.0, "a.1", "no such module", ""))
    assert trained(failed, begin=start("a.1")) == {"start-up": 19.0}
    begun = entry(events.TrialStarted(24.0, "a.1"))
    assert trained(begun, failed, begin=start("a.1")) == {"start-up": 3.0, "lost": 16.0}


def test_an_epoch_that_none_waited_for_is_none() -> None:
    result = trained(
        entry(events.TrialStarted(24.0, "a.1"), StopTrial("a.1")),
        entry(done(34.0, "a.1", 1)),
        entry(events.TrialStopped(34.0, "a.1")),
        begin=start("a.1"),
    )
    assert result == {"start-up": 13.0}


def test_epochs_without_a_controller_are_put_where_they_were() -> None:
    """Another controller hears of all at once, and of some of them for a second time."""
    result = trained(
        entry(events.TrialStarted(24.0, "a.1")),
        entry(done(34.0, "a.1", 1)),
        entry(events.RunResumed(80.0)),
        entry(done(80.0, "a.1", 1)),
        entry(done(80.0, "a.1", 2)),
        entry(done(80.0, "a.1", 3), StopTrial("a.1")),
        entry(events.TrialStopped(81.0, "a.1")),
        begin=start("a.1", 1.0, 0, 3),
    )
    assert result == {"start-up": 3.0 + 1.0, "training": 30.0, "barrier": 26.0}


def test_a_late_first_report_makes_no_start_up() -> None:
    """Its workers were known to be set up; another controller heard of the epoch long after."""
    result = trained(
        entry(events.TrialStarted(24.0, "a.1")),
        entry(events.RunResumed(80.0)),
        entry(done(80.0, "a.1", 1), StopTrial("a.1")),
        entry(events.TrialStopped(80.0, "a.1")),
        begin=start("a.1", 1.0, 0, 1),
    )
    assert result == {"start-up": 3.0, "training": 10.0, "barrier": 46.0}


def test_a_first_epoch_of_unknown_length_begins_after_set_up() -> None:
    result = trained(
        entry(events.TrialStarted(24.0, "a.1")),
        entry(done(34.0, "a.1", 1, 0.0)),
        entry(done(44.0, "a.1", 2), StopTrial("a.1")),
        entry(events.TrialStopped(44.0, "a.1")),
        begin=start("a.1"),
    )
    assert result == {"start-up": 3.0, "training": 20.0}


def test_an_epoch_of_unknown_length_is_like_the_others() -> None:
    """Its session died unseen, and what it had saved was found in the storage."""
    result = trained(
        entry(events.TrialStarted(24.0, "a.1")),
        entry(done(34.0, "a.1", 1)),
        entry(events.RunResumed(80.0)),
        entry(done(80.0, "a.1", 2, 0.0)),
        entry(events.TrialLost(80.0, "a.1", "it was gone", blameless=True)),
        begin=start("a.1", 1.0, 0, 3),
    )
    assert result == {"start-up": 3.0, "training": 20.0, "lost": 36.0}


def test_a_minimum_and_whole_seconds_are_reported_by_themselves() -> None:
    grained = replace(OFFER, granularity_seconds=1.0)
    short = account(ledger(end=40.5), [grained])
    assert short.amounts["minimum"].dollars == pytest.approx(20.5 * CENT)
    assert short.amounts["rounding"].dollars == 0.0
    long = account(ledger(end=99.25), [grained])
    assert long.amounts["minimum"].dollars == 0.0
    assert long.amounts["rounding"].dollars == pytest.approx(0.75 * CENT)


def test_an_instance_without_an_end_bills_to_the_last_entry() -> None:
    result = account(RUN[:-1], [OFFER])
    [instance] = result.instances
    assert (instance.returned, instance.end) == (False, 96.0)
    assert result.amounts["returning"] == Amount()
    comes_to(result.whole, 4 * 95.0, 0.95)


def test_an_instance_that_is_reported_a_second_time_counts_once() -> None:
    """A takeover tells again what its ledger may not have: the bill and the fleet stay the same."""
    again = entry(events.InstanceLaunched(30.0, "i0", "i-0", 1.0))
    twice = (*RUN[:3], entry(events.RunResumed(30.0)), again, *RUN[3:])
    assert account(twice, [OFFER]) == account(RUN, [OFFER])
    whole = play(SETTING, PLAN).entries
    launched = next(e for e in whole if isinstance(e.event, events.InstanceLaunched))
    place = whole.index(launched) + 1
    report = build(SETTING.job(PLAN), (*whole[:place], launched, *whole[place:]))
    assert report.fleet == build(SETTING.job(PLAN), tuple(whole)).fleet
    assert [size for _, size in report.fleet] == [1, 2, 3, 2, 1, 0]


def test_a_request_that_none_has_answered_may_bill_already() -> None:
    result = account((RUN[0], entry(events.RunResumed(90.0))), [OFFER])
    assert result.amounts["start-up"] == result.boot
    comes_to(result.boot, 360.0, 0.9)
    assert result.instances[0].instance is None
    refused = account((RUN[0], entry(events.LaunchFailed(2.0, "i0", "dry", ""))), [OFFER])
    assert (refused.whole, refused.instances) == (Amount(), ())


def test_a_session_ends_with_a_node_that_is_lost() -> None:
    result = account(
        ledger(
            entry(events.NodeLost(50.0, "i0", "no heartbeat"), StopTrial("a.1"), Release("i0")),
            entry(events.TrialStopped(60.0, "a.1")),
            begin=(start("a.1", 4.0),),
        ),
        [OFFER],
    )
    assert result.trials["a"]["start-up"].gpu_seconds == 4 * 29.0
    assert result.amounts["returning"].gpu_seconds == 4 * 50.0


def test_the_price_is_that_which_was_asked_for() -> None:
    here, there = replace(OFFER, zone="a", usd_per_hour=72.0), OFFER
    assert account(RUN, [here, there]).whole.dollars == pytest.approx(0.99)
    dear = (entry(events.RunStarted(0.0), replace(launch(dollars=72.0), zone="a")), *RUN[1:])
    assert account(dear, [here, there]).whole.dollars == pytest.approx(1.98)


SETTING = Setting(12, 2, 18, 3, profile=profile(NODE_BOUNDARY), max_instances=3, charges=CHARGES)
PLAN = SETTING.plan(limits=Limits(deadline=105.0))


def test_a_report_says_where_the_money_went() -> None:
    report = build(SETTING.job(PLAN), play(SETTING, PLAN).entries)
    data = json.loads(json.dumps(to_json(report)))["accounting"]
    assert data["total"]["dollars"] == pytest.approx(report.dollars)
    assert sum(value["dollars"] for value in data["categories"].values()) == pytest.approx(
        report.dollars
    )
    assert set(data["categories"]) == {name.replace("-", "_") for name in CATEGORIES}
    assert (data["resizes"], data["restarts"]) == (5, 5)
    assert len(data["instances"]) == 3
    assert data["instances"][0]["busy"][0] == {"at": 25.0, "gpus": 4.0}
    assert set(data["trials"]) == {f"t{n:02d}" for n in range(12)}


def test_ones_own_machine_costs_nothing_and_has_its_time_split() -> None:
    free = account(RUN, [replace(OFFER, usd_per_hour=0.0)])
    rows = {row[0]: row[1:] for row in money(free, SETTING.job(PLAN).plan).rows}
    assert rows["training"] == ("54s", "13.6 %", "$0.00", "")
    assert rows["total"] == ("6m 36s", "100 %", "$0.00", "")


@pytest.mark.parametrize("elastic", [False, True], ids=["by a plan", "as results come in"])
def test_the_report_of_either_kind_shows_it(elastic: bool) -> None:
    staged = build(SETTING.job(PLAN), play(SETTING, PLAN).entries)
    forgotten = events.InstanceGone(40.0, "i000", 40.0, events.FORGOTTEN)
    report = report_of(elastic_job(), [forgotten]) if elastic else staged
    out = Console(width=100, highlight=False)
    with out.capture() as shown:
        show_report(out, report)
    lines = shown.get().splitlines()
    assert ("no record of the end of 1 instance:" in shown.get()) == elastic
    place = lines.index("Where the money went, emulated")
    assert lines[place + 3].startswith(" training ")
    assert any(line.startswith("GPUs trained in ") for line in lines[place:])
    assert report.accounting.whole.dollars == pytest.approx(report.dollars)


def test_9_the_bill_of_several_types_by_purpose() -> None:
    g4dn, p3 = offer(4, 3.912, name="g4dn.12xlarge"), offer(4, 12.24, name="p3.8xlarge")
    result = account(bill_4(g4dn, p3), [g4dn, p3])
    dollars = {name: amount.dollars for name, amount in result.amounts.items() if amount.dollars}
    assert dollars == {
        "training": pytest.approx(1.332, abs=1e-6),
        "start-up": pytest.approx(0.195067, abs=1e-6),
        "barrier": pytest.approx(0.34, abs=1e-6),
        "returning": pytest.approx(0.011147, abs=1e-6),
    }
    comes_to(result.whole, 4044.0, 1.878213)
    assert result.busy_share == pytest.approx(0.7913, abs=1e-4)


def bill_4(g4dn: Offer, p3: Offer) -> Sequence[Entry]:
    delays = {"launch": 10.0, "boot": 30.0, "start": 5.0, "release": 2.0}
    rentables = tuple(
        Rentable(item, profile({1.0: seconds}, name=item.instance_type.name, **delays), 20)
        for item, seconds in ((g4dn, 60.0), (p3, 40.0))
    )
    request = PlanRequest((Stage(12, 0, 5),), rentables, Allowance(), 20)
    plan = price(request, [(group(g4dn, 2, 1, 8), group(p3, 1, 1, 4))], "by hand")
    world, kept = SimWorld(rentables, "score", synthetic_metric("max", 0)), MemoryLedger()
    run(scripted(plan), world, kept)
    return kept.entries

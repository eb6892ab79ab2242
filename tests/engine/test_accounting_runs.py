"""Whatever the run: where its money went adds up to its bill."""

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.compare.audit import audit
from benchmarks.fault_world import survive
from benchmarks.faults import case
from cloudtune.engine.ledger import Entry
from cloudtune.engine.record.accounting import USES, Accounting, account
from cloudtune.model import events
from cloudtune.model.catalog import Offer
from cloudtune.model.commands import StartTrial
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.policy.run import RunPolicy
from tests.builders import Setting, jobs, play


def adds_up(result: Accounting, policy: RunPolicy) -> None:
    """The categories, the instances and the trials come to what the books of the policy say."""
    now = policy.now
    rented = [item for item in policy.fleet if item.launched]
    lived = [(now if r.gone_at is None else r.gone_at) - r.began_at for r in rented]
    seconds = math.fsum(
        r.offer.gpus * max(0.0, life) for r, life in zip(rented, lived, strict=True)
    )
    whole, hourly = result.whole, result.amounts["hourly"].dollars
    assert whole.dollars == pytest.approx(policy.spent(policy.over_at), rel=1e-9, abs=1e-12)
    assert whole.gpu_seconds == pytest.approx(seconds, rel=1e-9, abs=1e-9)
    by_instance = math.fsum(item.whole.dollars for item in result.instances)
    assert by_instance + hourly == pytest.approx(whole.dollars, rel=1e-9, abs=1e-12)
    amounts = [a for item in result.instances for a in item.amounts.values()]
    amounts += [a for item in result.trials.values() for a in item.values()]
    assert all(amount.gpu_seconds >= 0 and amount.dollars >= 0 for amount in amounts)
    for name in USES:
        held = math.fsum(amounts[name].gpu_seconds for amounts in result.trials.values())
        booted = result.boot.gpu_seconds if name == "start-up" else 0.0
        assert held + booted == pytest.approx(result.amounts[name].gpu_seconds, abs=1e-6)


def fills(result: Accounting) -> None:
    """F17: never more GPUs train than there are, and the series comes to the average."""
    for instance in result.instances:
        assert all(0 <= gpus <= instance.offer.gpus + 1e-6 for _, gpus in instance.busy)
        assert [gpus for _, gpus in instance.busy[-1:]] in ([], [0.0])
        steps = zip(instance.busy, instance.busy[1:], strict=False)
        area = math.fsum(gpus * (until - since) for (since, gpus), (until, _) in steps)
        assert area == pytest.approx(instance.amounts["training"].gpu_seconds, rel=1e-6, abs=1e-6)


JOBS = jobs(
    max_epochs=6,
    epoch=st.floats(0.5, 20.0),
    release=st.floats(0.0, 5.0),
    spread=st.sampled_from([0.0, 0.3]),
)
seconds = st.floats(0.0, 120.0)
intents = st.integers(0, 3).map("i{:03d}".format)
sessions = st.builds("t{:02d}.{}".format, st.integers(0, 5), st.integers(1, 2))
TROUBLE = st.lists(
    st.one_of(
        st.builds(events.InstanceGone, seconds, intents, seconds, st.just("reclaimed")).map(
            lambda gone: replace(gone, gone_at=gone.at)
        ),
        st.builds(events.NodeLost, seconds, intents, st.just("dead")),
        st.builds(events.LaunchFailed, st.floats(0.0, 2.0), intents, st.just("dry"), st.just("")),
        st.builds(events.TrialLost, seconds, sessions, st.just("vanished")),
        st.builds(events.TrialFailed, seconds, sessions, st.just("boom"), st.just("")),
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    setting=JOBS,
    trouble=TROUBLE,
    saves_every=st.sampled_from([1, 1, 2]),
    limits=st.sampled_from([Limits(), Limits(90.0, None), Limits(None, 2.0)]),
    cut=st.floats(0.1, 1.0),
)
def test_a_run_by_a_plan_adds_up_to_its_bill(
    setting: Setting, trouble: list[events.Event], saves_every: int, limits: Limits, cut: float
) -> None:
    try:
        plan = setting.plan()
    except InfeasibleError:
        assume(False)
    charged = setting.but(limits=limits, trouble=trouble, saves_every=saves_every)
    played = play(charged, plan)
    offers = [item.offer for item in setting.rentables]
    result = account(played.entries, offers, setting.charges)
    adds_up(result, played.policy)
    fills(result)
    if not trouble:
        assert held(result) == pytest.approx(audit(played.entries, offers, "score", "max").held)
        taught = math.fsum(epoch_gpu_seconds(played.entries))
        assert result.amounts["training"].gpu_seconds <= taught + 1e-6
        if saves_every == 1 and limits == Limits():
            assert result.amounts["training"].gpu_seconds == pytest.approx(taught, abs=1e-6)
            assert result.amounts["lost"].gpu_seconds == 0.0
    part = played.entries[: math.ceil(cut * len(played.entries))]
    policy = charged.policy(plan)
    for item in part:
        policy.handle(item.event)
    adds_up(account(part, offers, setting.charges), policy)


def held(result: Accounting) -> float:
    return math.fsum(a.gpu_seconds for trial in result.trials.values() for a in trial.values())


def epoch_gpu_seconds(entries: Iterable[Entry]) -> Iterable[float]:
    widths: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry.event, events.EpochDone):
            yield entry.event.seconds * widths[entry.event.session]
        for command in entry.commands:
            if isinstance(command, StartTrial):
                widths[command.session] = command.width


@pytest.mark.parametrize("first", [0, 20])
def test_runs_that_outlive_their_controllers_add_up_to_their_bill(first: int) -> None:
    """Both policies; losses, refusals, notices, interruptions and up to three deaths each."""
    for seed in range(first, first + 20):
        drawn = case(seed)
        actual = survive(drawn.policy, drawn.world(), drawn.kills)
        offers: list[Offer] = [rentable.offer for rentable in drawn.rentables]
        result = account(actual.entries, offers, actual.policy.state.charges)
        adds_up(result, actual.policy)
        fills(result)

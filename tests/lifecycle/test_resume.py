"""A run that had ended goes on: its trials, its bill and its record."""

import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.accounting import compute_accounting
from cloudtune.engine.record.timeline import read
from cloudtune.engine.resume import replay
from cloudtune.engine.simulator import SimWorld
from cloudtune.errors import HurriedError, UsageError
from cloudtune.infra.cluster.world import CloudWorld
from cloudtune.infra.node.messages import Training
from cloudtune.lifecycle.resume import Further, further_limits
from cloudtune.model.commands import Command, StartTrial, StopTrial
from cloudtune.model.events import EpochDone, Event, Interrupted, RunContinued
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.trial import EndReason
from cloudtune.policy.run import RunPolicy
from cloudtune.runs import control
from tests.builders.runs import Setting

SETTING = Setting(trials=4, min_epochs=2, max_epochs=8, charges=Charges(0.0, 0.001))
PAUSE = 500.0


def first_leg(
    setting: Setting, interrupted: float | None = None, policy: RunPolicy | None = None
) -> tuple[RunPolicy, SimWorld, MemoryLedger]:
    policy, world, ledger = policy or setting.policy(), setting.world(), MemoryLedger()
    if interrupted is not None:
        world.schedule(Interrupted(interrupted))
    run(policy, world, ledger)
    return policy, world, ledger


def second_leg(policy: RunPolicy, world: SimWorld, ledger: MemoryLedger, limits: Limits) -> None:
    world.go_on(RunContinued(policy.now + PAUSE, limits.deadline, limits.budget))
    run(policy, world, ledger)


def starts(entries: Sequence[Entry]) -> list[StartTrial]:
    return [it for entry in entries for it in entry.commands if isinstance(it, StartTrial)]


BY: list[str | None] = [None, "random", "asha", "hyperband", "median", "seer"]


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_an_interrupted_run_trains_on_from_its_checkpoints(by: str | None, share: float) -> None:
    setting = SETTING.but(by=by, limits=Limits(deadline=3000.0) if by == "seer" else Limits())
    whole, *_ = first_leg(setting)
    policy, world, ledger = first_leg(setting, whole.now * share)
    assert policy.ending == EndReason.INTERRUPTED
    first, trained = len(ledger.entries), {t.id: t.checkpoint_epoch for t in policy.trials.values()}
    second_leg(policy, world, ledger, Limits(deadline=policy.now + PAUSE + 3000.0))
    assert policy.ended
    assert [policy.ending] == [EndReason.DONE]
    assert not policy.fleet.alive()
    for start in starts(ledger.entries[first:]):
        assert start.start_epoch >= trained.get(start.trial, 0)
    if by in {None, "random"}:
        assert {n: t.epoch for n, t in policy.trials.items()} == {
            n: t.epoch for n, t in whole.trials.items()
        }
    # Whoever reads the record decides the same, and comes to the same bill.
    again = setting.policy()
    assert replay(again, ledger.entries).ended
    timeline = read(ledger.entries)
    assert [leg.ended for leg in timeline.legs] == [EndReason.INTERRUPTED]
    offers = [rentable.offer for rentable in setting.rentables]
    booked = compute_accounting(timeline, offers, setting.charges)
    assert sum(a.dollars for a in booked.amounts.values()) == pytest.approx(
        policy.spent(policy.now)
    )


class Late:
    """A world in which each session saves one epoch more between its stop and its end."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.delivered: list[EpochDone] = []
        self._late: list[EpochDone] = []

    def next_event(self) -> Event | None:
        if self._late:
            self.delivered.append(self._late.pop())
            return self.delivered[-1]
        return self.world.next_event()

    def apply(self, command: Command) -> None:
        stopped = command.session if isinstance(command, StopTrial) else ""
        session = self.world.sessions.get(stopped)
        if session is not None and session.busy and session.epoch:
            trial, epoch = session.command.trial, session.epoch + 1
            metrics, path = {"score": 0.001 * epoch}, f"sim://{trial}/{epoch}"
            self._late.append(EpochDone(self.world.now, stopped, epoch, metrics, path, 1.0))
        self.world.apply(command)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_what_was_saved_at_a_stop_is_kept(by: str | None, share: float) -> None:
    setting = SETTING.but(by=by, limits=Limits(deadline=3000.0))
    whole, *_ = first_leg(setting)
    policy, world, ledger = setting.policy(), Late(setting.world()), MemoryLedger()
    world.world.schedule(Interrupted(whole.now * share))
    run(policy, world, ledger)
    ended = [policy.ending]
    assert world.delivered or share == 0.4
    ends = {item.session.rpartition(".")[0]: item.epoch for item in world.delivered}
    first = len(ledger.entries)
    second_leg(policy, world.world, ledger, Limits(deadline=policy.now + PAUSE + 3000.0))
    assert [*ended, policy.ending] == [EndReason.INTERRUPTED, EndReason.DONE]
    begun = {item.trial: item.start_epoch for item in reversed(starts(ledger.entries[first:]))}
    assert {name: begun[name] for name in ends if name in begun} == {
        name: epoch for name, epoch in ends.items() if name in begun
    }
    replay(setting.policy(), ledger.entries)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_run_that_met_its_deadline_continues_within_another(by: str | None, share: float) -> None:
    whole, *_ = first_leg(SETTING.but(by=by, limits=Limits(deadline=3000.0)))
    policy, world, ledger = first_leg(
        SETTING.but(by=by, limits=Limits(deadline=whole.now * share + 20.0))
    )
    if policy.why_over():
        return  # it has cut what it had no time for: nothing is left to train
    before = policy.spent(policy.now)
    second_leg(policy, world, ledger, Limits(deadline=policy.now + PAUSE + 3000.0))
    assert policy.ended
    assert [policy.ending] == [EndReason.DONE]
    assert policy.spent(policy.now) > before, "what was spent before counts"


@pytest.mark.parametrize("by", ["seer", "seer-full", "asha"])
def test_exhausted_search_continues_within_more(by: str) -> None:
    setting = SETTING.but(by=by, trials=200, max_epochs=64, limits=Limits(deadline=400.0))
    policy, world, ledger = first_leg(setting)
    assert [policy.ending] == [EndReason.DONE]
    left = replay(setting.policy(), ledger.entries)
    further = Further("+1h", None)
    limits = further_limits(setting.job(), policy, left, further, policy.now + PAUSE)
    assert limits is not None
    trained = sum(trial.epoch for trial in policy.trials.values())
    second_leg(policy, world, ledger, limits)
    assert [policy.ending] == [EndReason.DONE]
    assert sum(trial.epoch for trial in policy.trials.values()) > trained


def test_new_limits_are_from_now_or_in_all() -> None:
    policy, _, ledger = first_leg(SETTING, 20.0)
    job = SETTING.job()
    left, now = replay(SETTING.policy(), ledger.entries), policy.now + PAUSE
    spent = policy.spent(now)

    def limits(deadline: str | None, budget: str | None) -> Limits | None:
        return further_limits(job, policy, left, Further(deadline, budget), now)

    assert limits("+1h", "+$10") == Limits(now + 3600.0, spent + 10.0)
    assert limits("3h", "$30") == Limits(3 * 3600.0, 30.0)
    with pytest.raises(UsageError, match=r"deadline leaves no time: .*--deadline \+1h"):
        limits("100s", None)
    with pytest.raises(UsageError, match=r"budget of .* leaves nothing: .*are spent"):
        limits("+1h", "$0.0001")
    with pytest.raises(UsageError, match="no unit"):
        limits("+3", None)


def test_a_run_that_has_trained_all_is_over() -> None:
    policy, _, ledger = first_leg(SETTING)
    left = replay(SETTING.policy(), ledger.entries)
    with pytest.raises(UsageError, match="has ended, and its strategy has trained everything"):
        further_limits(SETTING.job(), policy, left, Further("+1h", None), policy.now)


def unheard_world(folder: Path) -> CloudWorld:
    """Return a world without a cluster: it hears of interrupts, and of nothing else."""
    rental = SimpleNamespace(run="r1", boot_log=str)
    head: Any = SimpleNamespace(rental=rental, folder=folder, running=False, alive=lambda: True)
    training = Training("train.py:train", "loss", "min", 9, str(folder), 0)
    ec2: Any = None
    return CloudWorld(head, ec2, training, folder, 0.0)


def test_a_second_interrupt_waits_for_nothing(tmp_path: Path) -> None:
    world = unheard_world(tmp_path)
    world.interrupt()
    assert isinstance(world.next_event(), Interrupted)
    world.interrupt()
    with pytest.raises(HurriedError, match="interrupted twice"):
        world.next_event()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_third_interrupt_breaks_no_giving_back(number: signal.Signals, tmp_path: Path) -> None:
    world, given_back = unheard_world(tmp_path), []
    with control.interruptible() as interruption:
        interruption.tell(world.interrupt)
        signal.raise_signal(number)
        assert isinstance(world.next_event(), Interrupted)
        signal.raise_signal(number)
        with pytest.raises(HurriedError):
            world.next_event()
        for instance in ("i-1", "i-2"):  # as the sweep does, which comes after
            signal.raise_signal(number)
            given_back.append(instance)
    assert given_back == ["i-1", "i-2"]
    with pytest.raises(HurriedError):
        world.next_event()

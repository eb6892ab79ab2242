"""Runs that find out which GPU model is worth its price, from an experiment to what they rent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from cloudtune.engine.ledger import Entry, MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.timeline import read
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.engine.spot_pools import UNLIMITED, PoolTrace
from cloudtune.lifecycle.planning import load_problem
from cloudtune.model.commands import Launch, StartTrial
from cloudtune.model.events import EpochDone, Event, LaunchFailed, TrialFailed
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement
from cloudtune.runs.job import make_policy
from cloudtune.strategies.fleets import SpendingFleet
from tests.builders.searches import search_for
from tests.flapping import flaps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.model.catalog import PoolName
    from cloudtune.model.commands import Command
    from cloudtune.policy.run import RunPolicy

# By the prior an epoch on the second costs 1.3 times as much as on the first.
L40S, A10G = "g6e.xlarge", "g5.xlarge"
T4 = "g4dn.xlarge"
STRATEGIES = ("best", "asha", "asha-stopping", "random")


def experiment(deadline: str, budget: str, strategy: str = "best", **cloud: object) -> Experiment:
    """Return an experiment whose script was never measured, on two GPU models."""
    return search_for(
        deadline,
        budget,
        strategy,
        **{"instances": [L40S, A10G], "market": "on-demand", "max_instances": 32, **cloud},
    )


@dataclass(frozen=True)
class Played:
    """A run that has ended, and what its world and its policy said."""

    policy: RunPolicy
    entries: Sequence[Entry]
    rentables: Sequence[Rentable]

    def launches(self, until: float = float("inf")) -> Counter[str]:
        """Return how many instances of each type were requested up to a run second."""
        return Counter(
            command.instance_type
            for entry in self.entries
            for command in entry.commands
            if isinstance(command, Launch) and entry.event.at <= until
        )

    @property
    def first_epoch(self) -> float:
        return next(e.event.at for e in self.entries if isinstance(e.event, EpochDone))

    def dollars(self, name: str) -> float:
        """Return the bill of an instance type."""
        fleet = self.policy.fleet
        return sum(r.dollars(self.policy.now) for r in fleet if r.offer.instance_type.name == name)

    def held(self, name: str, at: float) -> int:
        """Return the instances of a type at a run second."""
        return sum(
            rented.requested_at <= at and (rented.gone_at is None or at < rented.gone_at)
            for rented in self.policy.fleet
            if rented.offer.instance_type.name == name
        )

    @property
    def flaps(self) -> tuple[str, ...]:
        state = self.policy.state
        known = read(self.entries)
        return flaps(self.entries, known, self.rentables, brakes=state.brakes, metric=state.metric)


class _Unsaved:
    """A world whose trials save no checkpoint."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    def apply(self, command: Command) -> None:
        self._world.apply(command)

    def next_event(self) -> Event | None:
        event = self._world.next_event()
        return replace(event, checkpoint=None) if isinstance(event, EpochDone) else event


def play(
    asked: Experiment,
    slower: Mapping[str, float],
    *,
    certain: bool = False,
    saves: bool = True,
    seed: int = 1,
    start: float | None = None,
    away: tuple[str, float] | None = None,
) -> Played:
    """Play a run in a world where epochs on a type take `slower` times what is assumed.

    `certain`: whether the figures are the script's own, measured on each type. `start`: the seconds
    that a session takes to start. `away`: a type that the cloud refuses until a run second.
    """
    rentables = load_problem(asked, None).rentables
    if certain:
        rentables = tuple(map(_measured, rentables))
    real = [
        replace(
            _measured(rentable),
            profile=_measured(rentable).profile.slow_down(
                slower.get(rentable.offer.instance_type.name, 1.0)
            ),
        )
        for rentable in rentables
    ]
    if start is not None:
        begins = Measurement(start)
        real = [replace(each, profile=replace(each.profile, start=begins)) for each in real]
    pools: dict[PoolName, PoolTrace] = {}
    if away is not None:
        name, until = away
        trace = PoolTrace(name, (0.0, until), (0, UNLIMITED), 1e9)
        pools = {(name, asked.cloud.market, ""): trace}
    limits = Limits(asked.limits.deadline, asked.limits.budget)
    policy = make_policy(asked, rentables, limits, heartbeat=False)
    world = SimWorld(real, "score", synthetic_metric("max", seed), seed, pools=pools)
    ledger = MemoryLedger()
    run(policy, world if saves else _Unsaved(world), ledger)
    assert policy.ended
    return Played(policy, ledger.entries, rentables)


def _measured(rentable: Rentable) -> Rentable:
    provenance = replace(rentable.profile.provenance, origin="measured")
    profile = replace(rentable.profile, error=0.0, gpu_error=0.0, provenance=provenance)
    return replace(rentable, profile=profile)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_scout_joins_where_types_are_close(folder: Path, strategy: str) -> None:
    played = play(experiment("4h", "$40", strategy), {})
    assert played.launches()[A10G] == 1
    assert played.launches()[L40S] >= 5
    [scout] = [r for r in played.policy.fleet if r.offer.instance_type.name == A10G]
    assert scout.gone_at is not None
    assert scout.gone_at < 0.2 * 4 * 3600, "once it is known to be dearer, it goes"
    trained = [t for t in played.policy.trials.values() if t.history]
    assert sum(max(t.history) for t in trained) > 100


def test_scouts_save_less_beside_others(folder: Path) -> None:
    """Two more would pay, each for itself: an H100's, and another one of Blackwell's GPUs."""
    played = play(experiment("4h", "$40", "asha", instances=["*"]), {T4: 0.3})
    assert len(played.launches()) == 6


def test_no_scout_joins_where_speeds_are_certain(folder: Path) -> None:
    played = play(experiment("4h", "$40"), {}, certain=True)
    assert set(played.launches()) == {L40S}


def test_no_scout_joins_where_the_budget_is_small(folder: Path) -> None:
    """Five cents of a dollar don't pay for the minute that an instance costs at least."""
    assert set(play(experiment("4h", "$0.20"), {}).launches()) == {L40S}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_fleet_moves_to_the_type_that_turns_out_to_be_cheaper(
    folder: Path, strategy: str
) -> None:
    played = play(experiment("4h", "$40", strategy), {L40S: 2.0})
    assert played.launches()[A10G] > 5
    assert played.held(L40S, at=0.25 * 4 * 3600) == 0
    assert played.dollars(L40S) < 0.05 * 40
    assert played.dollars(A10G) > 0.8 * 40
    assert played.flaps == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_fleet_yet_to_come_is_of_the_cheaper_type_by_however_little(
    folder: Path, strategy: str
) -> None:
    played = play(experiment("4h", "$40", strategy), {L40S: 1.55})
    assert played.launches()[L40S] == 1, "no fleet booted that is then left"
    assert played.launches()[A10G] > 5


@pytest.mark.parametrize("strategy", ["best", "asha"])
def test_set_ups_of_the_first_trials_make_no_slow_gpu_cheap(folder: Path, strategy: str) -> None:
    """A set-up takes as long as the first two epochs, and little of what a trial trains."""
    either = experiment("4h", "$17", strategy, instances=[T4, L40S])
    played = play(either, {T4: 0.2, L40S: 0.12})
    assert played.launches()[T4] == 1
    assert played.dollars(L40S) > 0.95 * 17


def test_a_fleet_of_one_large_instance_has_booted_already(folder: Path) -> None:
    """It isn't left as long as the other type is cheaper by little."""
    either = experiment("1h", "$22", "asha", instances=["p4d.24xlarge", A10G])
    played = play(either, {A10G: 0.75})
    assert played.launches(until=150.0) == {"p4d.24xlarge": 1, A10G: 1}


def test_a_fleet_of_one_large_instance_moves_by_what_is_expected(folder: Path) -> None:
    """Two epochs say how cheap the other type is, give or take a sixth; it waits for no more."""
    either = experiment("1h", "$22", "asha", instances=["p4d.24xlarge", A10G])
    played = play(either, {A10G: 0.7}, seed=2)
    assert played.dollars("p4d.24xlarge") < 0.1 * 22
    assert played.dollars(A10G) > 0.8 * 22


def test_trials_move_with_the_fleet_by_their_checkpoints(folder: Path) -> None:
    played = play(experiment("1h", "$20", "random"), {L40S: 9.0, A10G: 3.0})
    moved = [trial for trial in played.policy.trials.values() if trial.sessions > 1]
    assert moved
    assert all(max(trial.history) == 16 for trial in moved)
    starts = _starts(played)
    assert all(start.start_epoch > 0 for start in starts if not start.session.endswith(".1"))


def test_without_checkpoints_trials_finish_where_they_are(folder: Path) -> None:
    played = play(experiment("4h", "$40", "random"), {L40S: 2.0}, saves=False)
    assert played.launches()[A10G] > 5
    assert all(trial.sessions == 1 for trial in played.policy.trials.values())
    assert played.held(L40S, at=0.5 * 4 * 3600) == 0


def _starts(played: Played) -> list[StartTrial]:
    commands = (command for entry in played.entries for command in entry.commands)
    return [command for command in commands if isinstance(command, StartTrial)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("slower", [{}, {L40S: 2.0, A10G: 0.5}, {L40S: 1.3}, {A10G: 2.0}])
def test_no_fleet_flaps(
    folder: Path, slower: Mapping[str, float], strategy: str, seed: int
) -> None:
    played = play(experiment("3h", "$25", strategy), slower, seed=seed)
    assert played.flaps == ()
    changes = [name for name, _ in _changes(played)]
    assert len(changes) <= 3, "to another type at most, and back if that was wrong"


def _changes(played: Played) -> list[tuple[str, float]]:
    """Return the type of which there are more, each time that it changes."""
    changes: list[tuple[str, float]] = []
    for at in range(0, 3 * 3600, 60):
        counts = {name: played.held(name, float(at)) for name in (L40S, A10G)}
        most = max(counts, key=lambda name: counts[name])
        if counts[most] > 1 and (not changes or changes[-1][0] != most):
            changes.append((most, float(at)))
    return changes


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_fleet_is_one_instance_until_an_epoch_has_come(
    folder: Path, strategy: str
) -> None:
    played = play(experiment("4h", "$40", strategy, instances=[L40S]), {})
    before = played.launches(until=played.first_epoch - 1)
    assert before == {L40S: 1}
    assert played.launches(until=played.first_epoch + 1)[L40S] >= 5


def test_a_fleet_doesnt_wait_long_for_an_epoch(folder: Path) -> None:
    """One may take an hour, and a script that trains for minutes doesn't fail at once."""
    played = play(experiment("4h", "$40", instances=[L40S]), {L40S: 50.0})
    assert played.first_epoch > 0.1 * 4 * 3600
    assert played.launches(until=0.05 * 4 * 3600)[L40S] > 5


def test_a_small_budget_begins_with_a_small_instance(folder: Path) -> None:
    """A p4d's eight GPUs would cost least, and until one had trained an eighth of the budget."""
    either = experiment("2h", "$2.50", "asha", instances=["p4d.24xlarge", L40S], market="spot")
    played = play(either, {})
    assert played.launches(until=played.first_epoch - 1) == {L40S: 1}
    either = experiment("2h", "$25", "asha", instances=["p4d.24xlarge", L40S], market="spot")
    large = play(either, {})
    assert large.launches(until=0.0) == {"p4d.24xlarge": 1}


def test_a_short_deadline_doesnt_wait_for_a_second_boot(folder: Path) -> None:
    played = play(experiment("12m", "$4", instances=[L40S]), {})
    assert played.launches(until=0.0)[L40S] > 5


def test_a_script_that_was_measured_starts_on_its_whole_fleet(folder: Path) -> None:
    played = play(experiment("4h", "$40", instances=[L40S]), {}, certain=True)
    assert played.launches(until=0.0)[L40S] > 5


def test_a_script_that_fails_at_once_costs_one_instance(folder: Path) -> None:
    asked = experiment("4h", "$40")
    rentables = load_problem(asked, None).rentables
    policy = make_policy(asked, rentables, Limits(4 * 3600.0, 40.0), heartbeat=False)
    world = SimWorld(rentables, "score", synthetic_metric("max", 1), 1)
    ledger = MemoryLedger()
    run(policy, _Failing(world), ledger)
    assert policy.best is None
    assert Played(policy, ledger.entries, rentables).launches().total() <= 2
    assert policy.spent(policy.now) < 0.005 * 40


class _Failing(_Unsaved):
    """A world in which every trial fails as it starts."""

    def apply(self, command: Command) -> None:
        super().apply(command)
        if isinstance(command, StartTrial):
            failed = TrialFailed(self._world.now + 1.0, command.session, "no module named x", "")
            self._world.schedule(failed)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_cap_leaves_the_scout_a_place(folder: Path, strategy: str) -> None:
    played = play(experiment("4h", "$40", strategy, max_instances=3), {L40S: 4.0})
    assert played.launches()[A10G] >= 3
    assert max(_at_once(played)) <= 3
    assert played.flaps == ()


def _at_once(played: Played) -> list[int]:
    times = [rented.requested_at for rented in played.policy.fleet]
    return [played.held(L40S, at) + played.held(A10G, at) for at in times]


def test_a_scout_that_the_cloud_refuses_doesnt_hold_the_run_up(folder: Path) -> None:
    asked = experiment("4h", "$40")
    rentables = load_problem(asked, None).rentables
    policy = make_policy(asked, rentables, Limits(4 * 3600.0, 40.0), heartbeat=False)
    world = _Refusing(SimWorld([_measured(r) for r in rentables], "score", _metric, 1))
    ledger = MemoryLedger()
    run(policy, world, ledger)
    played = Played(policy, ledger.entries, rentables)
    assert played.launches(until=played.first_epoch + 60)[L40S] > 5
    assert 20 < played.launches()[A10G] < 80, "again every three minutes"
    assert played.dollars(A10G) == 0.0


def test_a_scout_that_was_refused_joins_when_the_cloud_has_it(folder: Path) -> None:
    played = play(experiment("4h", "$40"), {L40S: 2.0}, away=(A10G, 3600.0))
    assert played.held(A10G, at=1.5 * 3600) > 5
    assert played.held(L40S, at=1.5 * 3600) == 0


def test_a_fleet_is_replaced_in_waves_where_the_cap_is_full(folder: Path) -> None:
    """Few instances can join before others have gone, and no trial ends for hours."""
    asked = experiment("8h", "$75", "random", max_instances=6)
    played = play(asked, {L40S: 4.0}, away=(A10G, 3600.0))
    assert played.held(L40S, at=3600.0) == 5
    assert played.held(L40S, at=2 * 3600.0) == 0
    assert played.held(A10G, at=2 * 3600.0) == 6
    assert max(_at_once(played)) <= 6
    came = [r.requested_at for r in played.policy.fleet if r.offer.instance_type.name == A10G]
    assert len({at for at in came if at > 3600}) > 3, "a few at a time"
    assert played.flaps == ()


@pytest.mark.parametrize("strategy", ["asha", "asha-stopping", "random"])
def test_what_is_left_over_waits_for_the_cheaper_type(folder: Path, strategy: str) -> None:
    """One instance and a half: the half pays for a second one later on."""
    played = play(experiment("4h", "$12", strategy, instances=[L40S, "p3.2xlarge"]), {})
    assert played.dollars("p3.2xlarge") < 0.05 * 12
    assert played.dollars(L40S) > 0.9 * 12
    assert played.launches()[L40S] == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_fleet_that_has_just_begun_isnt_given_up_for_its_set_ups(
    folder: Path, strategy: str
) -> None:
    """Its sessions have been set up, and most of their epochs are to come."""
    played = play(experiment("4h", "$80", strategy), {A10G: 1.3}, start=120.0)
    rule = played.policy.fleet_rule
    assert isinstance(rule, SpendingFleet)
    assert rule.offers.scouting.moves == 0


def _metric(_config: Mapping[str, object], epoch: int) -> float:
    return 1 - 0.9**epoch


class _Refusing(_Unsaved):
    """A world without instances of one type."""

    def apply(self, command: Command) -> None:
        if isinstance(command, Launch) and command.instance_type == A10G:
            refused = LaunchFailed(self._world.now, command.intent, "None", "", kind="capacity")
            self._world.apply(command)
            self._world.schedule(refused)
        else:
            super().apply(command)

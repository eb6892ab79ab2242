"""A run goes on with more trials: sampled as if it had had them, within its limits, replayable."""

import pytest

from cloudtune.display.report_screen import show_report
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.timeline import read
from cloudtune.engine.resume import replay
from cloudtune.engine.simulator import SimWorld
from cloudtune.errors import UsageError
from cloudtune.experiment.search_space import Grid, Uniform
from cloudtune.lifecycle.resume import Further, further_limits, try_more
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import Interrupted, LaunchFailed, RunContinued, first_event
from cloudtune.model.plans import Charges, Limits
from cloudtune.model.trial import EndReason, Trial
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.reserve import Reserve
from cloudtune.policy.run import RunPolicy
from cloudtune.policy.schedule.situation import Situation
from cloudtune.runs.figures import legs
from cloudtune.runs.job import make_policy, make_sampler
from cloudtune.runs.report import build, to_json
from cloudtune.strategies.samplers.sampler import SpaceSampler
from tests.builders.runs import Setting
from tests.builders.trials import Given, trials
from tests.builders.values import present
from tests.display.test_run_screen import print_lines
from tests.lifecycle import test_resume

SETTING = Setting(trials=6, min_epochs=2, max_epochs=8)
MORE, PAUSE = 5, 500.0
AS_IT_GOES = [
    *("random", "grid", "sequential", "median", "halving", "hyperband"),
    *("asha", "asha-stopping", "hypersched", "seer", "seer-constant"),
]
PLANNED = ["sha", "rubberband", "rubberband-exact", "sha-static"]


def make_policy_of(setting: Setting) -> RunPolicy:
    given = trials(setting.trials + MORE)
    return setting.policy(sampler=Given(given[: setting.trials], given[setting.trials :]))


def first_leg(
    setting: Setting, interrupted: float | None
) -> tuple[RunPolicy, SimWorld, MemoryLedger]:
    return test_resume.first_leg(setting, interrupted, make_policy_of(setting))


@pytest.mark.parametrize("by", [*AS_IT_GOES, *PLANNED])
@pytest.mark.parametrize("share", [0.1, 0.6, None])
def test_newcomers_are_tried_and_the_best_wins(by: str, share: float | None) -> None:
    setting = SETTING.but(by=by, limits=Limits(deadline=3000.0))
    at = None
    if share is not None:
        whole, *_ = first_leg(setting, None)
        at = whole.now * share
    policy, world, ledger = first_leg(setting, at)
    before, spent = set(policy.trials), policy.spent(policy.now)
    trained = {t.id: t.epoch for t in policy.trials.values() if t.status == "finished"}
    deadline, budget = policy.now + PAUSE + 3000.0, spent + 50.0
    world.go_on(RunContinued(policy.now + PAUSE, deadline, budget, MORE))
    run(policy, world, ledger)
    assert policy.ended
    assert policy.ending is EndReason.DONE
    assert not policy.fleet.alive()
    assert policy.now <= deadline
    assert spent < policy.spent(policy.now) <= budget
    newcomers = [f"t{n:02d}" for n in range(setting.trials, setting.trials + MORE)]
    assert set(newcomers) <= set(policy.trials), "all of them begin"
    assert before <= set(policy.trials)
    for name in newcomers:
        assert min(policy.trials[name].history) == 1, "from their begin"
    assert {name: policy.trials[name].epoch for name in trained} == trained
    best = present(policy.best)
    reached = [v for t in policy.trials.values() for v in t.history.values() if v is not None]
    assert best.metric == max(reached)
    assert max(t.epoch for t in policy.trials.values()) == setting.max_epochs
    # Whoever reads the record decides the same.
    assert replay(make_policy_of(setting), ledger.entries).ended
    assert [leg.event.trials for leg in read(ledger.entries).legs] == [MORE]


def test_planned_newcomers_catch_up() -> None:
    scores = [9.0, 8.0, 1.0, 1.0, 1.0, 1.0, 7.0, 6.0, 8.5, 5.0, 4.0]
    setting = SETTING.but(by="sha", limits=Limits(deadline=3000.0))
    setting = setting.but(metric=lambda n, epoch: scores[n] + epoch / 100)
    whole, *_ = first_leg(setting, None)
    stage_2 = present(whole.itinerary).stage_began[1]
    policy, world, ledger = first_leg(setting, stage_2 + 1.0)
    assert policy.itinerary is not None
    assert policy.itinerary.members == ("t00", "t01", "t02")
    world.go_on(RunContinued(policy.now + PAUSE, policy.now + PAUSE + 3000.0, None, MORE))
    begins = len(ledger.entries)
    run(policy, world, ledger)
    it = policy.itinerary
    stages = [(s.stage.trials, s.stage.start_epoch, s.stage.end_epoch) for s in it.plan.stages]
    # 5 newcomers to the first rung; the best 2 of them with the 3 to the second, and so on.
    assert stages[2:] == [(5, 0, 2), (5, 2, 4), (2, 4, 8)]
    epochs = {name: trial.epoch for name, trial in policy.trials.items()}
    assert [epochs[f"t{n:02d}"] for n in range(11)] == [8, 4, 4, 2, 2, 2, 4, 2, 8, 2, 2]
    assert present(policy.best).trial == "t00"
    began = [
        c.trial for e in ledger.entries[begins:] for c in e.commands if isinstance(c, StartTrial)
    ]
    assert set(began[:5]) == {f"t{n:02d}" for n in range(6, 11)}, "the others wait for them"
    result = [entry for entry in ledger.entries[begins:] if "PlanAnew" in str(entry.commands)]
    assert "5 more trials" in str(result[0].commands)


def test_what_is_planned_again_meanwhile_has_those_that_wait() -> None:
    setting = SETTING.but(by="sha", limits=Limits(deadline=3000.0))
    whole, *_ = first_leg(setting, None)
    stage_2 = present(whole.itinerary).stage_began[1]
    policy, *_ = first_leg(setting, stage_2 + 1.0)
    at = policy.now + PAUSE
    policy.handle(RunContinued(at, at + 3000.0, None, 2))
    situation = Situation(policy.state, present(policy.itinerary), ExactPlanner(), Reserve(7.0))
    # Two newcomers to the first rung; the better one with three to the second.
    assert [(stage.trials, stage.end_epoch) for stage in situation.later] == [(4, 4), (2, 8)]


def test_hypersched_admits_newcomers_where_it_had_closed() -> None:
    setting = SETTING.but(by="hypersched")
    whole, *_ = first_leg(setting.but(limits=Limits(deadline=3000.0)), None)
    policy, world, ledger = first_leg(setting.but(limits=Limits(whole.now * 0.6)), None)
    world.go_on(RunContinued(policy.now + PAUSE, policy.now + PAUSE + 3000.0, None, MORE))
    run(policy, world, ledger)
    assert {f"t{n:02d}" for n in range(6, 6 + MORE)} <= set(policy.trials)


def test_a_run_stopped_during_catching_up_takes_other_trials() -> None:
    setting = SETTING.but(by="sha", limits=Limits(deadline=3000.0))
    whole, *_ = first_leg(setting, None)
    policy, world, ledger = first_leg(setting, whole.now * 0.9)
    at = policy.now + PAUSE
    world.go_on(RunContinued(at, at + 3000.0, None, 2))
    world.schedule(Interrupted(at + 40.0))
    run(policy, world, ledger)
    ended = [policy.ending]
    world.go_on(RunContinued(policy.now + PAUSE, policy.now + PAUSE + 3000.0, None, 3))
    run(policy, world, ledger)
    ended.append(policy.ending)
    assert ended == [EndReason.INTERRUPTED, EndReason.DONE]
    assert len(policy.trials) == setting.trials + 5
    assert replay(make_policy_of(setting), ledger.entries).ended


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        ("random", {"x": Uniform(0.0, 1.0)}),
        ("qmc", {"x": Uniform(0.0, 1.0)}),
        ("tpe", {"x": Uniform(0.0, 1.0), "g": Grid((1, 2))}),
    ],
)
def test_first_trials_dont_change(kind: str, space: dict[str, Grid]) -> None:
    def asked(sampler: SpaceSampler, count: int) -> list[Trial]:
        result = []
        for _ in range(count):
            trial = present(sampler.ask())
            sampler.tell(trial, 1, float(trial.config["x"]))  # type: ignore[arg-type]
            result.append(trial)
        return result

    few, many = SpaceSampler(space, kind, most=12), SpaceSampler(space, kind, most=20)
    begun = asked(few, 12)
    assert few.ask() is None
    assert few.more(8) == 8
    assert [*begun, *asked(few, 8)] == asked(many, 20)
    assert few.ask() is None


def test_added_draws_continue_but_grids_end() -> None:
    wanted = SETTING.job().experiment
    few = make_sampler(wanted)
    many = make_sampler(wanted.model_copy(update={"trials": 10}))
    begun = [few.ask() for _ in range(7)]
    assert begun[6] is None
    assert few.more(4) == 4
    assert [*begun[:6], *[few.ask() for _ in range(4)]] == [many.ask() for _ in range(10)]
    grid = SpaceSampler({"a": Grid((1, 2, 3, 4))}, most=3)
    assert (grid.more(5), grid.more(1)) == (1, 0)


def refusal(strategy: str, more: int, limits: Limits) -> str:
    """Return what is said where a run of a strategy, that has ended, is to try n more."""
    job = SETTING.job()
    data = job.experiment.to_json()
    data |= {"strategy": {"name": strategy}, "search": {"x": {"grid": [0, 1, 2, 3, 4, 5, 6]}}}
    wanted = type(job.experiment).from_json(data)
    plan = None if strategy in AS_IT_GOES or strategy == "pbt" else SETTING.plan()
    tried = make_policy(wanted, SETTING.rentables, Limits(deadline=3000.0), plan)
    tried.handle(first_event(0.0, begun=False))
    tried.handle(Interrupted(1.0))
    for rented in list(tried.fleet.alive()):
        tried.handle(LaunchFailed(2.0, rented.intent, "x", ""))
    assert tried.ended
    with pytest.raises(UsageError) as raised:
        try_more(job, tried, RunContinued(100.0, limits.deadline, limits.budget, more))
    return str(raised.value)


def test_what_cant_be_is_said_before_anything_is_rented() -> None:
    wide = Limits(9000.0, None)
    assert "5 more trials: its search space has only 1 more" in refusal("asha", 5, wide)
    assert "its search space has only 1 more" in refusal("sha", 5, wide)
    assert "pbt makes new trials from those" in refusal("pbt", 1, wide)
    tight = refusal("sha", 1, Limits(130.0, None))
    assert "no plan for them and for what is left keeps the limits" in tight
    assert "--deadline" in tight
    assert "nothing was launched" in tight


@pytest.mark.parametrize("written", ["16", "+0", "-3", "+", "many", "+1.5", 0, -2])
def test_more_trials_are_written_with_their_sign(written: str | int) -> None:
    with pytest.raises(UsageError, match=r"--trials .*as in --trials \+16"):
        _ = Further(trials=written).more


def test_a_finished_run_goes_on_with_more_trials() -> None:
    policy, _, ledger = first_leg(SETTING.but(by="asha"), None)
    left, job = replay(make_policy_of(SETTING.but(by="asha")), ledger.entries), SETTING.job()
    with pytest.raises(UsageError, match=r"--trials \+8 tries more"):
        further_limits(job, policy, left, Further("+1h"), policy.now)
    result = further_limits(job, policy, left, Further("+1h", None, "+16"), policy.now)
    assert result == Limits(policy.now + 3600.0, None)
    assert (Further(trials="+16").more, Further(trials=16).more) == (16, 16)


def test_a_report_shows_what_each_leg_was_given() -> None:
    setting = SETTING.but(limits=Limits(3000.0, 40.0), charges=Charges(0.01, 0.001))
    job = setting.job()
    policy, world, ledger = job.policy(), setting.world(), MemoryLedger()
    run(policy, world, ledger)
    assert policy.why_over() == "its strategy has trained everything"
    spent, ended = policy.spent(policy.now), policy.over_at
    world.go_on(RunContinued(policy.now + PAUSE, policy.now + PAUSE + 3000.0, 80.0, MORE))
    run(policy, world, ledger)
    report = build(job, tuple(ledger.entries))
    lines = print_lines(lambda out: show_report(out, report), columns=200)
    first, second = [line for line in lines if line.startswith("Leg ")]
    end, dollars = format_seconds(ended), format_dollars(spent)
    limits = "within 50m, $40.00 in all"
    assert first == f"Leg 1, 0s to {end}: {limits}; {dollars} spent, ended: done"
    assert ", $80.00 in all, with 5 more trials; $" in second
    result = legs(report.policy, report.timeline, job.limits)
    assert [leg.dollars for leg in result] == pytest.approx(
        [spent, policy.spent(policy.now) - spent]
    )
    assert to_json(report)["legs"][0]["trials"] == MORE

import json

import pytest

from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.problem import build_problem
from cloudtune.model.commands import StartTrial
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.scaling import Measurement
from cloudtune.model.trial import EndReason
from cloudtune.policy.base import TrialRules, drain_seconds
from cloudtune.runs.job import Job, make_policy, read_rules, trials
from tests.builders import LINEAR, Setting, offer, play, profile

SETTING = Setting(8, 1, 8, 2, limits=Limits(deadline=900.0, budget=12.5), seed=3)


def test_a_job_reads_back_equal_and_decides_equally() -> None:
    job = SETTING.job()
    assert len(job.rentables) == 1
    again = Job.from_json(json.loads(json.dumps(job.to_json())))
    assert again == job
    played, policy = play(SETTING), again.policy()
    assert [policy.handle(entry.event)[:1] for entry in played.entries[:9]] == [
        entry.commands[:1] for entry in played.entries[:9]
    ]


def test_a_job_on_several_offers_has_the_slowests_time() -> None:
    other = Rentable(offer(1, name="p.1x"), profile(LINEAR, release=30.0, name="p.1x"), 2)
    job = SETTING.but(others=(other,)).job()
    again = Job.from_json(json.loads(json.dumps(job.to_json())))
    assert again == job
    assert again.policy().state.brakes.drain == drain_seconds(other.profile)


def test_trials_follow_the_seed() -> None:
    drawn = trials(SETTING.job().experiment)
    assert [trial.id for trial in drawn] == [f"t{n:02d}" for n in range(8)]
    assert drawn == trials(SETTING.job().experiment)
    assert drawn != trials(SETTING.but(seed=4).job().experiment)
    many = trials(SETTING.but(trials=101).job().experiment)
    assert [trial.id for trial in many] == sorted(trial.id for trial in many)
    assert many[0].id == "t000"


def test_giving_back_has_room_to_spare() -> None:
    made = profile(LINEAR, release=2.0, spread=0.5)
    assert made.release == Measurement(2.0, 1.0, 3)
    assert drain_seconds(made) == pytest.approx(3.0 + 2.0 * 4.0)
    slower = profile(LINEAR, release=9.0)
    assert drain_seconds(made, slower) == drain_seconds(slower, made) == pytest.approx(21.0)


def test_a_boot_may_take_twice_the_measured_time() -> None:
    slow = SETTING.but(profile=profile(LINEAR, launch=100.0, boot=800.0), limits=Limits())
    policy = slow.job().policy()
    assert policy.state.brakes.join == 1800.0
    assert SETTING.job().policy().state.brakes.join == 600.0
    run(policy, SimWorld(slow.rentables, "score", synthetic_metric("max", 0)), MemoryLedger())
    assert policy.ending is EndReason.DONE


def test_a_trial_s_rules_are_the_experiment_s() -> None:
    job = SETTING.job()
    assert read_rules(job.experiment) == TrialRules(10.0, 600.0, max_failures=3)
    stall = {"factor": 3, "least": "1m"}
    asked = {"sync": "required", "stall": stall, "max_failures": 5, "keep_failed": "30m"}
    experiment = Experiment(**{**dict(job.experiment), "trial": asked})
    assert read_rules(experiment) == TrialRules(
        3.0, 60.0, sync_required=True, max_failures=5, keep_failed=1800.0
    )
    assert Experiment.from_json(experiment.to_json()) == experiment


@pytest.mark.parametrize(
    ("gpus", "widths"),
    [({}, (1, 2)), ({"max": 1}, (1,)), ({"min": 2}, (2,)), ({"min": 2, "max": 2}, (2,))],
)
@pytest.mark.parametrize("strategy", ["sha", "hypersched"])
def test_no_plan_too_wide(gpus: dict[str, int], widths: tuple[float, ...], strategy: str) -> None:
    base = dict(SETTING.job().experiment)
    cloud = {"instances": ["g7.12xlarge"], "max_instances": 2}
    changed = {"trial": {"gpus": gpus}, "cloud": cloud, "strategy": strategy, "trials": 4}
    experiment = Experiment(**{**base, **changed})
    measured = profile({1.0: 8.0, 2.0: 4.1}, name="g7.12xlarge")
    problem = build_problem(experiment, [measured])
    assert {rentable.profile.widths for rentable in problem.rentables} == {widths}
    planned = make.make_plan(problem, Limits(), runs=4)
    staged = planned.plan.staged
    for stage in () if staged is None else staged.stages:
        assert {group.width for group in stage.groups} <= set(widths)
    policy = make_policy(experiment, problem.rentables, Limits(deadline=900.0), staged)
    world = SimWorld(problem.rentables, "score", synthetic_metric("max", 0))
    ledger = MemoryLedger()
    run(policy, world, ledger)
    starts = [c for e in ledger.entries for c in e.commands if isinstance(c, StartTrial)]
    assert {start.width for start in starts} <= set(widths)


def test_a_profile_that_lacks_a_trials_width_is_refused() -> None:
    base = dict(SETTING.job().experiment)
    cloud = {"instances": ["g7.12xlarge"], "max_instances": 2}
    experiment = Experiment(**{**base, "cloud": cloud, "trial": {"gpus": {"min": 2}}})
    problem = build_problem(experiment, [profile({1.0: 8.0}, name="g7.12xlarge")])
    with pytest.raises(
        UsageError, match=r"g7\.12xlarge: measured at 1 GPUs, and trial\.gpus allows"
    ):
        make.make_plan(problem, Limits())

from __future__ import annotations

import json

import pytest

from cloudtune.jobs.job import Job, trials
from cloudtune.jobs.stages import work
from cloudtune.plan import Limits, Rentable, Stage
from cloudtune.policy.base import drain_seconds
from cloudtune.scaling import Measurement
from cloudtune.strategies.successive_halving import SuccessiveHalving
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


def test_the_policy_has_what_the_job_says() -> None:
    policy = SETTING.job().policy()
    assert policy.limits == SETTING.limits
    assert policy.state.metric.name == "score"
    assert policy.state.brakes.drain == drain_seconds(SETTING.profile)
    assert policy.itinerary is not None
    assert len(policy.itinerary.trials) == 8


def test_a_job_on_several_offers_has_time_for_the_slowest_of_them() -> None:
    other = Rentable(offer(1, name="p.1x"), profile(LINEAR, release=30.0, name="p.1x"), 2)
    job = SETTING.but(others=(other,)).job()
    again = Job.from_json(json.loads(json.dumps(job.to_json())))
    assert again == job
    assert again.policy().state.brakes.drain == drain_seconds(other.profile)


def test_trials_are_drawn_by_the_seed_and_named_in_order() -> None:
    drawn = trials(SETTING.job().experiment)
    assert [trial.id for trial in drawn] == [f"t{n:02d}" for n in range(8)]
    assert drawn == trials(SETTING.job().experiment)
    assert drawn != trials(SETTING.but(seed=4).job().experiment)
    many = trials(SETTING.but(trials=101).job().experiment)
    assert [trial.id for trial in many] == sorted(trial.id for trial in many)
    assert many[0].id == "t000"


def test_the_stages_are_the_experiment_s() -> None:
    found = work(SETTING.job().experiment, 8, 8)
    assert found == SuccessiveHalving(8, 1, 8, 2, "max").stages()
    assert found[0] == Stage(8, 0, 1)


def test_giving_back_has_room_to_spare() -> None:
    made = profile(LINEAR, release=2.0, spread=0.5)
    assert made.release == Measurement(2.0, 1.0, 3)
    assert drain_seconds(made) == pytest.approx(3.0 + 2.0 * 4.0)
    slower = profile(LINEAR, release=9.0)
    assert drain_seconds(made, slower) == drain_seconds(slower, made) == pytest.approx(21.0)

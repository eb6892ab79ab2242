"""Measuring a script, as its experiment says."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cloudtune.display import plan_tables
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast import make
from cloudtune.forecast.plan_file import make_job
from cloudtune.forecast.problem import build_problem, stored_profiles
from cloudtune.forecast.proposal import cores_note, propose, to_json
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.infra.emulator.pacing import core_factor
from cloudtune.infra.provider import Cloud, Endpoint
from cloudtune.lifecycle import measuring, runner
from cloudtune.lifecycle.flow import prepare, refuse_made_up, tune
from cloudtune.lifecycle.reporter import Reporters
from cloudtune.model.plans import Limits, Rentable
from cloudtune.runs.job import Job
from tests.builders import profile
from tests.builders.experiments import write_experiment
from tests.builders.worlds import measure_in

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.model.scaling import ScalingProfile
    from cloudtune.policy.measure import MeasurePolicy

EMULATED = """\
name: paced
train: train.py:train
metric: {name: score, mode: max}
search: {x: {uniform: [0, 1]}}
trials: 8
epochs: {min: 2, max: 16}
eta: 2
strategy: sha
cloud: {instances: [g7.12xlarge], market: on-demand, max_instances: 4}
"""


def make_experiment(folder: Path, **cloud: Any) -> Experiment:
    """Return an experiment on the emulated cloud, whose script is there."""
    path = write_experiment(folder, EMULATED, "def train(config): ...\n")
    return Experiment.load(path, cloud, known_instances=lambda _: ["g7.12xlarge", "p3.8xlarge"])


def measure(
    monkeypatch: pytest.MonkeyPatch, experiment: Experiment, seconds: float, *, pace: bool = True
) -> ScalingProfile:
    """Return the profile of a script whose epoch takes so long on a core, whoever shares it."""
    paces: list[bool] = []

    def opened(experiment: Experiment, *, pace: bool) -> Cloud:
        paces.append(pace)
        return Cloud(Endpoint("us-east-1"), {}, {})

    truth = profile({1.0: seconds, 2.0: seconds}, start=0.3, name="g7.12xlarge")
    score = synthetic_metric("max", 0)
    measure_in(monkeypatch, lambda it: SimWorld((it,), "score", score), truth)
    monkeypatch.setattr(measuring, "open_cloud", opened)
    result = measuring.measure(
        experiment, "g7.12xlarge", lambda *_: None, pace=pace, limits=Limits(3600.0, None)
    )
    assert paces == [False], "nothing is paced while the script is timed"
    measuring.keep_profile(result.profile)
    return result.profile


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for a script, whose home of cloudtune is its own."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    return tmp_path


def test_scripts_have_own_profiles(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    experiment = make_experiment(home)
    cheap, dear = (measure(monkeypatch, experiment, seconds) for seconds in (0.05, 2.4))
    factor, _ = core_factor("rtx-pro-4500")
    assert 6.0 < factor < 10.0, "such a GPU is faster than a V100"
    assert cheap.epoch[1.0].mean == pytest.approx(0.05 * factor)
    assert dear.epoch[1.0].mean == pytest.approx(2.4 * factor)
    assert dear.epoch[2.0].mean == pytest.approx(2.4 * factor / 1.854)
    assert (dear.provenance.origin, dear.provenance.core_seconds) == ("emulated", 2.4)
    plans = [
        make.make_plan(build_problem(experiment, [item]), Limits(300.0)).plan.staged
        for item in (cheap, dear)
    ]
    quick, slow = (plan for plan in plans if plan is not None)
    assert (quick.peak_instances, slow.peak_instances) == (1, 2)
    assert quick.estimate.dollars < slow.estimate.dollars


def test_without_a_pace_the_seconds_are_this_machines(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    result = measure(monkeypatch, make_experiment(home), 0.5, pace=False)
    assert result.epoch[1.0].mean == pytest.approx(0.5)
    assert (result.provenance.origin, result.provenance.core_seconds) == ("emulated", None)
    assert result.source == "measured on emulated cloud, unpaced"


def test_emulated_seconds_are_no_profile_of_real_gpus(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    experiment = make_experiment(home)
    result = measure(monkeypatch, experiment, 0.5)
    path = measuring.keep_profile(result)
    assert stored_profiles(experiment) == [result]
    real = make_experiment(home, **{"cloud.provider": "aws"})
    assert stored_profiles(real) == []
    assert stored_profiles(real, str(path)) == [result], "it was named"
    with pytest.raises(UsageError, match="emulated, not those of real GPUs"):
        refuse_made_up(real, [result], force=False)
    refuse_made_up(real, [result], force=True)
    refuse_made_up(experiment, [result], force=False)


def test_a_plan_says_what_its_figures_rest_on(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    experiment = make_experiment(home)
    actual = measure(monkeypatch, experiment, 0.5)
    made = make.make_plan(build_problem(experiment, [actual]), Limits(600.0))
    proposal = propose(made)
    result = to_json(proposal)
    assert result["provenance"] == {"text": "emulated", "kinds": ["emulated"]}
    assert result["profiles"][0]["provenance"]["core_seconds"] == 0.5
    assert plan_tables.stages_sheet(proposal).title == "Stages, emulated"
    quality = {fact.label: fact.text for fact in plan_tables.certainty(proposal)}["quality"]
    assert quality == "proven cheapest (gap 0) of 1 offer, by these figures: emulated"
    job = Job.from_json(make_job(made, 0.0, paced=True).to_json())
    assert job.profiles[0].provenance == actual.provenance, "saved plans and ledgers have it"
    monkeypatch.setattr("cloudtune.infra.node.this_machine.cores", lambda: 2)
    assert not list(cores_note(made.plan, made.rentables))
    [note] = cores_note(made.plan, [_hurry(rentable) for rentable in made.rentables])
    assert "epochs will take longer than planned" in note


def _hurry(rentable: Rentable) -> Rentable:
    """Return it as one whose pace is faster than the core that it was timed on."""
    result = replace(rentable.profile.provenance, core_seconds=12.5)
    return replace(rentable, profile=replace(rentable.profile, provenance=result))


def first(
    monkeypatch: pytest.MonkeyPatch,
    experiment: Experiment,
    truth: ScalingProfile,
    hangs_in: int = 99,
) -> tuple[float, float]:
    """Measure as `run` does first; return the seconds and dollars, of virtual time, that it took.

    Every trial hangs in one of its epochs.
    """
    took: list[tuple[float, float]] = []

    def world(machine: Rentable) -> SimWorld:
        return SimWorld(
            (machine,),
            "score",
            synthetic_metric("max", 0),
            pace_of=lambda _config, epoch: 1e6 if epoch == hangs_in else 1.0,
        )

    def note(policy: MeasurePolicy) -> None:
        took.append((policy.now, policy.spent(policy.now)))

    measure_in(monkeypatch, world, truth, note)
    monkeypatch.setattr(measuring, "preflight", lambda *_, **__: None)
    problem = prepare(experiment, None, time.time(), Reporters(), pace=True).problem
    assert make.make_plan(problem, Limits(36000.0)).plan.estimate.seconds > 0
    return took[0]


TRUTH = profile({1.0: 2.0, 2.0: 1.0}, start=0.3, boot=5.0, name="g7.12xlarge")


@pytest.mark.parametrize("hangs_in", [2, 3, 4])
def test_a_hanging_configuration_takes_a_quarter_of_the_deadline(
    monkeypatch: pytest.MonkeyPatch, home: Path, hangs_in: int
) -> None:
    experiment = make_experiment(home, **{"limits.deadline": "2m"})
    seconds, _ = first(monkeypatch, experiment, TRUTH, hangs_in)
    assert seconds <= 30.0
    [result] = stored_profiles(experiment)
    assert result.provenance.core_seconds == pytest.approx(2.0)


def test_measuring_costs_a_tenth(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    experiment = make_experiment(home, **{"limits.budget": "$2"})
    _, dollars = first(monkeypatch, experiment, TRUTH.slow_down(10.0))
    assert 0.1 < dollars <= 0.2


def test_run_spends_what_measuring_left(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    experiment = make_experiment(home, **{"limits.deadline": "1h", "limits.budget": "$2"})
    jobs: list[Job] = []
    measure_in(monkeypatch, lambda it: SimWorld((it,), "score", synthetic_metric("max", 0)), TRUTH)
    monkeypatch.setattr(measuring, "preflight", lambda *_, **__: None)
    monkeypatch.setattr(runner, "run_job", lambda job, _: jobs.append(job))
    tune(experiment, PlanOptions(), Reporters())
    [job] = jobs
    assert job.measuring > 0.01
    assert job.limits.budget == pytest.approx(2.0 - job.measuring)


def test_a_measurement_counts_the_charges_of_its_experiment(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    charged = {"limits.budget": "$9", "charges.per_launch": "$0.5"}
    _, dollars = first(monkeypatch, make_experiment(home, **charged), TRUTH)
    assert 0.5 < dollars < 1.0


def test_a_first_epoch_is_measured_though_it_costs_more(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    experiment = make_experiment(home, **{"limits.budget": "$0.4"})
    seconds, _ = first(monkeypatch, experiment, TRUTH.slow_down(20.0))
    assert 40.0 < seconds < 120.0
    [result] = stored_profiles(experiment)
    assert set(result.epoch) == {1.0}, "the other widths are left to the run"


def test_unmeasured_run_assumes_speeds(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = make_experiment(home, **{"limits.deadline": "2m", "limits.budget": "$2"})
    measure_in(
        monkeypatch,
        lambda it: SimWorld(
            (it,), "score", synthetic_metric("max", 0), pace_of=lambda _config, _epoch: 1e6
        ),
        TRUTH,
    )
    monkeypatch.setattr(measuring, "preflight", lambda *_, **__: None)
    prepared = prepare(experiment, None, time.time(), Reporters(), pace=True)
    assert prepared.dollars > 0.0, "what measuring cost is gone"
    origins = {rentable.profile.provenance.origin for rentable in prepared.problem.rentables}
    assert origins == {"assumed"}
    assert "could not measure the script: stopped: deadline" in capsys.readouterr().err

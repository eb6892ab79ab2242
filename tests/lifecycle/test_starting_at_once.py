"""A search of a script that has never run: nothing is measured before it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from cloudtune.api.experiments import load_experiment
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.errors import UsageError
from cloudtune.forecast.assumed import assumed_epoch_seconds
from cloudtune.forecast.problem import load_catalog
from cloudtune.infra.emulator.pacing import SCALE_VARIABLE, core_factor
from cloudtune.lifecycle import dry_run, measuring
from cloudtune.lifecycle.dry_run import try_script
from cloudtune.lifecycle.flow import prepare
from cloudtune.lifecycle.reporter import Reporters
from cloudtune.profiles.store import read
from tests.builders import profile
from tests.builders.worlds import measure_in

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.runs.job import Job
    from tests.bench import Bench

SLEEPY = "import time; time.sleep(0.3)"


def test_a_search_is_timed_while_it_is_tried(
    bench: Bench, simulated: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "try_script", try_script)
    path = bench.experiment(SLEEPY)
    done = bench.here("run", path, "--strategy", "asha").succeeded()
    assert "tried on this machine: one trial reported after " in done.err
    assert "measuring" not in done.out
    [job] = simulated
    assert job.measuring == 0.0
    [rentable] = job.rentables
    provenance = rentable.profile.provenance
    assert provenance.origin == "emulated"
    assert provenance.core_seconds is not None
    assert 0.3 <= provenance.core_seconds < 2.0, "an epoch, without imports"
    factor, _ = core_factor("rtx-pro-4500")
    paced = float(bench.environment[SCALE_VARIABLE]) * factor * provenance.core_seconds
    assert rentable.profile.epoch_seconds(1.0) == pytest.approx(paced, rel=0.01)
    [kept] = (bench.home / "profiles").glob("*.json")
    assert read(kept)[0].provenance == provenance, "later plans go by it"


def make_experiment(**changes: object) -> Experiment:
    """Return an experiment of the script in `folder`, which has never run."""
    fields = {
        "name": "small",
        "train": "train.py:train",
        "metric": {"name": "score", "mode": "max"},
        "search": {"x": {"uniform": [0, 1]}},
        "epochs": {"max": 16},
        "trial": {"try_first": False},
        **changes,
    }
    return load_experiment(fields, {})


def test_untried_search_assumes_speeds(folder: Path) -> None:
    experiment = make_experiment(limits={"deadline": "2h", "budget": "$40"})
    prepared = prepare(experiment, None, time.time(), Reporters(), pace=True)
    assert prepared.dollars == 0.0
    origins = {it.profile.provenance.origin for it in prepared.problem.rentables}
    assert origins == {"assumed"}


def test_somebodys_account_is_not_rented_from_without_both_limits(folder: Path) -> None:
    on_aws = {"cloud": {"provider": "aws", "instances": ["g5.xlarge"]}}
    experiment = make_experiment(limits={"budget": "$40"}, **on_aws)
    with pytest.raises(UsageError, match=re.escape("train.py has never run, so nobody knows")):
        prepare(experiment, None, time.time(), Reporters(), pace=True)
    both = make_experiment(limits={"budget": "$40", "deadline": "2h"}, **on_aws)
    prepare(both, None, time.time(), Reporters(), pace=True)


def test_only_best_type_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"deadline": "2h", "budget": "$40"}
    experiment = make_experiment(limits=limits, strategy="sha", trials=4)
    truth = profile({1.0: 2.0, 2.0: 1.0}, start=0.3, boot=5.0)
    score = synthetic_metric("max", 0)
    measure_in(monkeypatch, lambda it: SimWorld((it,), "score", score), truth)
    monkeypatch.setattr(measuring, "preflight", lambda *_, **__: None)
    prepared = prepare(experiment, None, time.time(), Reporters(), pace=True)
    assert len(list((folder / "home/profiles").glob("*.json"))) == 1
    types = {it.offer.instance_type.name for it in prepared.problem.rentables}
    assert len(types) > 20, "the others are derived from it"


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 60.0),
        ({"deadline": "2h"}, 7200 / 6 / 16),
        ({"deadline": "2h", "budget": "$1000"}, 7200 / 6 / 16),
    ],
)
def test_an_epoch_is_assumed_to_fit_the_limits(
    folder: Path, limits: dict[str, str], seconds: float
) -> None:
    experiment = make_experiment(limits=limits)
    offers = load_catalog(experiment).offers
    assert assumed_epoch_seconds(experiment, offers) == pytest.approx(seconds)


def test_small_budget_pays_some_trainings(folder: Path) -> None:
    experiment = make_experiment(limits={"deadline": "24h", "budget": "$3"})
    offers = load_catalog(experiment).offers
    seconds = assumed_epoch_seconds(experiment, offers)
    assert seconds < 24 * 3600 / 6 / 16
    twice = make_experiment(limits={"deadline": "24h", "budget": "$6"})
    assert assumed_epoch_seconds(twice, offers) == pytest.approx(2 * seconds)

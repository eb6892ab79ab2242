"""`cloudtune.optimize`: an objective of Optuna's, from its suggestions to a session's reports."""

import threading
from pathlib import Path
from typing import Any

import pytest

import cloudtune
from cloudtune.api import optimize as optimizing
from cloudtune.api.experiments import load_experiment
from cloudtune.errors import UsageError
from cloudtune.integrations.optuna import discovered, run_trial
from cloudtune.model.events import EpochReport
from cloudtune.runs.job import trials
from cloudtune.train.session import Session
from cloudtune.train.user_script import load_function
from tests.bench import wait_for


class TrialPruned(Exception):  # noqa: N818  Optuna's name
    """Stands in for Optuna's, which is known by its name."""


def objective(trial: Any) -> float:
    """Suggest each kind, report three times, prune as Optuna says."""
    rate = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    for layer in range(trial.suggest_int("layers", 1, 3)):
        trial.suggest_int(f"units/{layer}", 4, 64, log=True)
    trial.suggest_float("dropout", 0.1, 0.5, step=0.2)
    trial.suggest_int("batch", 16, 64, step=16)
    kind = trial.suggest_categorical("kind", ["plain", "deep"])
    if kind == "deep":
        trial.suggest_float("depth", 0.0, 1.0)
    for step in range(3):
        trial.report(rate * step, step)
        if trial.should_prune():
            raise TrialPruned
    return float(rate)


def returns(trial: Any) -> float:
    return float(trial.suggest_float("x", -1, 1)) ** 2


def session(max_epoch: int, reports: list[EpochReport]) -> Session:
    return Session(
        trial_id="t03",
        report_hook=reports.append,
        metric_name="value",
        metric_mode="max",
        max_epoch=max_epoch,
    )


def test_the_space_is_what_a_dry_call_suggests() -> None:
    space, reports = discovered(objective)
    assert reports
    assert space == {
        "lr": {"loguniform": [1e-4, 1.0]},
        "layers": {"randint": [1, 4]},
        **{f"units.{n}": {"lograndint": [4, 65]} for n in range(3)},
        "dropout": {"choice": [0.1, 0.3, 0.5]},
        "batch": {"choice": [16, 32, 48, 64]},
        "kind": {"choice": ["plain", "deep"]},
    }
    assert discovered(returns) == ({"x": {"uniform": [-1, 1]}}, False)


CONFIG = {"lr": 0.5, "layers": 1, "units.0": 9.7, "dropout": 0.3, "batch": 32, "kind": "plain"}


def test_a_trial_reports_each_epoch_of_the_chosen_values() -> None:
    result: list[EpochReport] = []
    worker = session(3, result)
    worker.grant(9)
    worker.run(lambda config: run_trial(objective, config), CONFIG)
    assert [(item.epoch, item.metrics["value"]) for item in result] == [
        (1, 0.0),
        (2, 0.5),
        (3, 1.0),
    ]


def test_what_the_policy_stops_is_what_should_be_pruned() -> None:
    result: list[EpochReport] = []
    asked: list[bool] = []

    def watched(trial: Any) -> float:
        for step in range(3):
            trial.report(trial.suggest_float("lr", 0, 1), step)
            asked.append(trial.should_prune())
            if asked[-1]:
                raise TrialPruned
        return 0.0

    worker = session(3, result)
    worker.grant(2)
    done = threading.Thread(
        target=lambda: worker.run(lambda c: run_trial(watched, c), CONFIG), daemon=True
    )
    done.start()
    wait_for(lambda: len(result) == 2, seconds=30)
    worker.stop()
    done.join()
    assert (len(result), asked) == (2, [False, True])


def test_an_objective_that_only_returns_has_one_epoch() -> None:
    result: list[EpochReport] = []
    worker = session(1, result)
    worker.grant(9)
    worker.run(lambda config: run_trial(returns, config), {"x": 0.5})
    assert [(item.epoch, item.metrics["value"]) for item in result] == [(1, 0.25)]


def test_an_unseen_name_is_drawn_by_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    depths = []
    for _ in range(2):
        result: list[EpochReport] = []
        worker = session(3, result)
        worker.grant(9)
        worker.run(lambda config: run_trial(objective, config), {**CONFIG, "kind": "deep"})
        depths += [item.metrics["param/depth"] for item in result]
    assert len(depths) == 6
    assert len(set(depths)) == 1
    assert f"depth isn't in the search; {depths[0]!r} was drawn" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (objective, "returned after 3 reports, and epochs is 5; give .*: epochs=3"),
        ("itself", "pruned itself after 1 reports"),
    ],
)
def test_an_end_before_the_last_epoch_says_why(train: Any, message: str) -> None:
    train = prunes_itself if train == "itself" else train
    worker = session(5, [])
    worker.grant(9)
    with pytest.raises(UsageError, match=message):
        worker.run(lambda config: run_trial(train, config), CONFIG)


def prunes_itself(trial: Any) -> float:
    trial.report(trial.suggest_float("lr", 0, 1), 0)
    raise TrialPruned


def test_a_run_is_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(optimizing, "run", lambda fields, **more: asked.append((fields, more)))
    space = {"x": {"uniform": [0, 1]}}
    cloudtune.optimize(
        returns,
        n_trials=5,
        direction="maximize",
        budget="$2",
        search=space,
        experiment={"directory": str(tmp_path)},
    )
    [(fields, more)] = asked
    assert more == {"trials": 5, "budget": "$2"}
    wanted = load_experiment(fields, more)
    assert (wanted.metric.mode, wanted.span.max, wanted.trial.gpus.max) == ("max", 1, 1)
    assert len(trials(wanted)) == 5
    assert wanted.strategy_name == "asha-stopping", "a paused objective would begin again"
    assert load_experiment(fields, {**more, "strategy": "asha"}).strategy_name == "asha"
    function = load_function(tmp_path, f"{wanted.train_file.name}:{wanted.train_function}")
    result: list[EpochReport] = []
    worker = session(1, result)
    worker.grant(9)
    worker.run(function, {"x": 0.5})
    assert result[0].metrics == {"value": 0.25}


def test_what_is_missing_is_reported_before_anything_is_rented() -> None:
    with pytest.raises(UsageError, match="epochs="):
        cloudtune.optimize(objective, n_trials=5)
    with pytest.raises(UsageError, match="suggests nothing"):
        cloudtune.optimize(lambda _: 1.0, n_trials=5)
    with pytest.raises(UsageError, match="direction"):
        cloudtune.optimize(objective, direction="max")  # type: ignore[arg-type]

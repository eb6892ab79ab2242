"""`cloudtune.optimize`: an objective of Optuna's, from its suggestions to a session's reports."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cloudtune
from cloudtune.api import optimize as optimizing
from cloudtune.api.experiments import load_experiment
from cloudtune.errors import UsageError
from cloudtune.integrations.optuna import discover_space, run_trial
from cloudtune.model.events import EpochReport
from cloudtune.runs.job import trials
from cloudtune.train.user_script import load_function
from tests.bench import wait_for
from tests.train.sessions import make_session, run_to_grant


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


def list_reports(objective: Any, config: dict[str, Any], epochs: int) -> list[EpochReport]:
    """Return what a trial of an objective reports that no policy stops."""
    train = partial(run_trial, objective)
    return run_to_grant(train, config=config, metric_name="value", max_epoch=epochs)


def test_the_space_is_what_a_dry_call_suggests() -> None:
    space, reports = discover_space(objective)
    assert reports
    assert space == {
        "lr": {"loguniform": [1e-4, 1.0]},
        "layers": {"randint": [1, 4]},
        **{f"units.{n}": {"lograndint": [4, 65]} for n in range(3)},
        "dropout": {"choice": [0.1, 0.3, 0.5]},
        "batch": {"choice": [16, 32, 48, 64]},
        "kind": {"choice": ["plain", "deep"]},
    }
    assert discover_space(returns) == ({"x": {"uniform": [-1, 1]}}, False)


CONFIG = {"lr": 0.5, "layers": 1, "units.0": 9.7, "dropout": 0.3, "batch": 32, "kind": "plain"}


@pytest.mark.parametrize(
    ("function", "config", "values"),
    [(objective, CONFIG, [0.0, 0.5, 1.0]), (returns, {"x": 0.5}, [0.25])],
)
def test_trial_reports_epochs_or_result(
    function: Any, config: dict[str, Any], values: list[float]
) -> None:
    result = list_reports(function, config, epochs=len(values))
    assert [(item.epoch, item.metrics["value"]) for item in result] == [*enumerate(values, start=1)]


def test_stopped_trials_should_be_pruned() -> None:
    result: list[EpochReport] = []
    asked: list[bool] = []

    def watched(trial: Any) -> float:
        for step in range(3):
            trial.report(trial.suggest_float("lr", 0, 1), step)
            asked.append(trial.should_prune())
            if asked[-1]:
                raise TrialPruned
        return 0.0

    worker = make_session(result.append, metric_name="value", max_epoch=3)
    worker.grant(2)
    done = threading.Thread(
        target=lambda: worker.run(lambda c: run_trial(watched, c), CONFIG), daemon=True
    )
    done.start()
    wait_for(lambda: len(result) == 2, seconds=30)
    worker.stop()
    done.join()
    assert (len(result), asked) == (2, [False, True])


def test_an_unseen_name_is_drawn_by_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    depths = []
    for _ in range(2):
        result = list_reports(objective, {**CONFIG, "kind": "deep"}, epochs=3)
        depths += [item.metrics["param/depth"] for item in result]
    assert len(depths) == 6
    assert len(set(depths)) == 1
    assert f"depth isn't in the search; {depths[0]!r} was drawn" in capsys.readouterr().out


def prunes_itself(trial: Any) -> float:
    trial.report(trial.suggest_float("lr", 0, 1), 0)
    raise TrialPruned


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (objective, "returned after 3 reports, and epochs is 5; give .*: epochs=3"),
        (prunes_itself, "pruned itself after 1 reports"),
    ],
)
def test_an_end_before_the_last_epoch_says_why(train: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list_reports(train, CONFIG, epochs=5)


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
    [result] = run_to_grant(function, config={"x": 0.5}, metric_name="value", max_epoch=1)
    assert result.metrics == {"value": 0.25}


def test_missing_names_are_refused_before_renting() -> None:
    with pytest.raises(UsageError, match="epochs="):
        cloudtune.optimize(objective, n_trials=5)
    with pytest.raises(UsageError, match="suggests nothing"):
        cloudtune.optimize(lambda _: 1.0, n_trials=5)
    with pytest.raises(UsageError, match="direction"):
        cloudtune.optimize(objective, direction="max")  # type: ignore[arg-type]

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from cloudtune.progress import TrialProgress
from cloudtune.strategies.summary import Summary
from cloudtune.trial import Trial

if TYPE_CHECKING:
    from cloudtune.strategies.base import View
    from cloudtune.trial import Mode

CURVES = {"a": [0.1, 0.7, 0.2], "b": [0.5], "c": [0.1, 0.2, 0.3, 0.4, 0.5, float("nan")]}


def view(mode: Mode, curves: dict[str, list[float]]) -> View:
    """Return a view of trials that have been trained so."""
    trials = {name: TrialProgress(Trial(name, {})) for name in curves}
    for name, values in curves.items():
        trials[name].history = dict(enumerate(values, start=1))
    return cast("View", SimpleNamespace(mode=mode, trials=trials))


@pytest.mark.parametrize(("mode", "best"), [("max", (0.7, "a", 2)), ("min", (0.1, "a", 1))])
def test_h17_h21_the_best_epoch_of_all_is_found(mode: Mode, best: tuple[float, str, int]) -> None:
    found = Summary.of(view(mode, CURVES))
    assert (found.best, found.best_trial, found.best_epoch) == best
    assert (found.trials, found.epochs) == (3, 10)
    assert (found.shortest, found.median, found.longest) == (1, 3, 6)


def test_h21_a_summary_is_a_row_of_a_csv_and_lines_of_text() -> None:
    found = Summary.of(view("max", CURVES))
    (row,) = csv.DictReader(found.csv().splitlines())
    assert (row["best"], row["best_epoch"], row["longest"]) == ("0.7", "2", "6")
    assert found.text().splitlines()[:3] == ["best: 0.7", "best trial: a", "best epoch: 2"]


def test_a_job_without_a_result_has_a_summary_too() -> None:
    found = Summary.of(view("max", {}))
    assert found == Summary(None, "", 0, 0, 0, 0, 0, 0)
    assert found.text().startswith("best: \n")

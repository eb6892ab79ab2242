"""`cloudtune.optimize`: tune an Optuna objective on rented GPUs, instead of `study.optimize`."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from cloudtune.api.experiments import find_file, refuse_while_loading
from cloudtune.api.results import Result
from cloudtune.api.runs import run
from cloudtune.errors import UsageError
from cloudtune.experiment.defaults import STAYING
from cloudtune.integrations.optuna import METRIC, discover_space, run_trial


def optimize(
    objective: Callable[[Any], object],
    *,
    n_trials: int | None = None,
    direction: Literal["minimize", "maximize"] = "minimize",
    epochs: int | None = None,
    search: Mapping[str, Any] | None = None,
    experiment: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Tune an Optuna objective, instead of `study.optimize(objective, n_trials=…)`.

    `objective(trial)` suggests, reports, calls `should_prune` and returns a value as with Optuna,
    which needn't be installed. Each report is an epoch; `epochs` is the number of reports of a
    full training, and is optional for objectives that don't report. Unless `search` defines the
    space, cloudtune calls the objective locally up to its first report to find its suggestions.
    `options` are those of `cloudtune.run`, such as `deadline` and `budget`; `experiment` has
    further fields of an experiment. Each trial has one GPU and saves no checkpoints: it starts
    again if it loses its instance, and the default strategy, `asha-stopping`, pauses none.

        cloudtune.optimize(objective, n_trials=64, direction="maximize", epochs=10, budget="$5")

    Raises:
        UsageError: the objective suggests nothing, or it reports and `epochs` is missing.
        CloudtuneError: as `cloudtune.run`.
    """
    refuse_while_loading()
    if direction not in {"minimize", "maximize"}:
        raise UsageError(f"direction must be 'minimize' or 'maximize', not {direction!r}")
    if search is None:
        search, reports = discover_space(objective)
        if reports and epochs is None:
            raise UsageError(
                "the objective reports: set epochs= to the number of reports of a full training"
            )
    file = find_file(objective)
    fields = {
        "name": getattr(objective, "__name__", "objective").strip("<>"),
        "train": functools.partial(run_trial, objective),
        "directory": str(Path.cwd() if file is None else file.parent),
        "metric": {"name": METRIC, "mode": "max" if direction == "maximize" else "min"},
        "search": dict(search),
        "epochs": {"max": epochs or 1},
        "strategy": STAYING,
        "trial": {"gpus": {"max": 1}},
        **(experiment or {}),
    }
    return run(fields, trials=n_trials, **options)

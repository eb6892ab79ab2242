"""`cloudtune.optimize`: an Optuna objective on rented GPUs, in place of `study.optimize`."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloudtune.api.experiments import refuse_while_loading
from cloudtune.api.runs import run
from cloudtune.errors import UsageError
from cloudtune.integrations.optuna import METRIC, discovered, run_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudtune.api.results import Result


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
    """Tune an Optuna objective, in place of `study.optimize(objective, n_trials=…)`.

    `objective(trial)` suggests, reports, asks `should_prune` and returns a value as under Optuna,
    which needn't be installed. Each report is an epoch; `epochs` is the number of reports of a
    whole training, and may be left out where there are none. What it suggests is found by calling
    it here up to its first report, unless `search` names the space. `options` are those of
    `cloudtune.run`, such as `deadline` and `budget`, and `experiment` has further fields of an
    experiment. A trial has one GPU. It saves no checkpoints: one whose instance is lost begins
    again.

        cloudtune.optimize(objective, n_trials=64, direction="maximize", epochs=10, budget="$5")

    Raises:
        UsageError: it suggests nothing, or reports and `epochs` is missing.
        CloudtuneError: as `cloudtune.run`.
    """
    refuse_while_loading()
    if direction not in {"minimize", "maximize"}:
        raise UsageError(f"direction: {direction!r} is neither 'minimize' nor 'maximize'")
    if search is None:
        search, reports = discovered(objective)
        if reports and epochs is None:
            raise UsageError("the objective reports: say how often a whole training does, epochs=")
    fields = {
        "name": getattr(objective, "__name__", "objective").strip("<>"),
        "train": functools.partial(run_trial, objective),
        "directory": str(_folder_of(objective)),
        "metric": {"name": METRIC, "mode": "max" if direction == "maximize" else "min"},
        "search": dict(search),
        "epochs": {"max": epochs or 1},
        "trial": {"gpus": {"max": 1}},
        **(experiment or {}),
    }
    return run(fields, trials=n_trials, **options)


def _folder_of(objective: Callable[..., object]) -> Path:
    """Return the folder of an objective's file, which workers get a copy of."""
    try:
        file = Path(inspect.getfile(objective))
    except (OSError, TypeError):
        return Path.cwd()
    return file.resolve().parent if file.is_file() else Path.cwd()

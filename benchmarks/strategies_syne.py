"""A table's configurations tuned by Syne Tune's simulator: run by a Python that has Syne Tune.

    PYTHON -m benchmarks.strategies_syne <jobs.json >tracks.json

It imports nothing of cloudtune. What comes in has `parameters` (of each configuration, by name:
numbers or words), `metrics` and `seconds` (of each configuration, epoch by epoch; more of the
metric is better), the `start` seconds of a trial, the `until` of virtual time, and `jobs`: method,
eta, workers and seed of each. What goes out is, for each job, when which metric was the best so
far. Nobody looks less often than every epoch; a metric that is missing is the worst of the table.
"""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.syne_tables import blackbox, quiet, tuned

# isort: split
# What stands above prepares the imports of Syne Tune.
import numpy as np
import syne_tune
from syne_tune.backend.simulator_backend.simulator_backend import SimulatorConfig
from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
from syne_tune.config_space import choice, uniform
from syne_tune.optimizer.baselines import ASHA, BOHB
from syne_tune.optimizer.scheduler import TrialSuggestion

_LOOKS = 10  # at the trials, for an epoch
_Job = dict[str, Any]
_METHODS = {"asha": ASHA, "bohb": BOHB}


class Table:
    """The configurations of a table, each tried once; what is suggested is the nearest left."""

    def __init__(self, given: _Job, seed: int) -> None:
        self._lengths = [len(row) for row in given["metrics"]]
        self._rows = given["parameters"]
        self._names = [*self._rows[0]]
        self._left = [*np.random.default_rng(seed).permutation(len(self._rows))]
        self.space = {name: self._domain(name) for name in self._names}

    def _domain(self, name: str) -> Any:
        values = [row[name] for row in self._rows]
        if isinstance(values[0], str):
            return choice(sorted(set(values)))
        return uniform(min(values), max(values) + 1e-9)

    def take(self, wanted: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the nearest that is left, the first of those that are as near; None for none."""
        if not self._left:
            return None
        number = min(self._left, key=lambda each: self._apart(self._rows[each], wanted))
        self._left.remove(number)
        told = {"config": int(number), "epochs": self._lengths[number]}
        return {**self._rows[number], **told}

    def _apart(self, row: dict[str, Any], wanted: dict[str, Any] | None) -> float:
        if wanted is None:
            return 0.0
        far = 0.0
        for name in self._names:
            one, other = row[name], wanted[name]
            far += float(one != other) if isinstance(one, str) else (one - other) ** 2
        return far


class Bests(SimulatorCallback):
    """When which metric was the best so far."""

    def __init__(self) -> None:
        super().__init__()
        self.bests: list[tuple[float, float]] = []

    def on_trial_result(self, trial: Any, status: str, result: Any, decision: str) -> None:
        super().on_trial_result(trial, status, result, decision)
        if not self.bests or result["score"] > self.bests[-1][1]:
            self.bests.append((result["st_tuner_time"], result["score"]))

    def store_results(self) -> None:
        """Store none."""


def scheduler_of(method: str, table: Table, **options: Any) -> Any:
    """Return one of Syne Tune's schedulers, on the configurations of a table."""

    class OnTable(_METHODS[method]):  # type: ignore[valid-type]
        def suggest(self) -> Any:
            found = super().suggest()
            # its first ones are drawn at random anyway: asha's all are
            wanted = None if method == "asha" or found is None else found.config
            config = table.take(wanted)
            return None if config is None else TrialSuggestion.start_suggestion(config)

    return OnTable(config_space=table.space, metric="score", time_attr="epoch", **options)


def play(given: _Job, job: _Job, known: Any) -> list[tuple[float, float]]:
    """Return when which metric was the best so far."""
    np.random.seed(job["seed"])
    scheduler = scheduler_of(
        job["method"],
        Table(given, job["seed"]),
        max_t=max(len(row) for row in given["metrics"]),
        grace_period=1,
        reduction_factor=job["eta"],
        do_minimize=False,
        random_seed=job["seed"],
    )
    look = float(np.mean([np.mean(row) for row in given["seconds"] if row])) / _LOOKS
    bests = Bests()
    tuned(
        known,
        scheduler,
        workers=job["workers"],
        look=look,
        callback=bests,
        until=given["until"],
        simulator_config=SimulatorConfig(0.0, 0.0, 0.0, given["start"], 0.0),
    )
    return bests.bests


def main() -> None:
    """Play the jobs; a line for each."""
    given = json.load(sys.stdin)
    told = sys.stdout
    with quiet():
        known = blackbox(given)
        for job in given["jobs"]:
            line = {**job, "version": syne_tune.__version__, "bests": play(given, job, known)}
            print(json.dumps(line), file=told, flush=True)


if __name__ == "__main__":
    main()

"""The jobs of simulation_speed.py on Syne Tune's simulator: run by a Python that has Syne Tune.

    PYTHON -m benchmarks.simulation_speed_syne <job.json >times.json

It imports nothing of cloudtune. A job has `metrics` and `seconds` (of each configuration, epoch by
epoch; more of the metric is better), `eta`, `workers`, `repeats`, and `sleep`: the virtual seconds
between two looks of its tuner, null for its own default. Each configuration is tried once, in
order. Seconds are the processor's.
"""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.syne_tables import blackbox, quiet, space, tuned

# isort: split
# What stands above prepares the imports of Syne Tune.
import syne_tune
from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
from syne_tune.constants import TUNER_DEFAULT_SLEEP_TIME
from syne_tune.optimizer.baselines import ASHA

_Job = dict[str, Any]


class OnceEach(ASHA):
    """ASHA over the points that it is given, and no others."""

    def __init__(self, points: list[dict[str, int]], **options: Any) -> None:
        super().__init__(points_to_evaluate=points, **options)
        self._left = len(points)

    def suggest(self) -> Any:
        self._left -= 1
        return super().suggest() if self._left >= 0 else None


class Counting(SimulatorCallback):
    """What the simulator needs, and no file of results: that wouldn't be its simulator's time."""

    epochs = 0
    at = 0.0

    def on_trial_result(self, trial: Any, status: str, result: Any, decision: str) -> None:
        super().on_trial_result(trial, status, result, decision)
        self.epochs += 1
        self.at = max(self.at, result["st_tuner_time"])

    def store_results(self) -> None:
        """Store none."""


def play(job: _Job, table: Any) -> dict[str, float]:
    """Return the seconds that one job takes, what it trains and its virtual seconds."""
    lengths = [len(row) for row in job["metrics"]]
    began = time.process_time()
    scheduler = OnceEach(
        [{"config": number, "epochs": length} for number, length in enumerate(lengths)],
        config_space=space(lengths),
        metric="score",
        time_attr="epoch",
        max_t=max(lengths),
        grace_period=1,
        reduction_factor=job["eta"],
        do_minimize=False,
        random_seed=0,
    )
    counting = Counting()
    tuner = tuned(
        table,
        scheduler,
        workers=job["workers"],
        look=job["sleep"] or TUNER_DEFAULT_SLEEP_TIME,
        callback=counting,
    )
    seconds = time.process_time() - began
    trials = tuner.tuning_status.num_trials_started
    return {
        "seconds": seconds,
        "trials": trials,
        "epochs": counting.epochs,
        "virtual": counting.at,
    }


def main() -> None:
    """Play the jobs, once more than asked for: the first is to warm up."""
    job = json.load(sys.stdin)
    with quiet():
        table = blackbox(job)
        played = [play(job, table) for _ in range(job["repeats"] + 1)][1:]
    json.dump({"version": syne_tune.__version__, "jobs": played}, sys.stdout)


if __name__ == "__main__":
    main()

"""The jobs of simulation_speed.py on Syne Tune's simulator: run by a Python that has Syne Tune.

    PYTHON benchmarks/simulation_speed_syne.py <job.json >times.json

It imports nothing of cloudtune. A job has `metrics` and `seconds` (of each configuration, epoch by
epoch; more of the metric is better), `eta`, `workers`, `repeats`, and `sleep`: the virtual seconds
between two looks of its tuner, null for its own default. Each configuration is tried once, in
order. Seconds are the processor's.
"""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_FOLDER = tempfile.TemporaryDirectory(prefix="syne-tune-")
os.environ["SYNETUNE_FOLDER"] = _FOLDER.name
if find_spec("huggingface_hub") is None:
    # Syne Tune imports it to download tables with, which we don't: we bring our own.
    _hub = ModuleType("huggingface_hub")
    _hub.snapshot_download = None  # type: ignore[attr-defined]
    sys.modules["huggingface_hub"] = _hub

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import syne_tune  # noqa: E402
from syne_tune import StoppingCriterion, Tuner  # noqa: E402
from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback  # noqa: E402
from syne_tune.blackbox_repository.blackbox_tabular import BlackboxTabular  # noqa: E402
from syne_tune.blackbox_repository.simulated_tabular_backend import (  # noqa: E402
    UserBlackboxBackend,
)
from syne_tune.config_space import randint  # noqa: E402
from syne_tune.constants import TUNER_DEFAULT_SLEEP_TIME  # noqa: E402
from syne_tune.optimizer.baselines import ASHA  # noqa: E402

_NEVER = 10.0**9
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


def blackbox(job: _Job) -> BlackboxTabular:
    """Return the table; what lies behind the last epoch of a configuration is never asked for."""
    lengths = [len(row) for row in job["metrics"]]
    shape = len(lengths), 1, max(lengths), 2
    values = np.zeros(shape)
    for number, length in enumerate(lengths):
        values[number, 0, :length, 0] = job["metrics"][number]
        values[number, 0, :length, 1] = np.cumsum(job["seconds"][number])
    return BlackboxTabular(
        hyperparameters=pd.DataFrame({"config": range(len(lengths)), "epochs": lengths}),
        configuration_space=_space(lengths),
        fidelity_space={"epoch": randint(1, max(lengths))},
        objectives_evaluations=values,
        objectives_names=["score", "elapsed"],
    )


def _space(lengths: list[int]) -> dict[str, Any]:
    return {"config": randint(0, len(lengths) - 1), "epochs": randint(1, max(lengths))}


def play(job: _Job, table: BlackboxTabular) -> dict[str, float]:
    """Return the seconds that one job takes, what it trains and its virtual seconds."""
    lengths = [len(row) for row in job["metrics"]]
    began = time.process_time()
    scheduler = OnceEach(
        [{"config": number, "epochs": length} for number, length in enumerate(lengths)],
        config_space=_space(lengths),
        metric="score",
        time_attr="epoch",
        max_t=max(lengths),
        grace_period=1,
        reduction_factor=job["eta"],
        do_minimize=False,
        random_seed=0,
    )
    backend = UserBlackboxBackend(
        blackbox=table,
        elapsed_time_attr="elapsed",
        max_resource_attr="epochs",
        seed=0,
        tuner_sleep_time=job["sleep"] or TUNER_DEFAULT_SLEEP_TIME,
    )
    counting = Counting()
    tuner = Tuner(
        trial_backend=backend,
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(max_wallclock_time=_NEVER),
        n_workers=job["workers"],
        sleep_time=0,
        print_update_interval=_NEVER,
        results_update_interval=_NEVER,
        callbacks=[counting],
        save_tuner=False,
    )
    tuner.run()
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
    logging.disable(logging.CRITICAL)
    job = json.load(sys.stdin)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        table = blackbox(job)
        played = [play(job, table) for _ in range(job["repeats"] + 1)][1:]
    json.dump({"version": syne_tune.__version__, "jobs": played}, sys.stdout)


if __name__ == "__main__":
    main()

"""Ray Tune's side of resizing.py: one trial through its widths, paused and restored by Tune.

    python -m benchmarks.gpu.tune_side OUTPUT.json REPEATS LOAD

A class trainable, as Tune's documentation has it for changing resources; nothing of cloudtune is
imported. Where there is a GPU it goes from half of it to the whole and back; without one the widths
are numbers, and the trial stays one process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler

from benchmarks.gpu.loads import Training

EPOCHS, STEPS = 2, 10


class Trainable(tune.Trainable):  # type: ignore[misc]
    def setup(self, config: dict[str, Any]) -> None:
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self.training = Training(config["load"], device)
        self.log = Path(config["log"])

    def step(self) -> dict[str, float]:
        self._note("begin")
        self.training.steps(STEPS)
        self._note("end")
        return {"loss": 0.0}

    def _note(self, what: str) -> None:
        width = float(self.trial_resources.required_resources.get("GPU", 0))
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps([what, self.iteration + 1, width, time.time()]) + "\n")

    def save_checkpoint(self, folder: str) -> None:
        parts: dict[str, Any] = {"model": self.training.model, "optimizer": self.training.optimizer}
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save(state, Path(folder) / "state.pt")

    def load_checkpoint(self, folder: str) -> None:
        state = torch.load(Path(folder) / "state.pt", map_location=self.training.device)
        self.training.model.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])


def on(width: float) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory([{"CPU": 0, "GPU": width}])


def name(width: float) -> str:
    return "half" if width < 1 else f"{width:g}"


def main(output: Path, repeats: int, load: str) -> None:
    real = torch.cuda.is_available()
    turn = (0.5, 1.0) if real else (1.0, 2.0)
    widths = [*turn, *(turn * repeats), turn[0]]
    ray.init(num_cpus=2, num_gpus=1 if real else 2, include_dashboard=False, log_to_driver=False)

    def allocate(_: Any, trial: Any, result: dict[str, Any], __: Any) -> Any:
        index = min(result["training_iteration"] // EPOCHS, len(widths) - 1)
        wanted = on(widths[index])
        return None if trial.placement_group_factory == wanted else wanted

    with tempfile.TemporaryDirectory(prefix="gpu-tune-") as temporary:
        folder = Path(temporary)
        tuner = tune.Tuner(
            tune.with_resources(Trainable, on(widths[0])),
            param_space={"log": str(folder / "log"), "load": load},
            tune_config=tune.TuneConfig(
                scheduler=ResourceChangingScheduler(FIFOScheduler(), allocate), reuse_actors=False
            ),
            run_config=tune.RunConfig(
                name="gpu",
                storage_path=str(folder / "store"),
                stop={"training_iteration": EPOCHS * len(widths)},
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
                verbose=0,
            ),
        )
        for result in tuner.fit():
            if result.error is not None:
                raise result.error
        notes = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    ray.shutdown()
    gaps: dict[str, list[float]] = {}
    changes = [
        (f"{name(before[2])}_to_{name(after[2])}", after[3] - before[3])
        for before, after in pairwise(notes)
        if before[0] == "end" and after[0] == "begin" and before[2] != after[2]
    ]
    for change, gap in changes[2:]:  # the first of each isn't counted
        gaps.setdefault(change, []).append(gap)
    output.write_text(json.dumps(gaps))


if __name__ == "__main__":
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

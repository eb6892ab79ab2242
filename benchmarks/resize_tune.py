"""Ray Tune's side of resize.py: pause, update resources, restore, in a cluster of its own.

    python benchmarks/resize_tune.py OUTPUT.json REPEATS

A class trainable, as Tune's documentation has it for changing resources; it imports nothing of
cloudtune. Gaps are from the end of the last step before to the begin of the first one after.
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

GPUS, EPOCHS = 8, 2
# One trial through all widths: each change is met once a turn. The first isn't counted.
TURN = (1, 2, 1, 4)


class Trainable(tune.Trainable):  # type: ignore[misc]
    def setup(self, config: dict[str, Any]) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.log = Path(config["log"], str(config["trial"]))

    def step(self) -> dict[str, float]:
        self._note("begin")
        for _ in range(10):
            loss = self.model(torch.randn(32, 64)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self._note("end")
        return {"loss": loss.item()}

    def _note(self, what: str) -> None:
        width = int(self.trial_resources.required_resources.get("GPU", 0))
        line = [what, self.iteration + 1, width, time.time()]
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    def save_checkpoint(self, folder: str) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, Path(folder) / "state.pt")

    def load_checkpoint(self, folder: str) -> None:
        state = torch.load(Path(folder) / "state.pt")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def on(width: int) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory([{"CPU": 0, "GPU": 1}] * width)


def run(folder: Path, name: str, widths: list[int], trials: int) -> list[list[tuple[str, float]]]:
    """Train `trials` at once through these widths; return each one's changes and gaps."""
    log = folder / name
    log.mkdir()

    def allocate(_: Any, trial: Any, result: dict[str, Any], __: Any) -> Any:
        index = min(result["training_iteration"] // EPOCHS, len(widths) - 1)
        wanted = on(widths[index])
        return None if trial.placement_group_factory == wanted else wanted

    tuner = tune.Tuner(
        tune.with_resources(Trainable, on(widths[0])),
        param_space={"log": str(log), "trial": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(
            scheduler=ResourceChangingScheduler(FIFOScheduler(), allocate),
            reuse_actors=False,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(folder / "store"),
            stop={"training_iteration": EPOCHS * len(widths)},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
            verbose=0,
        ),
    )
    for result in tuner.fit():
        if result.error is not None:
            raise result.error
    return [gaps(log / str(trial)) for trial in range(trials)]


def gaps(path: Path) -> list[tuple[str, float]]:
    """Return the changes of width of one trial, in order, and how long it stood still."""
    notes = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (f"{before[2]}->{after[2]}", after[3] - before[3])
        for before, after in pairwise(notes)
        if before[0] == "end" and after[0] == "begin" and before[2] != after[2]
    ]


def main(output: Path, repeats: int) -> None:
    ray.init(num_cpus=2, num_gpus=GPUS, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="resize-tune-") as temporary:
        folder = Path(temporary)
        [alone] = run(folder, "alone", [1, 2, *list(TURN) * repeats, 1], 1)
        together = run(folder, "three", [1, 2] * (repeats + 1), 3)
    ray.shutdown()
    found: dict[str, list[float]] = {}
    for change, gap in alone[1:]:
        found.setdefault(change, []).append(gap)
    widened = [[gap for change, gap in trial if change == "1->2"][1:] for trial in together]
    found["three"] = [max(each) for each in zip(*widened, strict=True)]
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    main(Path(sys.argv[1]), int(sys.argv[2]))

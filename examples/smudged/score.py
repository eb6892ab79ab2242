"""Test the winner of a run, and what the same dollars buy without cloudtune: random search.

    python score.py [RUN]        # the last run, if none is named

No trial has seen the test images: `train` loads the others alone. The configurations that random
search would train are the first that the run drew at random; each is trained to the last epoch,
here, on this machine's cores and for nothing. How many of them the run's dollars pay for is planned
by `cloudtune report --against`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from train import accuracy, build_network, build_optimizer, load, train_one_epoch

import cloudtune

CPU = torch.device("cpu")


def winner(best: Any) -> float:
    """Return the accuracy on the test images of a run's best checkpoint."""
    network = build_network(dict(best.config))
    with cloudtune.Checkpoint(best.checkpoint, best.epoch).as_directory() as folder:
        network.load_state_dict(torch.load(Path(folder, "state.pt"))["network"])
    return accuracy(network, load("test"), CPU)


def trained(config: dict[str, Any], epochs: int) -> tuple[float, float]:
    """Train a configuration to the end; return its accuracy on validation and on test images."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = build_network(config)
    optimizer = build_optimizer(network, config)
    batches = DataLoader(
        load("train"), batch_size=config["batch_size"], shuffle=True, drop_last=True
    )
    for _ in range(epochs):
        train_one_epoch(network, batches, optimizer, config)
    return accuracy(network, load("validation"), CPU), accuracy(network, load("test"), CPU)


def main() -> None:
    """Print the test scores."""
    result = cloudtune.load_run(sys.argv[1] if len(sys.argv) > 1 else None)
    best = result.best
    if best is None or best.checkpoint is None:
        raise SystemExit(f"run {result.name} has no checkpoint to test")
    command = [sys.executable, "-m", "cloudtune", "report", result.name, "--against", "-o", "json"]
    told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    bought = told["random_search"]
    if bought is None:
        raise SystemExit(f"${result.cost.dollars:.2f} trains no random configuration in time")
    first = result.trials.sort_values("trial").head(bought["trials"])
    configs = [
        {name.removeprefix("config/"): row[name] for name in row if name.startswith("config/")}
        for row in first.to_dict("records")
    ]
    print(
        f"Training {len(configs)} random configurations for {bought['epochs']} epochs each, on "
        "this machine's cores …",
        flush=True,
    )
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        scores = list(pool.map(trained, configs, [bought["epochs"]] * len(configs)))
    tests = [test for _, test in scores]
    rows = [
        (f"the winner ({best.trial}, of {len(result.trials)} trials)", winner(best)),
        (f"random, at equal dollars: mean of {len(tests)}", statistics.fmean(tests)),
        ("the best of them by validation", max(scores)[1]),
    ]
    print(f"Accuracy on {len(load('test'))} test images that no trial has seen:")
    for name, score in rows:
        print(f"  {name:<40} {score:.3f}")


if __name__ == "__main__":
    main()

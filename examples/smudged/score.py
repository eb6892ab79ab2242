"""Test the winner of a run, and what the same dollars buy without cloudtune: random search.

    python score.py [RUN]        # the last run, if none is named

No trial has seen the test images: `train` loads the others alone. The configurations that random
search would train are the first that the run drew at random; each is trained to the last epoch,
here, on this machine's cores and for nothing. How many of them the run's dollars pay for is planned
by `cloudtune report --against`.
"""

from __future__ import annotations

import importlib
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

import cloudtune

script: Any = importlib.import_module("train")  # beside this file
CPU = torch.device("cpu")


def winner(best: Any) -> float:
    """Return the accuracy on the test images of a run's best model, from the files it has kept."""
    network = script.build_network(dict(best.config))
    network.load_state_dict(torch.load(Path(best.checkpoint, "state.pt"))["network"])
    return float(script.accuracy(network, script.load("test"), CPU))


def trained(config: dict[str, Any], epochs: int) -> tuple[float, float]:
    """Train a configuration to the end; return its accuracy on validation and on test images."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = script.build_network(config)
    optimizer = script.build_optimizer(network, config)
    batches = DataLoader(
        script.load("train"), batch_size=config["batch_size"], shuffle=True, drop_last=True
    )
    for _ in range(epochs):
        script.train_one_epoch(network, batches, optimizer, config)
    validation, test = (
        float(script.accuracy(network, script.load(part), CPU)) for part in ("validation", "test")
    )
    return validation, test


def main() -> None:
    """Print the test scores."""
    result = cloudtune.load_run(sys.argv[1] if len(sys.argv) > 1 else None)
    best = result.best
    if best is None or best.checkpoint is None:
        raise SystemExit(f"run {result.name} has no checkpoint to test")
    command = [sys.executable, "-m", "cloudtune", "report", result.name, "--against", "-o", "json"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    bought = report["random_search"]
    if bought is None:
        raise SystemExit(f"${result.cost.dollars:.2f} trains no random configuration in time")
    first = result.trials.sort_values("trial").head(bought["trials"])
    configs = [
        {str(name).removeprefix("config/"): row[name] for name in row if "config/" in str(name)}
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
    print(f"Accuracy on {len(script.load('test'))} test images that no trial has seen:")
    for name, score in rows:
        print(f"  {name:<40} {score:.3f}")


if __name__ == "__main__":
    main()

"""Trials of one machine that share their input, against trials that each load for themselves.

    python -m benchmarks.shared_input [--trials 1,2,4,8] [--seconds 4] [--out FILE]

Loading a batch takes as long as a step: both are measured first, alone on a core. The loading is
work for a core (images are turned, blurred and normalised). The step is one of two:

- "on the cores": torch trains a small convolutional network. Loading and steps share the cores.
- "elsewhere": the trial's process sleeps as long as the step takes, as one whose GPU computes. No
  GPU computes here: trials don't slow each other down, as packed ones do, so input is all there is.

For each, samples a second of all trials together, where each loads for itself in its own process
(`num_workers=0`), or by a process of its own beside it (1), or all share one (`shared=True`, one
process loads). What is printed are the samples a second of sharing, and by how much that is more
than the others, in the same round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import cloudtune
from cloudtune.infra.node.this_machine import physical_cores
from cloudtune.train.session import Session
from cloudtune.train.shared_input.place import INPUT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

TRIALS = (1, 2, 4, 8)
SECONDS = 4.0
BATCH, SIDE = 32, 48
EPOCH = 64
"""Batches."""
WAYS = {"shared": (0, True), "own process": (1, False), "in the trial": (0, False)}
"""Workers of the loader, and whether it is shared."""


class Images(Dataset[Any]):
    """Made-up images; so much work is done for each."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.images = torch.rand(64, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return BATCH * EPOCH

    def __getitem__(self, index: int) -> Any:
        image = self.images[index % len(self.images)]
        for _ in range(self.rounds):
            image = functional.avg_pool2d(image.rot90(1, (1, 2)), 3, 1, 1)
        return (image - image.mean()) / (image.std() + 1e-6), index % 10


def network() -> nn.Module:
    """Return what is trained."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def step_on_the_cores() -> Callable[[Any], None]:
    """Return what takes a step with a batch."""
    model = network()
    model(torch.rand(2, 3, SIDE, SIDE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        inputs, targets = batch
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def seconds_of(work: Callable[[], object], least: float = 0.5) -> float:
    """Return how long something takes, as the shortest of some times."""
    work()
    found, end = [], time.perf_counter() + least
    while time.perf_counter() < end:
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def calibrated() -> tuple[int, float, float]:
    """Return the rounds by which loading takes as long as a step, and both in seconds."""
    torch.set_num_threads(1)
    step = step_on_the_cores()
    batch = next(iter(DataLoader(Images(1), BATCH)))
    stepping = seconds_of(lambda: step(batch))

    def loading(rounds: int) -> float:
        data = Images(rounds)
        return seconds_of(lambda: [data[index] for index in range(BATCH)])

    each = (loading(11) - loading(1)) / 10
    rounds = max(1, round((stepping - loading(1)) / each) + 1)
    return rounds, loading(rounds), stepping


def train(  # noqa: PLR0917  as multiprocessing gives them
    name: str, rounds: int, way: str, pause: float, seconds: float, barrier: Any, told: Any
) -> None:
    """Train one trial in a process of its own; tells the samples a second that it had."""
    torch.set_num_threads(1)
    workers, shares = WAYS[way]
    step = step_on_the_cores()
    session = Session(name, lambda _report: None, "", "max", 10**6)
    session.grant(10**6)
    with session.activate():
        loader = DataLoader(Images(rounds), BATCH, shuffle=True, num_workers=workers)
        loader = cloudtune.prepare_data_loader(loader, shared=shares)
        barrier.wait()
        samples, began = 0, 0.0
        for _ in cloudtune.epochs():
            for number, batch in enumerate(loader):
                if not began and number == 3:  # its processes run
                    began = time.perf_counter()
                    samples = 0
                if pause:
                    time.sleep(pause)
                else:
                    step(batch)
                samples += BATCH
                if began and time.perf_counter() > began + seconds:
                    told.put(samples / (time.perf_counter() - began))
                    return
            cloudtune.report({"loss": 0.0})


def throughput(rounds: int, way: str, pause: float, seconds: float, trials: int) -> float:
    """Return the samples a second of so many trials together."""
    forked = multiprocessing.get_context("fork")
    barrier, told = forked.Barrier(trials), forked.Queue()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[INPUT_VARIABLE] = str(Path(folder) / "input")
        running = [
            forked.Process(
                target=train, args=(f"t{each}", rounds, way, pause, seconds, barrier, told)
            )
            for each in range(trials)
        ]
        for each in running:
            each.start()
        found = sum(told.get(timeout=600) for _ in running)
        for each in running:
            each.join()
    return found


def main() -> None:
    """Print a table for each kind of step."""
    parser = argparse.ArgumentParser(description="input shared by trials, against loading apart")
    parser.add_argument("--trials", default=",".join(map(str, TRIALS)))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    counts = [int(each) for each in given.trials.split(",")]
    rounds, loading, stepping = calibrated()
    load = os.getloadavg()[0]
    print(
        f"{datetime.now(UTC):%Y-%m-%d} torch {torch.__version__}, {physical_cores()} cores, load "
        f"{load:.1f}; a batch of {BATCH}: loading {1000 * loading:.1f} ms, a step "
        f"{1000 * stepping:.1f} ms"
    )
    rows = []
    for kind, pause in (("on the cores", 0.0), ("elsewhere", stepping)):
        print(f"\nsteps {kind}\ntrials  samples/s shared  of: own process  in the trial")
        for count in counts:
            found = {way: throughput(rounds, way, pause, given.seconds, count) for way in WAYS}
            rows.append({"steps": kind, "trials": count, **found})
            own, inside = (found["shared"] / found[way] for way in ("own process", "in the trial"))
            print(
                f"{count:>6}  {found['shared']:>16,.0f}  {own:>15.2f}  {inside:>12.2f}", flush=True
            )
    if given.out:
        given.out.write_text(json.dumps({"loading": loading, "step": stepping, "rows": rows}))


if __name__ == "__main__":
    main()

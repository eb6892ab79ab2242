"""Trials fused into one model, against as many processes on the same cores or GPU, against one.

    python -m benchmarks.fused [--members 1,2,4 …] [--loads mlp,cnn …] [--seconds 2] [--out FILE]

For each model, samples a second of all trials together:

- alone: one process on the slot, with torch's own AdamW.
- packed: k such processes at once; they share the slot, taking turns (no MPS on a GPU:
  `python -m benchmarks.gpu packing` measures that).
- fused: k members of one `cloudtune.fused.Group` in one process on the slot.

The slot is the GPU; without one it is `--cores` of this machine (1, as a slot of provider local
has), with a thread for each.

Every figure is taken in the same run, and is told as a share of what one trial alone has just then:
"4.0" for 8 trials means that each trains at half its speed. Each process is forked from this one,
which has imported torch and has run nothing of it. What it was measured on is printed first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks.gpu.loads import LOADS, Load, load_named
from cloudtune.infra.node.gpus import gpus
from cloudtune.infra.node.this_machine import physical_cores
from cloudtune.train.fused.group import Group
from cloudtune.train.fused.optimizers import AdamW
from cloudtune.train.fused.state import MemberState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEMBERS = (1, 2, 4, 8, 16, 32, 64)
SECONDS = 2.0
WARM_STEPS = 2
DIGITS = "mlp-digits"
"""A small model, of the size that the digits example tunes: most of a step is overhead."""


def load_of(name: str) -> Load:
    """Return a load of `benchmarks.gpu.loads`, or the small one."""
    if name != DIGITS:
        return load_named(name)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return replace(
        load_named("mlp"), model=model, batch=32, inputs=lambda n, on: torch.randn(n, 64, device=on)
    )


def loss(net: Any, batch: Any) -> torch.Tensor:
    """Return the loss of a batch."""
    inputs, targets = batch
    return nn.functional.cross_entropy(net(inputs), targets)


def batch_of(load: Load, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a made-up batch."""
    targets = torch.randint(0, load.classes, (load.batch,), device=device)
    return load.inputs(load.batch, device), targets


def step_alone(load: Load, device: str) -> Callable[[], None]:
    """Return what takes a step of one trial."""
    model = load.model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = batch_of(load, device)

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    return step


def step_fused(load: Load, device: str, members: int) -> Callable[[], None]:
    """Return what takes a step of so many members."""
    group = Group(load.model(), AdamW(1e-3), device)
    for number in range(members):
        numbers = AdamW(1e-3 * (1 + number / members))
        group.add(str(number), MemberState.of(load.model()), numbers)
    batch = batch_of(load, device)

    def step() -> None:
        group.step(loss, batch)

    return step


def train(  # noqa: PLR0917  as multiprocessing gives them
    name: str, members: int, threads: int, seconds: float, barrier: Any, told: Any
) -> None:
    """Train in a process of its own, once all are warm; tell the samples a second."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(threads)
    load = load_of(name)
    step = step_fused(load, device, members) if members else step_alone(load, device)
    finish = torch.cuda.synchronize if device != "cpu" else lambda: None
    for _ in range(WARM_STEPS):
        step()
    finish()
    barrier.wait()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        step()
        finish()
        steps += 1
    took = time.perf_counter() - began
    told.put(steps * load.batch * max(1, members) / took)


def samples(name: str, seconds: float, *, processes: int = 1, members: int = 0) -> float:
    """Return the samples a second of all that train at once."""
    cores = len(os.sched_getaffinity(0))
    forked = multiprocessing.get_context("fork")
    barrier, told = forked.Barrier(processes), forked.Queue()
    threads = max(1, cores // processes)
    given = (name, members, threads, seconds, barrier, told)
    running = [forked.Process(target=train, args=given) for _ in range(processes)]
    for each in running:
        each.start()
    found = sum(told.get(timeout=600) for _ in running)
    for each in running:
        each.join()
    return found


def measure(name: str, counts: Sequence[int], seconds: float) -> list[dict[str, float]]:
    """Return a row for each number of trials, as shares of one alone, which is measured beside."""
    rows = []
    for count in counts:
        before = samples(name, seconds)
        fused = samples(name, seconds, members=count)
        packed = samples(name, seconds, processes=count)
        alone = (before + samples(name, seconds)) / 2
        rows.append(
            {
                "trials": count,
                "alone": alone,
                "fused": fused / alone,
                "packed": packed / alone,
                "gain": fused / packed,
            }
        )
        show(name, rows[-1])
    return rows


def show(name: str, row: dict[str, float]) -> None:
    """Print a row."""
    print(
        f"| {name} | {row['trials']:.0f} | {row['alone']:,.0f} | {row['packed']:.2f} | "
        f"{row['fused']:.2f} | {row['gain']:.2f} |",
        flush=True,
    )


def machine(cores: int) -> str:
    """Return what this is measured on."""
    found = gpus()
    if found:
        return f"{found[0].name}, torch {torch.__version__}"
    used = len(os.sched_getaffinity(0))
    return f"{used} of {cores} CPU cores, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", default=",".join(map(str, MEMBERS)))
    parser.add_argument("--loads", default=",".join((DIGITS, *reversed(LOADS))))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cores = physical_cores()
    if not gpus():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-given.cores :])
    counts = [int(each) for each in given.members.split(",")]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine(cores)}; as shares of one trial alone\n")
    print("| model | trials | alone, samples/s | packed | fused | fused / packed |")
    print("|---|---|---|---|---|---|")
    found = {name: measure(name, counts, given.seconds) for name in given.loads.split(",")}
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": machine(cores), "loads": found}, indent=1))


if __name__ == "__main__":
    main()

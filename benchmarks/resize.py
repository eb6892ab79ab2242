"""How long training stands still when a trial changes its width, beside Ray Tune's way of it.

    python -m benchmarks.resize [--repeats 5] [--out FILE]

One emulated instance of 8 GPUs (CPU slots here), unpaced, trains a small network; a trial is
stopped where it waits after an epoch with a checkpoint, and goes on at another width. "gap" is from
the last step before until the first one after, by the script's own clock: save, stop, place, start,
join (a process for each GPU, gradients exchanged by gloo), build, load. "to started" is from
EpochDone to TrialStarted. "three" resizes three trials at once; theirs is the slowest one's gap.

Ray Tune pauses, updates the resources of and restores a class trainable with the same network, by
its ResourceChangingScheduler, in a cluster of its own on the same machine, afterwards. A trial of
it stays one process without any exchange of gradients, whatever its width: what Tune does is less.
The first resize of each cluster isn't counted. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from cloudtune.infra import sweep as sweeping
from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.cluster.head import JOURNAL, RayHead, Rental
from cloudtune.infra.cluster.node_provider import Journal
from cloudtune.infra.cluster.world import CloudWorld
from cloudtune.infra.emulator.provider import emulated
from cloudtune.infra.emulator.service import stop_emulator
from cloudtune.infra.node.messages import Training
from cloudtune.model.commands import Launch, Release, StartTrial, StopTrial
from cloudtune.model.events import (
    EpochDone,
    InstanceGone,
    InstanceLaunched,
    TrialStarted,
    TrialStopped,
)
from cloudtune.model.trial import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloudtune.infra.provider import Cloud
    from cloudtune.model.events import Event

PEER = Path(__file__).with_name("resize_tune.py")
TYPE, GPUS = "p3.16xlarge", 8
SESSION_EPOCHS = 2
CHANGES = ((1, 2), (2, 1), (1, 4))
THREE = (1, 2)
RUN = "resizes"

SCRIPT = """
import json, os, tempfile, time
from pathlib import Path
import torch
import cloudtune

def train(config):
    trial = cloudtune.get_context().get_trial_id()
    log = Path(config["log"], f"{trial}.{cloudtune.get_context().get_world_rank()}").open("a")
    def note(what, epoch):
        print(json.dumps([what, epoch, time.time()]), file=log, flush=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    net = cloudtune.prepare_model(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in cloudtune.epochs():
        note("begin", epoch)
        for _ in range(10):
            loss = net(torch.randn(32, 64)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        note("end", epoch)
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / "state.pt")
            saved = cloudtune.Checkpoint.from_directory(folder)
            cloudtune.report({"loss": loss.item()}, saved)
"""


@dataclass
class Running:
    """A trial on its way through two widths: its session's number, and what it was told last."""

    trial: str
    widths: tuple[int, int]
    number: int = 0
    done: EpochDone | None = None
    to_started: float = 0.0

    @property
    def session(self) -> str:
        return f"{self.trial}.{self.number}"

    def start(self, instance: str, log: Path) -> StartTrial:
        width = float(self.widths[self.number])
        self.number += 1
        epoch, checkpoint = (self.done.epoch, self.done.checkpoint) if self.done else (0, None)
        return StartTrial(
            self.session,
            self.trial,
            {"log": str(log)},
            width,
            (Slice(instance, width),),
            checkpoint,
            epoch,
            epoch + SESSION_EPOCHS,
        )


class Bench:
    """One instance, and what is to be done on it."""

    def __init__(self, world: CloudWorld, log: Path) -> None:
        self.world = world
        self.log = log
        self.instance = ""

    def rent(self) -> None:
        self.world.apply(Launch("only", TYPE, "on-demand"))
        self.until(lambda event: type(event).__name__ == "NodeJoined")

    def until(self, over: Callable[[Event], bool]) -> Event:
        """Take events until one that fits."""
        while True:
            event = self.world.next_event()
            assert event is not None
            if isinstance(event, InstanceLaunched):
                self.instance = event.instance
            assert type(event).__name__ not in {"TrialFailed", "TrialLost"}, event
            if over(event):
                return event

    def resize(self, names: Sequence[str], before: int, after: int) -> tuple[float, float]:
        """Train at two widths, all at once; return the slowest gap, and slowest to TrialStarted."""
        trials = {name: Running(name, (before, after)) for name in names}
        for trial in trials.values():
            self.world.apply(trial.start(self.instance, self.log))
        left = set(names)
        while left:
            event = self.until(lambda e: isinstance(e, TrialStarted | EpochDone | TrialStopped))
            assert isinstance(event, TrialStarted | EpochDone | TrialStopped)
            trial = trials[event.session.rpartition(".")[0]]
            if isinstance(event, TrialStopped) and trial.number == 2:
                left.remove(trial.trial)
            else:
                self.follow(trial, event)
        slowest = max(trial.to_started for trial in trials.values())
        return max(self.gap(name, after) for name in names), slowest

    def follow(self, trial: Running, event: TrialStarted | EpochDone | TrialStopped) -> None:
        """Stop a trial where it waits, and start it again, as soon as that can be."""
        match event:
            case TrialStarted() if trial.done is not None:
                trial.to_started = event.at - trial.done.at
            case EpochDone() if event.epoch % SESSION_EPOCHS == 0:
                trial.done = event
                self.world.apply(StopTrial(trial.session))
            case TrialStopped():
                self.world.apply(trial.start(self.instance, self.log))
            case _:
                pass

    def gap(self, trial: str, width: int) -> float:
        """Return how long the trial stood still, by what its ranks wrote down."""
        ended, begun = 0.0, 0.0
        for rank in range(max(width, 4)):
            path = self.log / f"{trial}.{rank}"
            if not path.exists():
                continue
            for line in path.read_text().splitlines():
                what, epoch, at = json.loads(line)
                if (what, epoch) == ("end", SESSION_EPOCHS):
                    ended = max(ended, at)
                if (what, epoch) == ("begin", SESSION_EPOCHS + 1):
                    begun = max(begun, at)
        return begun - ended


def measured(folder: Path, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return (gap, to started) of each resize, on a cluster that is gone on return."""
    home, code, log = folder / "home", folder / "code", folder / "log"
    for each in (home, code, log):
        each.mkdir()
    (code / "train.py").write_text(SCRIPT)
    cloud = emulated(home, "us-east-1", pace=None)
    ec2 = Ec2(cloud.endpoint)
    try:
        with world_on(cloud, ec2, folder, code) as world:
            bench = Bench(world, log)
            bench.rent()
            found = resizes(bench, repeats)
            world.apply(Release("only"))
            bench.until(lambda event: isinstance(event, InstanceGone))
        return found
    finally:
        sweeping.sweep(ec2, RUN, Journal(folder / JOURNAL))
        cloud.close()
        stop_emulator(home, only_if_idle=False)


def world_on(cloud: Cloud, ec2: Ec2, folder: Path, code: Path) -> CloudWorld:
    """Return a world on the emulated cloud, to be entered."""
    rental = Rental(
        run=RUN,
        endpoint=cloud.endpoint,
        gpus={TYPE: GPUS},
        lease_seconds=1800.0,
        lease_end=time.time() + 1800.0,
        request=cloud.request,
        tags=cloud.tags,
    )
    training = Training("train.py:train", "loss", "min", 99, str(folder / "store"), 0)
    return CloudWorld(RayHead(folder, rental), ec2, training, code, time.time())


def resizes(bench: Bench, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return what each kind of resize took, in turns."""
    bench.resize(["first"], 1, 2)
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(repeats):
        for before, after in CHANGES:
            name = f"{before}->{after}"
            taken = bench.resize([f"t{turn}-{before}-{after}"], before, after)
            found.setdefault(name, []).append(taken)
        names = [f"t{turn}-three-{index}" for index in range(3)]
        found.setdefault("three", []).append(bench.resize(names, *THREE))
    return found


def theirs(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Return the gaps of Ray Tune, measured in a process of its own."""
    output = folder / "tune.json"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "HOME": str(folder)}
    subprocess.run(
        [sys.executable, PEER, output, str(repeats)],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "tune.log").open("w"),
    )
    gaps: dict[str, list[float]] = json.loads(output.read_text())
    return gaps


def table(ours: dict[str, list[tuple[float, float]]], tune: dict[str, list[float]]) -> str:
    """Return the medians and their ratio as a Markdown table."""
    lines = [
        "| resize | cloudtune: to started | cloudtune: gap | Ray Tune: gap | ratio |",
        "|---|---|---|---|---|",
    ]
    for name, taken in ours.items():
        gap, started = median(gap for gap, _ in taken), median(start for _, start in taken)
        their = median(tune[name])
        title = f"three at once, {THREE[0]}->{THREE[1]}" if name == "three" else name
        lines.append(
            f"| {title} | {started:.3f} s | {gap:.3f} s | {their:.2f} s | {their / gap:.0f}x |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="for all figures, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="resize-") as temporary:
        folder = Path(temporary)
        ours = measured(folder, given.repeats)
        tune = theirs(folder, given.repeats)
    if given.out:
        given.out.write_text(json.dumps({"cloudtune": ours, "tune": tune}, indent=1))
    print(table(ours, tune))


if __name__ == "__main__":
    main()

"""Three small models with made-up data, and a process that trains one for some seconds.

    python -m benchmarks.gpu.loads cnn --seconds 5 [--fused 8]

With --fused several trials train as one batched model (docs/fused.md). It prints {"ready": …} once
it is warm, waits for a line, trains, and prints what it did. So several can be made to train at
the same time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

LOADS = ("cnn", "transformer", "mlp")
# A model whose checkpoint, with AdamW's state, has 1 GB.
GIGABYTE = "gigabyte"
WARM_STEPS = 5
_STEPS_A_LOOK = 5


@dataclass(frozen=True)
class Load:
    """A model, the samples of a batch, and what makes a batch of made-up data on a device."""

    model: Callable[[], nn.Module]
    batch: int
    inputs: Callable[[int, str], torch.Tensor]
    classes: int = 10


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


class _Transformer(nn.Module):
    def __init__(self, words: int = 1000, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.out(
            self.layers(self.words(tokens) + self.places(places)).mean(1)
        )
        return logits


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    )


def _gigabyte() -> nn.Module:
    widths = ((256, 6400), (6400, 6400), (6400, 6400))
    hidden = [layer for size in widths for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(6400, 10))


def load_named(name: str) -> Load:
    """Return one of LOADS."""
    if name == "cnn":
        return Load(_cnn, 64, lambda batch, device: torch.randn(batch, 3, 32, 32, device=device))
    if name == "transformer":
        return Load(
            _Transformer,
            32,
            lambda batch, device: torch.randint(0, 1000, (batch, 64), device=device),
        )
    model = _gigabyte if name == GIGABYTE else _mlp
    return Load(model, 128, lambda batch, device: torch.randn(batch, 256, device=device))


class Training:
    """A load in training, a step at a time."""

    def __init__(self, name: str, device: str) -> None:
        self.load, self.device = load_named(name), device
        torch.manual_seed(0)
        self.model = self.load.model().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.inputs = self.load.inputs(self.load.batch, device)
        self.targets = torch.randint(0, self.load.classes, (self.load.batch,), device=device)

    def steps(self, count: int) -> None:
        """Take so many steps; done when it returns."""
        for _ in range(count):
            self.optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(self.model(self.inputs), self.targets)
            loss.backward()
            self.optimizer.step()
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


class FusedTraining:
    """Several trials of a load in training as one batched model, a step at a time."""

    def __init__(self, name: str, device: str, members: int) -> None:
        # Here, as Tune's side imports nothing of cloudtune.
        from cloudtune import fused  # noqa: PLC0415
        from cloudtune.train.fused.group import Group  # noqa: PLC0415
        from cloudtune.train.fused.state import MemberState  # noqa: PLC0415

        self.load = load_named(name)
        torch.manual_seed(0)
        model = self.load.model()
        states = [MemberState.of(self.load.model()) for _ in range(members)]
        optimizers = [fused.AdamW(lr=1e-3 * (1 + at / members)) for at in range(members)]
        self.group = Group(model, states, optimizers, device)
        inputs = self.load.inputs(self.load.batch, device)
        targets = torch.randint(0, self.load.classes, (self.load.batch,), device=device)
        self.batch = (inputs, targets)

    def steps(self, count: int) -> None:
        """Take steps of all members; they are done when it returns."""
        for _ in range(count):
            self.group.step(_loss, self.batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _loss(net: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.cross_entropy(net(inputs), targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--fused", type=int, default=0, metavar="TRIALS")
    given = parser.parse_args()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    training = (
        FusedTraining(given.load, device, given.fused)
        if given.fused
        else Training(given.load, device)
    )
    training.steps(WARM_STEPS)
    print(json.dumps({"ready": given.load, "device": device}), flush=True)
    sys.stdin.readline()
    began, steps = time.monotonic(), 0
    while time.monotonic() < began + given.seconds:
        training.steps(_STEPS_A_LOOK)
        steps += _STEPS_A_LOOK
    seconds = time.monotonic() - began
    peak = torch.cuda.max_memory_reserved() / 2**20 if device != "cpu" else 0.0
    samples = steps * training.load.batch * max(1, given.fused) / seconds
    print(json.dumps({"samples_per_s": samples, "peak_mib": peak}), flush=True)


if __name__ == "__main__":
    main()

"""Learning curves of small networks, trained here: more tables to choose a rule by.

    python -m benchmarks.trained_curves FOLDER [--tables digits_mlp,…] [--configs 128] [--epochs 30]

The data are those that every machine has: scikit-learn's, and the sources of Python's own library.
Each table is curves_NAME.parquet (config, epoch, val_loss) and curves_NAME_configs.csv (the
hyperparameters) in FOLDER. Configurations are drawn by a seed, so the same tables are made again.
A loss that isn't finite is nan, and its run ends there. All of them take an hour of a core.
"""

from __future__ import annotations

import math
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from benchmarks.runner import parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.random import Generator

Config = dict[str, object]
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
# The text of these modules is read, letter by letter.
_MODULES = ("argparse", "ast", "datetime", "decimal", "inspect", "subprocess", "typing")
_LETTERS = 96
_LENGTH = 32
_TEXT_STEPS = 25


class Data(NamedTuple):
    """What is trained on, and what is validated on."""

    inputs: torch.Tensor
    targets: torch.Tensor
    validation_inputs: torch.Tensor
    validation_targets: torch.Tensor


@dataclass(frozen=True)
class Task:
    """A table: how to draw a configuration, its data, and its network."""

    draw: Callable[[Generator], Config]
    load: Callable[[], Data]
    build: Callable[[Config], nn.Module]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    # The steps of an epoch; None for one pass over the data.
    steps: int | None = None


# ---- data ----------------------------------------------------------------------------------------


def _split(inputs: np.ndarray, targets: torch.Tensor) -> Data:
    """Return the data, shuffled; one third is for validation."""
    order = np.random.default_rng(0).permutation(len(inputs))
    scaled = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-3)
    shuffled = torch.tensor(scaled[order], dtype=torch.float32)
    targets = targets[torch.tensor(order)]
    cut = len(order) * 2 // 3
    return Data(shuffled[:cut], targets[:cut], shuffled[cut:], targets[cut:])


def _digits() -> Data:
    from sklearn.datasets import load_digits  # noqa: PLC0415  it takes long to load

    data = load_digits()
    return _split(data.data, torch.tensor(data.target))


def _diabetes() -> Data:
    from sklearn.datasets import load_diabetes  # noqa: PLC0415  it takes long to load

    data = load_diabetes()
    scaled = (data.target - data.target.mean()) / data.target.std()
    return _split(data.data, torch.tensor(scaled, dtype=torch.float32)[:, None])


def _text() -> Data:
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES)
    codes = np.array([min(max(ord(letter) - 31, 0), _LETTERS - 1) for letter in text])
    rows = len(codes) // (_LENGTH + 1)
    lines = torch.tensor(codes[: rows * (_LENGTH + 1)].reshape(rows, _LENGTH + 1))
    lines = lines[torch.tensor(np.random.default_rng(0).permutation(rows))]
    cut = rows - 400
    return Data(lines[:cut, :-1], lines[:cut, 1:], lines[cut:, :-1], lines[cut:, 1:])


# ---- networks ------------------------------------------------------------------------------------


def _mlp(inputs: int, outputs: int) -> Callable[[Config], nn.Module]:
    def build(config: Config) -> nn.Module:
        width = int(str(config["width"]))
        activation = _ACTIVATIONS[str(config["activation"])]
        layers: list[nn.Module] = []
        before = inputs
        for _ in range(int(str(config["layers"]))):
            layers += [nn.Linear(before, width), activation()]
            layers += [nn.Dropout(float(str(config["dropout"])))]
            before = width
        return nn.Sequential(*layers, nn.Linear(before, outputs))

    return build


def _cnn(config: Config) -> nn.Module:
    channels = int(str(config["channels"]))
    activation = _ACTIVATIONS[str(config["activation"])]
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, channels, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(float(str(config["dropout"]))),
        nn.Linear(8 * channels, 10),
    )


class _Recurrent(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = int(str(config["width"]))
        self.embedding = nn.Embedding(_LETTERS, 16)
        self.dropout = nn.Dropout(float(str(config["dropout"])))
        self.recurrent = nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, _LETTERS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.dropout(self.embedding(letters)))
        letters = self.head(self.dropout(states)).transpose(1, 2)
        assert isinstance(letters, torch.Tensor)
        return letters


# ---- configurations ------------------------------------------------------------------------------


def _log(rng: Generator, low: float, high: float) -> float:
    return float(10 ** rng.uniform(math.log10(low), math.log10(high)))


def _optimiser_of(rng: Generator) -> Config:
    return {
        "optimizer": str(rng.choice(["sgd", "adam"])),
        "lr": _log(rng, 1e-4, 1.0),
        "momentum": float(rng.uniform(0.5, 0.99)),
        "weight_decay": _log(rng, 1e-6, 1e-1),
        "batch_size": int(rng.choice([16, 32, 64, 128, 256])),
        "dropout": float(rng.uniform(0.0, 0.6)),
        "cosine": bool(rng.random() < 0.5),
    }


def _mlp_config(rng: Generator) -> Config:
    shape: Config = {
        "width": int(_log(rng, 8, 256)),
        "layers": int(rng.integers(1, 4)),
        "activation": str(rng.choice(list(_ACTIVATIONS))),
    }
    return _optimiser_of(rng) | shape


def _cnn_config(rng: Generator) -> Config:
    shape: Config = {
        "channels": int(rng.choice([4, 8, 16])),
        "activation": str(rng.choice(list(_ACTIVATIONS))),
    }
    return _optimiser_of(rng) | shape


def _text_config(rng: Generator) -> Config:
    return _optimiser_of(rng) | {"width": int(rng.choice([16, 32, 64])), "clip": _log(rng, 0.1, 10)}


TASKS: Mapping[str, Task] = {
    "digits_mlp": Task(_mlp_config, _digits, _mlp(64, 10), functional.cross_entropy),
    "diabetes_mlp": Task(_mlp_config, _diabetes, _mlp(10, 1), functional.mse_loss),
    "digits_cnn": Task(_cnn_config, _digits, _cnn, functional.cross_entropy),
    "text_gru": Task(_text_config, _text, _Recurrent, functional.cross_entropy, _TEXT_STEPS),
}


# ---- training ------------------------------------------------------------------------------------


def _optimiser(config: Config, network: nn.Module) -> torch.optim.Optimizer:
    rate = float(str(config["lr"]))
    momentum = float(str(config["momentum"]))
    decay = float(str(config["weight_decay"]))
    parameters = network.parameters()
    if config["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, rate, momentum, weight_decay=decay)
    return torch.optim.AdamW(parameters, rate / 10, (momentum, 0.999), weight_decay=decay)


def losses(task: Task, data: Data, config: Config, epochs: int, seed: int) -> Iterator[float]:
    """Yield the loss of validation after each epoch; nan once it isn't finite, and no more."""
    torch.manual_seed(seed)
    network = task.build(config)
    optimiser = _optimiser(config, network)
    peak = optimiser.param_groups[0]["lr"]
    size = int(str(config["batch_size"]))
    steps = task.steps or math.ceil(len(data.inputs) / size)
    clip = float(str(config.get("clip", math.inf)))
    for epoch in range(epochs):
        network.train()
        for step in range(steps):
            done = (epoch + step / steps) / epochs
            if config["cosine"]:
                optimiser.param_groups[0]["lr"] = peak * 0.5 * (1 + math.cos(math.pi * done))
            batch = torch.randint(len(data.inputs), (size,))
            loss = task.loss(network(data.inputs[batch]), data.targets[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), clip)
            optimiser.step()
        network.eval()
        with torch.no_grad():
            value = float(task.loss(network(data.validation_inputs), data.validation_targets))
        yield value if math.isfinite(value) else math.nan
        if not math.isfinite(value):
            return


def train_table(name: str, folder: Path, count: int, epochs: int) -> None:
    """Train a table's configurations, and write its two files."""
    task = TASKS[name]
    data = task.load()
    rng = np.random.default_rng((len(name), count))
    began = time.perf_counter()
    configs = [{"config": number} | task.draw(rng) for number in range(count)]
    rows = [
        (number, epoch, value)
        for number, config in enumerate(configs)
        for epoch, value in enumerate(losses(task, data, config, epochs, number), 1)
    ]
    curves = pd.DataFrame(rows, columns=["config", "epoch", "val_loss"])
    curves.to_parquet(folder / f"curves_{name}.parquet", index=False)
    pd.DataFrame(configs).to_csv(folder / f"curves_{name}_configs.csv", index=False)
    ended = int(curves["val_loss"].isna().sum())
    took = time.perf_counter() - began
    print(f"{name}: {count} configurations, {ended} diverged, {took:.0f} s", flush=True)


def main() -> None:
    """Train the tables."""
    options = parser(__doc__, tables=tuple(TASKS), configs=128, epochs=30)
    options.add_argument("folder", type=Path)
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # Weights that decay to almost nothing would slow the arithmetic down many times.
    torch.set_flush_denormal(True)
    for name in given.tables:
        train_table(name, given.folder, given.configs, given.epochs)


if __name__ == "__main__":
    main()

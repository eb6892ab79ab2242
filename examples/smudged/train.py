"""Handwritten digits with noise and a hole in each: what `make demo` tunes. Nobody gets all right.

Alone: `python train.py`. Under cloudtune it trains on as many GPUs as the plan gives it.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cloudtune

if TYPE_CHECKING:
    from collections.abc import Iterable

CLASSES, SIDE = 10, 8
NOISE, HOLE = 0.35, 3
COPIES = {"train": 3, "validation": 4, "test": 4}
"""How often each image is there, smudged anew each time."""


def load(part: str) -> TensorDataset:
    """Give one part of scikit-learn's 1797 images: 60 % train, 20 % validation, 20 % test.

    The parts share no image, and are the same in every trial. Validation and test are smudged once
    and for all; training images come clean, and each epoch smudges them anew.
    """
    # The file behind sklearn.datasets.load_digits(), whose import takes 1.5 s in each worker.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("this example needs scikit-learn's data: pip install scikit-learn")
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    shuffled = np.random.default_rng(0).permutation(table).astype(np.float32)
    by_digit = shuffled[shuffled[:, -1].argsort(kind="stable")]  # each part gets all ten alike
    fifth = np.arange(len(by_digit)) % 5
    rows = {"train": fifth < 3, "validation": fifth == 3, "test": fifth == 4}[part]
    images = torch.from_numpy(by_digit[rows, :-1]).reshape(-1, 1, SIDE, SIDE) / 16
    images = images.repeat(COPIES[part], 1, 1, 1)
    labels = torch.from_numpy(by_digit[rows, -1]).long().repeat(COPIES[part])
    if part != "train":
        images = smudge(images, torch.Generator().manual_seed(len(part)))
    return TensorDataset(images, labels)


def smudge(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the images with noise on every pixel, and a grey square in a place of its own."""
    noisy = images + NOISE * torch.randn(images.shape, generator=generator).to(images.device)
    corner = torch.randint(0, SIDE - HOLE + 1, (len(images), 2, 1), generator=generator)
    pixels = torch.arange(SIDE)
    inside = ((pixels >= corner) & (pixels < corner + HOLE)).to(images.device)
    hole = inside[:, 0, :, None] & inside[:, 1, None, :]
    return torch.where(hole[:, None], 0.5, noisy)


def build_network(config: dict[str, Any]) -> nn.Module:
    channels, hidden = config["channels"], config["hidden"]
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(config["dropout"]),
        nn.Linear(2 * channels * (SIDE // 2) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )


def build_optimizer(network: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    sgd = {name: config[name] for name in ("lr", "momentum", "weight_decay")}
    return torch.optim.SGD(network.parameters(), **sgd)


def train_one_epoch(
    model: nn.Module,
    batches: Iterable[list[Tensor]],
    optimizer: torch.optim.Optimizer,
    config: dict[str, Any],
) -> float:
    """Train on every batch once; return the mean loss."""
    model.train()
    loss_of = nn.CrossEntropyLoss(label_smoothing=config["label_smoothing"])
    losses = []
    for images, labels in batches:
        loss = loss_of(model(smudge(images) - 0.35), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


@torch.no_grad()
def accuracy(network: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    """Return the share of images that are told right."""
    images, labels = (tensor.to(device) for tensor in dataset.tensors)
    hits = network.eval()(images - 0.35).argmax(dim=1) == labels
    return float(hits.float().mean())


def train(config: dict[str, Any]) -> None:
    device = cloudtune.get_context().get_device()
    validation = load("validation")
    batches = cloudtune.prepare_data_loader(
        DataLoader(load("train"), batch_size=config["batch_size"], shuffle=True, drop_last=True)
    )
    network = build_network(config)
    model = cloudtune.prepare_model(network)
    optimizer = build_optimizer(model, config)

    if checkpoint := cloudtune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), map_location=device)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])

    for epoch in cloudtune.epochs():
        loss = train_one_epoch(model, batches, optimizer, config)
        metrics = {"val_accuracy": accuracy(network, validation, device), "train_loss": loss}
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"epoch": epoch, **state}, Path(folder, "state.pt"))
            cloudtune.report(metrics, cloudtune.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4, "batch_size": 64}
    train(sgd | {"channels": 16, "hidden": 64, "dropout": 0.2, "label_smoothing": 0.05})

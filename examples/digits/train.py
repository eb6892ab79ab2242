"""A small convolutional network on scikit-learn's handwritten digits, for cloudtune to tune.

Alone: `python train.py`. Under cloudtune it trains on as many GPUs as the plan gives it.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import cloudtune

CLASSES = 10


def load_digits() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Give 60 % of the 1797 images to train on, 20 % to validate and 20 % to test.

    The split is the same in every trial. Tuning never looks at the test images.
    """
    # The file behind sklearn.datasets.load_digits(), whose import takes 1.5 s in each worker.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("this example needs scikit-learn's data: pip install scikit-learn")
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    shuffled = np.random.default_rng(0).permutation(table).astype(np.float32)
    by_digit = shuffled[shuffled[:, -1].argsort(kind="stable")]  # each part gets all ten alike
    labels = torch.from_numpy(by_digit[:, -1]).long()
    images = torch.from_numpy(by_digit[:, :-1]).reshape(-1, 1, 8, 8) / 6 - 0.8
    images = functional.interpolate(images, scale_factor=2, mode="bilinear")
    fifth = torch.arange(len(labels)) % 5
    train, validation, test = (
        TensorDataset(images[rows], labels[rows]) for rows in (fifth < 3, fifth == 3, fifth == 4)
    )
    return train, validation, test


def build_network(config: dict[str, Any]) -> nn.Module:
    channels, hidden = config["channels"], config["hidden"]
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(config["dropout"]),
        nn.Linear(2 * channels * 4 * 4, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )


def shift(images: Tensor, pixels: int) -> Tensor:
    """Move a batch by up to so many pixels each way; the margins of a digit are empty."""
    down, right = torch.randint(-pixels, pixels + 1, (2,)).tolist()
    return images.roll((down, right), dims=(2, 3))


@torch.no_grad()
def evaluate(network: nn.Module, dataset: TensorDataset, device: torch.device) -> dict[str, float]:
    """Score the whole set on every worker, so that the metrics are the same at any width."""
    images, labels = (tensor.to(device) for tensor in dataset.tensors)
    scores = network.eval()(images)
    hits = scores.argmax(dim=1) == labels
    loss = functional.cross_entropy(scores, labels)
    return {"val_accuracy": hits.float().mean().item(), "val_loss": loss.item()}


def train(config: dict[str, Any]) -> None:
    device = cloudtune.get_context().get_device()
    training, validation, _ = load_digits()
    batches = cloudtune.prepare_data_loader(
        DataLoader(training, batch_size=config["batch_size"], shuffle=True, drop_last=True)
    )
    network = build_network(config)
    model = cloudtune.prepare_model(network)
    loss_of = nn.CrossEntropyLoss(label_smoothing=config["label_smoothing"])
    sgd = {name: config[name] for name in ("lr", "momentum", "weight_decay")}
    optimizer = torch.optim.SGD(model.parameters(), **sgd)

    if checkpoint := cloudtune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), map_location=device)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])

    for epoch in cloudtune.epochs():
        model.train()
        losses = []
        for images, labels in batches:
            loss = loss_of(model(shift(images, config["shift"])), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        metrics = evaluate(network, validation, device)
        metrics["train_loss"] = torch.stack(losses).mean().item()  # on this worker's share
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"epoch": epoch, **state}, Path(folder, "state.pt"))
            cloudtune.report(metrics, cloudtune.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    sgd = {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-4, "batch_size": 32}
    train(sgd | {"channels": 20, "hidden": 64, "dropout": 0.2, "label_smoothing": 0.05, "shift": 1})

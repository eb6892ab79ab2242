"""A network that mutators change, on scikit-learn's handwritten digits, for cloudtune to tune.

The search space over networks is MODEL; the experiment names it, and `cloudtune plan` reads the
choices from the types of the functions, without running this file.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import cloudtune
from cloudtune import models

CLASSES = 10


# ---- the networks ----------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions, and what goes past them."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, kernel, padding=kernel // 2)
        self.second = nn.Conv2d(channels, channels, kernel, padding=kernel // 2)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = images + self.second(functional.relu(self.first(images)))
        return found


def base() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.LazyConv2d(16, 3, padding=1),  # lazy: takes what its mutator makes the layer before give
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(32),
        nn.ReLU(),
        nn.LazyLinear(CLASSES),
    )


def width(network: nn.Module, channels: Literal[8, 16, 32], hidden: Literal[32, 64]) -> nn.Module:
    """Give the first convolution and the first linear layer other widths."""
    models.replace(network, "0", nn.Conv2d(1, channels, 3, padding=1))
    return models.replace(network, "7", nn.LazyLinear(hidden))


def residual(network: nn.Sequential, kernel: Literal[3, 5], blocks: Literal[1, 2]) -> nn.Module:
    """Insert residual blocks behind the first activation, as wide as the network is there."""
    first = network[0]
    assert isinstance(first, nn.Conv2d)
    models.insert_after(network, "1", Residual(first.out_channels, kernel))
    return models.repeat(network, "1_then", blocks)


def batch_norm(network: nn.Sequential) -> nn.Module:
    first = network[0]
    assert isinstance(first, nn.Conv2d)
    return models.insert_after(network, "0", nn.BatchNorm2d(first.out_channels))


def dropout(network: nn.Module, p: Annotated[float, models.uniform(0.0, 0.5)]) -> nn.Module:
    return models.insert_after(network, "8", nn.Dropout(p))


def activation(network: nn.Module, kind: Literal["relu", "gelu", "silu"]) -> nn.Module:
    kinds = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
    for name in ("1", "4", "8"):
        models.replace(network, name, kinds[kind]())
    return network


MODEL = models.space(
    base,
    width,
    models.one_of("block", None, batch_norm, residual),
    models.one_of("regular", None, dropout),
    activation,
)


# ---- the training ----------------------------------------------------------------------------


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Give two thirds of the 1797 images to train on, and one third to validate."""
    # The file behind sklearn.datasets.load_digits(), whose import takes 1.5 s in each worker.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("this example needs scikit-learn's data: pip install scikit-learn")
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    shuffled = torch.from_numpy(np.random.default_rng(0).permutation(table).astype(np.float32))
    images, labels = shuffled[:, :-1].reshape(-1, 1, 8, 8) / 6 - 0.8, shuffled[:, -1].long()
    third = len(labels) // 3
    return TensorDataset(images[third:], labels[third:]), TensorDataset(
        images[:third], labels[:third]
    )


@torch.no_grad()
def evaluate(network: nn.Module, dataset: TensorDataset, device: torch.device) -> dict[str, float]:
    images, labels = (tensor.to(device) for tensor in dataset.tensors)
    scores = network.eval()(images)
    hits = scores.argmax(dim=1) == labels
    loss = functional.cross_entropy(scores, labels)
    return {"val_accuracy": hits.float().mean().item(), "val_loss": loss.item()}


def train(config: dict[str, Any]) -> None:
    device = cloudtune.get_context().get_device()
    training, validation = load_digits()
    batches = cloudtune.prepare_data_loader(DataLoader(training, batch_size=32, shuffle=True))
    network = MODEL.build(config["model"])
    network(torch.zeros(1, 1, 8, 8))  # what is lazy gets its shape
    model = cloudtune.prepare_model(network)
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    if checkpoint := cloudtune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), map_location=device)
        # A clone of population based training may begin from another network's checkpoint.
        found = cloudtune.inherit(network, state["network"])
        if found.whole:
            optimizer.load_state_dict(state["optimizer"])
        else:
            print(f"began from another network: {found}")

    for _ in cloudtune.epochs():
        model.train()
        for images, labels in batches:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = evaluate(network, validation, device)
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, Path(folder, "state.pt"))
            cloudtune.report(metrics, cloudtune.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    train({"lr": 0.03, "model": {}})

"""A batch that grows with a trial's GPUs, and a learning rate that follows (HyperSched's rule).

Each GPU keeps its 32 samples a step. On more GPUs the batch is larger, so the learning rate goes
to its square root's share, by a tenth an epoch at most. It is never lowered.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cloudtune


def data(samples: int = 2048) -> TensorDataset:
    """Return made-up points: what a small network with given weights says of them, and noise."""
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 16, generator=chance)
    teacher = torch.randn(16, 1, generator=chance)
    noise = 0.1 * torch.randn(samples, 1, generator=chance)
    return TensorDataset(inputs, torch.tanh(inputs @ teacher) + noise)


def train(config: dict[str, Any]) -> None:
    """Train one trial, at whatever width it has."""
    points = data()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    batch = cloudtune.GrowingBatch(per_worker=32, lr=config["lr"])
    if checkpoint := cloudtune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        batch.load_state_dict(state["batch"])  # after the optimizer's, which has the old rate
    net = cloudtune.prepare_model(model)
    loader = cloudtune.prepare_data_loader(DataLoader(points, batch.size, shuffle=True))
    for _ in cloudtune.epochs():
        rate, losses = batch.begin_epoch(optimizer), []
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss))
        with tempfile.TemporaryDirectory() as folder:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "batch": batch.state_dict(),
                },
                Path(folder) / "state.pt",
            )
            metrics = {"loss": sum(losses) / len(losses), "lr": rate, "batch": batch.size}
            cloudtune.report(metrics, cloudtune.Checkpoint.from_directory(folder))

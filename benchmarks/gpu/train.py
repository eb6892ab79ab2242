"""The script of the trials, copied beside their experiment: it trains a load, and notes when."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import cloudtune

sys.path.insert(0, os.environ["BENCHMARKS"])
from benchmarks.gpu.loads import load_named


def train(config: dict[str, Any]) -> None:
    rank = cloudtune.get_context().get_world_rank()
    path = Path(f"{config['log']}.{rank}" if "log" in config else os.devnull)
    log = path.open("a")

    def note(what: str, epoch: int, **more: object) -> None:
        print(json.dumps([what, epoch, time.time(), more]), file=log, flush=True)

    note("entered", 0)
    load = load_named(config.get("load") or os.environ["BENCHMARKS_LOAD"])
    steps = config.get("steps") or int(os.environ.get("BENCHMARKS_STEPS", "10"))
    device = str(cloudtune.get_device())
    if config.get("nccl"):
        began = time.time()
        torch.distributed.init_process_group("nccl" if device != "cpu" else "gloo")
        ones = torch.ones(1 << 20, device=device)
        torch.distributed.all_reduce(ones)
        note("joined", 0, seconds=time.time() - began, right=bool((ones == 1).all()))
    model = load.model()
    net = cloudtune.prepare_model(model)
    if config.get("nccl"):
        ids = [device] if device != "cpu" else None
        net = torch.nn.parallel.DistributedDataParallel(net, device_ids=ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 1e-3))
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    torch.manual_seed(1)
    inputs = load.inputs(load.batch, device)
    targets = torch.randint(0, load.classes, (load.batch,), device=device)
    for epoch in cloudtune.epochs():
        for step in range(steps):
            if step == 0:
                note("begin", epoch)
            loss: Any = torch.nn.functional.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 0:
                loss.item()
                note("stepped", epoch, device=device, threads=torch.get_num_threads())
        note("end", epoch, loss=loss.item())
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / "state.pt")
            saved = cloudtune.Checkpoint.from_directory(folder)
            metrics = {"loss": loss.item(), "on_gpu": float(device != "cpu")}
            cloudtune.report(metrics, saved)

"""The pace of emulated GPUs: an epoch that is done early waits until the GPUs would be done.

Two cores can't show how sixteen GPUs scale. The emulator therefore gives each machine the speed
curve of its instance type (pacing.csv, with its sources), and the trainer calls the hook once per
epoch and rank, and once as epoch 0 when a worker is set up: sixteen machines start sixteen workers
at once, two cores one after another. A trial's quality is real; only its time is paced.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HOOK_VARIABLE = "CLOUDTUNE_EPOCH_HOOK"
HOOK = "cloudtune.infra.emulator.pacing:pacer_from_env"
PACE_VARIABLE = "CLOUDTUNE_PACE"
SCALE_VARIABLE = "CLOUDTUNE_PACE_SCALE"
NOISE = 0.02  # sigma of the logarithm: about two percent from epoch to epoch
_TABLE = Path(__file__).with_name("pacing.csv")

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Pace:
    """The speed of one instance type: `speedup` by width, `node_efficiency` by machines.

    `start_seconds` is from a worker's birth until it trains.
    """

    epoch_seconds: float
    start_seconds: float
    speedup: Points
    node_efficiency: Points
    noise: float = NOISE
    seed: int = 0


def pace_of(gpu: str, *, seed: int = 0, scale: float = 1.0) -> Pace:
    """Return the pace of a GPU by its name in the price table, all seconds times `scale`."""
    rows = _rows()
    seconds = {row["gpu"]: float(row["value"]) for row in rows if _is(row, "epoch_seconds")}
    return Pace(
        epoch_seconds=scale * seconds.get(gpu, seconds["*"]),
        start_seconds=scale * next(float(r["value"]) for r in rows if _is(r, "start_seconds")),
        speedup=_points(rows, "speedup"),
        node_efficiency=_points(rows, "node_efficiency"),
        seed=seed,
    )


def speedup(pace: Pace, width: float, nodes: int) -> float:
    """Return the speed of a trial on `width` GPUs in `nodes` machines against one GPU.

    Below one GPU (packed trials) speed is in proportion to the share: no gain is assumed.
    """
    on_one = width / nodes
    one_machine = on_one if on_one < 1.0 else _interpolate(pace.speedup, on_one)
    return nodes * one_machine * _interpolate(pace.node_efficiency, nodes)


def seconds_for(pace: Pace, trial: str, epoch: int, width: float, nodes: int) -> float:
    """Return how long an epoch takes, with its noise: the same on every rank and every run.

    Epoch 0 is the start of a worker, whatever its width.
    """
    text = f"{pace.seed}/{trial}/{epoch}".encode()
    number = int.from_bytes(hashlib.sha256(text).digest()[:8])
    normal = NormalDist().inv_cdf((number + 0.5) / 2**64)
    mean = pace.epoch_seconds / speedup(pace, width, nodes) if epoch else pace.start_seconds
    return mean * math.exp(pace.noise * normal)


def settings_for(gpu: str, tag: str, *, scale: float = 1.0) -> dict[str, str]:
    """Return the environment that paces a machine; nothing without GPUs or when `tag` is off.

    `tag` is `off` or an integer seed; anything else counts as seed 0, as EC2 checks no tags.
    """
    if not gpu or tag == "off":
        return {}
    seed = int(tag) if tag.removeprefix("-").isdecimal() else 0
    pace = pace_of(gpu, seed=seed, scale=scale)
    return {HOOK_VARIABLE: HOOK, PACE_VARIABLE: json.dumps(asdict(pace))}


def pacer_from_env() -> Callable[..., None]:
    """Return the hook for this process: `hook(trial=, epoch=, width=, nodes=, elapsed=)`.

    Raises:
        UsageError: CLOUDTUNE_PACE is missing or is no pace.
    """
    pace = _read_pace(os.environ.get(PACE_VARIABLE, ""))

    def wait(*, trial: str, epoch: int, width: float, nodes: int, elapsed: float) -> None:
        time.sleep(max(0.0, seconds_for(pace, trial, epoch, width, nodes) - elapsed))

    return wait


def _read_pace(text: str) -> Pace:
    try:
        raw = json.loads(text)
        return Pace(
            epoch_seconds=float(raw["epoch_seconds"]),
            start_seconds=float(raw["start_seconds"]),
            speedup=_pairs(raw["speedup"]),
            node_efficiency=_pairs(raw["node_efficiency"]),
            noise=float(raw["noise"]),
            seed=int(raw["seed"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{PACE_VARIABLE} holds no pace ({error!r}). The emulator sets it on its machines: "
            f"elsewhere unset {HOOK_VARIABLE}."
        ) from error


def _pairs(raw: Sequence[Sequence[Any]]) -> Points:
    return tuple((float(at), float(value)) for at, value in raw)


def _interpolate(points: Points, at: float) -> float:
    """Return the value at `at`, straight in log-log; beyond the last point its slope goes on."""
    segments = list(pairwise(points))
    (x0, y0), (x1, y1) = next((s for s in segments if at <= s[1][0]), segments[-1])
    share = math.log(at / x0) / math.log(x1 / x0)
    return y0 * math.exp(share * math.log(y1 / y0))


def _rows() -> list[Mapping[str, str]]:
    with _TABLE.open(newline="") as table:
        return list(csv.DictReader(line for line in table if not line.startswith("#")))


def _is(row: Mapping[str, str], quantity: str) -> bool:
    return row["quantity"] == quantity


def _points(rows: Sequence[Mapping[str, str]], quantity: str) -> Points:
    return tuple(
        sorted((float(row["at"]), float(row["value"])) for row in rows if _is(row, quantity))
    )

"""The pace of emulated GPUs: an epoch that ends early waits until real GPUs would be done.

Two cores can't show how sixteen GPUs scale. So the emulator gives each machine the speed curve of
its instance type, and the trainer calls the hook once per epoch and rank, and once as epoch 0 when
a worker is set up: sixteen machines start sixteen workers at once, but two cores start them one
after another. A trial's quality is real; only its time is paced.

The curve starts from the time of an epoch of the user's script on one core of this machine
(`core_seconds`). An emulated V100 or T4 takes `core_factor` times that, other GPUs follow published
speeds (profiles/ratios.csv), and more GPUs are faster by a table (pacing.csv).
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import EMULATED, Measurement, Provenance, ScalingProfile
from cloudtune.model.text import width_text
from cloudtune.profiles import ratios
from cloudtune.profiles.csv_table import rows

HOOK_VARIABLE = "CLOUDTUNE_EPOCH_HOOK"
HOOK = "cloudtune.infra.emulator.pacing:pacer_from_env"
PACE_VARIABLE = "CLOUDTUNE_PACE"
SCALE_VARIABLE = "CLOUDTUNE_PACE_SCALE"
NOISE = 0.02  # sigma of the logarithm: about two percent from epoch to epoch
_TABLE = Path(__file__).with_name("pacing.csv")


@dataclass(frozen=True)
class Pace:
    """The seconds of an epoch on one GPU, and of a worker's start; a seed for the noise."""

    epoch_seconds: float
    start_seconds: float
    seed: int = 0


def core_factor(gpu: str) -> tuple[float, str]:
    """Return how many times as long an epoch takes on an emulated GPU as on one core, and why.

    Such a GPU is slower than a core: pacing can only slow down, and many GPUs share the cores.
    """
    factors = {row["gpu"]: float(row["value"]) for row in _rows("core_factor")}
    reference = next(iter(factors))
    base = factors[reference]
    set_to = f"set to {base:g} times a core's time"
    if gpu in factors:
        return factors[gpu], f"{gpu} set to {factors[gpu]:g} times a core's time"
    ratio = ratios.between(reference, gpu)
    if ratio is None:
        return base, f"no published ratio for {gpu}, so it counts as a {reference}, {set_to}"
    how = f"{gpu} {ratio.ratio:.2f} times as fast as {reference} ({ratio.source}, {ratio.date})"
    return base / ratio.ratio, f"{how}; {reference} {set_to}"


def find_pace(
    gpu: str, *, seed: int = 0, scale: float = 1.0, core_seconds: float | None = None
) -> Pace:
    """Return the pace of a GPU by its name in the price table, all seconds times `scale`.

    `core_seconds` is the time of an epoch on one core; if none was timed, it comes from a table.
    """
    if core_seconds is None:
        made_up = {row["gpu"]: float(row["value"]) for row in _rows("epoch_seconds")}
        epoch_seconds = made_up.get(gpu, made_up["*"])
    else:
        factor, _ = core_factor(gpu)
        epoch_seconds = core_seconds * factor
    (start,) = _rows("start_seconds")
    return Pace(
        epoch_seconds=scale * epoch_seconds,
        start_seconds=scale * float(start["value"]),
        seed=seed,
    )


def speedup(width: float, nodes: int) -> float:
    """Return the speed of a trial on `width` GPUs in `nodes` machines against one GPU.

    Below one GPU (packed trials) speed is in proportion to the share: no gain is assumed.
    """
    on_one = width / nodes
    one_machine = on_one if on_one < 1.0 else _interpolate("speedup", on_one)
    return nodes * one_machine * _interpolate("node_efficiency", nodes)


def draw_seconds(pace: Pace, trial: str, epoch: int, width: float, nodes: int) -> float:
    """Return the seconds of an epoch with its noise, the same on every rank and in every run.

    Epoch 0 is the start of a worker, whatever its width.
    """
    text = f"{pace.seed}/{trial}/{epoch}".encode()
    number = int.from_bytes(hashlib.sha256(text).digest()[:8])
    normal = NormalDist().inv_cdf((number + 0.5) / 2**64)
    mean = pace.epoch_seconds / speedup(width, nodes) if epoch else pace.start_seconds
    return mean * math.exp(NOISE * normal)


PACE_TAG = "cloudtune:pace"
OFF = "off"


def make_tag(seed: int, core_seconds: float | None) -> str:
    """Return the tag of a paced machine: a seed, and the seconds of an epoch on a core."""
    return f"{seed}" if core_seconds is None else f"{seed}:{core_seconds!r}"


def make_settings(gpu: str, tag: str, *, scale: float = 1.0) -> dict[str, str]:
    """Return the environment that paces a machine; nothing without GPUs or when `tag` is off."""
    if not gpu or tag == OFF:
        return {}
    seed, _, seconds = tag.partition(":")
    core_seconds = float(seconds) if seconds else None
    pace = find_pace(gpu, seed=int(seed), scale=scale, core_seconds=core_seconds)
    return {HOOK_VARIABLE: HOOK, PACE_VARIABLE: json.dumps(asdict(pace))}


def scale_here() -> float:
    """Return the factor on all paced seconds from this process's environment."""
    return float(os.environ.get(SCALE_VARIABLE, "1"))


def emulated_profile(
    profile: ScalingProfile, machine: InstanceType, core_seconds: float, scale: float = 1.0
) -> ScalingProfile:
    """Return the profile of an emulated machine, from one measured on it without a pace.

    An epoch takes the pace's seconds, or the measured ones if they are longer: pacing can only slow
    down. The same applies to a start.
    """
    pace = find_pace(machine.gpu, scale=scale, core_seconds=core_seconds)
    factor, why = core_factor(machine.gpu)
    nodes = {width: max(1, math.ceil(width / machine.gpus)) for width in profile.epoch}
    paced = {w: pace.epoch_seconds / speedup(w, nodes[w]) for w in profile.epoch}
    slow = [w for w, seconds in paced.items() if profile.epoch[w].mean > seconds]
    start = _at_least(profile.start, pace.start_seconds)
    resize = replace(profile.resize, mean=profile.resize.mean + start.mean - profile.start.mean)
    notes = [profile.source, f"an epoch took {core_seconds:.3g} s on one core of this machine"]
    notes.append(f"{factor:.3g} times that on a GPU ({why}); widths by pacing.csv")
    if slow:
        widths = ", ".join(width_text(width) for width in sorted(slow))
        notes.append(f"at {widths} GPUs this machine can't keep that pace: what it took")
    return replace(
        profile,
        epoch={width: _at_least(profile.epoch[width], paced[width]) for width in profile.epoch},
        start=start,
        resize=resize,
        source="; ".join(notes),
        provenance=Provenance(EMULATED, core_seconds=core_seconds, factor=factor, why=why),
    )


def _at_least(measured: Measurement, seconds: float) -> Measurement:
    if measured.mean > seconds:
        return measured
    return Measurement(seconds, NOISE * seconds, measured.n)


def core_seconds_by_profile(
    profiles: Iterable[tuple[ScalingProfile, InstanceType]], scale: float = 1.0
) -> float | None:
    """Return the seconds of an epoch on one core that reproduce these profiles.

    The timed seconds if a profile has them, or else those of the first one's narrowest width. None
    without profiles.
    """
    pairs = list(profiles)
    timed = [p.provenance.core_seconds for p, _ in pairs if p.provenance.core_seconds is not None]
    if timed:
        return timed[0]
    for profile, machine in pairs[:1]:
        width = profile.widths[0]
        alone = profile.epoch_seconds(width) * speedup(width, 1)
        factor, _ = core_factor(machine.gpu)
        return alone / factor / scale
    return None


def pacer_from_env() -> Callable[..., None]:
    """Return the hook for this process: `hook(trial=, epoch=, width=, nodes=, elapsed=)`."""
    pace = Pace(**json.loads(os.environ[PACE_VARIABLE]))

    def wait(*, trial: str, epoch: int, width: float, nodes: int, elapsed: float) -> None:
        time.sleep(max(0.0, draw_seconds(pace, trial, epoch, width, nodes) - elapsed))

    return wait


def _interpolate(quantity: str, at: float) -> float:
    """Return a quantity at `at`, interpolated linearly in log-log, and extrapolated at the end."""
    segments = _segments(quantity)
    (x0, y0), (x1, y1) = next((s for s in segments if at <= s[1][0]), segments[-1])
    share = math.log(at / x0) / math.log(x1 / x0)
    return y0 * math.exp(share * math.log(y1 / y0))


@cache  # each epoch of a paced trial asks for them
def _segments(quantity: str) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    points = sorted((float(row["at"]), float(row["value"])) for row in _rows(quantity))
    return list(pairwise(points))


def _rows(quantity: str) -> list[dict[str, str]]:
    return [row for row in rows(_TABLE) if row["quantity"] == quantity]

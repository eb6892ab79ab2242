"""Packed throughput: 1, 2, 4 and 8 trials of three models on one GPU; alone, in turns, by MPS.

The figures are samples a second of all trials together, as a share of what one has alone: 2.0 for
four trials means that each trains at half its speed. Without a GPU trials share the cores, and the
way is "cores".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.gpu.clients import GoneError, short_folder, train_together
from benchmarks.gpu.loads import LOADS
from benchmarks.gpu.results import NO_GPU, Findings
from cloudtune.infra.node.gpus import gpus
from cloudtune.infra.node.mps import MpsDaemons
from cloudtune.infra.node.this_machine import physical_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COUNTS = (2, 4, 8)
SECONDS = 5.0
CPU_SECONDS = 2.0


def measure(seconds: float | None = None, loads: Sequence[str] = LOADS) -> Findings:
    """Train each load in each way and number; return samples a second, and shares."""
    found, real = Findings(), gpus()[:1]
    if not real:
        for load in loads:
            _column(found, load, "cores", COUNTS[:1], lambda count: _cores(count), seconds)
        for way in ("mps", "sliced"):
            found.unknown[f"{way}_2_share"] = NO_GPU
        return found
    folder = short_folder()
    daemons = MpsDaemons(folder, real)
    try:
        if daemons.notice:
            found.unknown["mps_2_share"] = daemons.notice
        for load in loads:
            alone = {"CUDA_VISIBLE_DEVICES": real[0].uuid}
            _column(found, load, "sliced", COUNTS, lambda count: alone | _cores(count), seconds)
            if not daemons.notice:
                _column(
                    found,
                    load,
                    "mps",
                    COUNTS,
                    lambda count: daemons.environment(0, 1 / count) | _cores(count),
                    seconds,
                )
    finally:
        daemons.stop()
    return found


def _cores(count: int) -> dict[str, str]:
    """Return the threads of each of so many, as workers have them."""
    return {"OMP_NUM_THREADS": str(max(1, physical_cores() // count))}


def _column(
    found: Findings,
    load: str,
    way: str,
    counts: Sequence[int],
    environment: Callable[[int], Mapping[str, str]],
    seconds: float | None,
) -> None:
    """Measure one load in one way; alone first, if that isn't known yet."""
    length = seconds or (SECONDS if way != "cores" else CPU_SECONDS)
    alone = f"{load}_alone_per_s"
    if alone not in found.figures:
        bare = {k: v for k, v in environment(1).items() if not k.startswith("CUDA_MPS")}
        (told,) = train_together(load, [bare], length)
        found.figures[alone] = told["samples_per_s"]
        found.figures[f"{load}_alone_peak_mib"] = told["peak_mib"]
    for count in counts:
        name = f"{load}_{way}_{count}"
        try:
            told_all = train_together(load, [environment(count)] * count, length)
        except GoneError as error:
            found.failed[f"{name}_share"] = str(error)
            continue
        rates = [each["samples_per_s"] for each in told_all]
        found.figures[f"{name}_share"] = sum(rates) / found.figures[alone]
        found.figures[f"{name}_slowest_to_fastest_share"] = min(rates) / max(rates)


def table(figures: Mapping[str, float]) -> str:
    """Return the shares as a Markdown table: a line for each load and way."""
    lines = ["| model | samples/s alone | way | 2 | 4 | 8 |", "|---|---:|---|---:|---:|---:|"]
    for load in LOADS:
        for way in ("sliced", "mps", "cores"):
            shares = [figures.get(f"{load}_{way}_{count}_share") for count in COUNTS]
            if any(shares):
                cells = [f"{share:.2f}" if share else "–" for share in shares]
                rate = f"{figures[f'{load}_alone_per_s']:,.0f}"
                lines.append(f"| {load} | {rate} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)

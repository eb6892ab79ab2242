"""Packed throughput: 1, 2, 4 and 8 trials of three models on one GPU.

They train alone, in turns, by MPS, and fused into one model in one process (docs/fused.md).
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
    from collections.abc import Mapping, Sequence

COUNTS = (2, 4, 8)
SECONDS = 3.0
CPU_SECONDS = 2.0


def measure(seconds: float | None = None, loads: Sequence[str] = LOADS) -> Findings:
    """Train each load in each way and number; return samples a second, and shares."""
    findings, real = Findings(), gpus()[:1]
    if not real:
        for load in loads:
            _measure_alone(findings, load, _cores(1), seconds or CPU_SECONDS)
            _measure(findings, f"{load}_cores_2", [_cores(2)] * 2, seconds or CPU_SECONDS)
            _measure(findings, f"{load}_fused_2", [_cores(1)], seconds or CPU_SECONDS, fused=2)
        for way in ("sliced", "mps"):
            findings.unknown[f"{way}_share"] = NO_GPU
        return findings
    daemons = MpsDaemons(short_folder(), real)
    try:
        if daemons.notice:
            findings.unknown["mps_share"] = daemons.notice
        whole = {"CUDA_VISIBLE_DEVICES": real[0].uuid}
        for load in loads:
            _measure_alone(findings, load, whole | _cores(1), seconds or SECONDS)
            for count in COUNTS:
                ways = {"sliced": whole, "mps": daemons.environment(0, 1 / count)}
                for way, environment in ways.items():
                    if way == "sliced" or not daemons.notice:
                        together = [{**environment, **_cores(count)}] * count
                        _measure(findings, f"{load}_{way}_{count}", together, seconds or SECONDS)
                name = f"{load}_fused_{count}"
                _measure(findings, name, [whole | _cores(1)], seconds or SECONDS, fused=count)
    finally:
        daemons.stop()
    return findings


def _cores(count: int) -> dict[str, str]:
    """Return the threads of each of so many, as workers have them."""
    return {"OMP_NUM_THREADS": str(max(1, physical_cores() // count))}


def _measure_alone(
    findings: Findings, load: str, environment: Mapping[str, str], seconds: float
) -> None:
    (result,) = train_together(load, [environment], seconds)
    findings.figures[f"{load}_alone_per_s"] = result["samples_per_s"]
    findings.figures[f"{load}_alone_peak_mib"] = result["peak_mib"]


def _measure(
    findings: Findings,
    name: str,
    environments: Sequence[Mapping[str, str]],
    seconds: float,
    *,
    fused: int = 0,
) -> None:
    """Have several train at once; note what they do together, as a share of one alone."""
    load = name.partition("_")[0]
    try:
        result = train_together(load, environments, seconds, fused=fused)
    except GoneError as error:
        findings.failed[f"{name}_share"] = str(error)
        return
    rates = [answer["samples_per_s"] for answer in result]
    findings.figures[f"{name}_share"] = sum(rates) / findings.figures[f"{load}_alone_per_s"]
    findings.figures[f"{name}_slowest_to_fastest_share"] = min(rates) / max(rates)


def table(figures: Mapping[str, float]) -> str:
    """Return the shares as a Markdown table: a line for each load and way."""
    lines = ["| model | samples/s alone | way | 2 | 4 | 8 |", "|---|---:|---|---:|---:|---:|"]
    for load in LOADS:
        for way in ("sliced", "mps", "cores", "fused"):
            shares = [figures.get(f"{load}_{way}_{count}_share") for count in COUNTS]
            if any(shares):
                cells = [f"{share:.2f}" if share else "–" for share in shares]
                rate = f"{figures[f'{load}_alone_per_s']:,.0f}"
                lines.append(f"| {load} | {rate} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)

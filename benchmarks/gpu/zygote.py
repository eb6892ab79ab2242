"""The zygote and CUDA: nothing before the fork, seconds to the first step, a spare's memory."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from statistics import median

from benchmarks.gpu.clients import Client, waited
from benchmarks.gpu.node import Bench
from benchmarks.gpu.results import NO_GPU, Findings
from cloudtune.infra.node.gpus import gpus

REPEATS = 3
_SPARE_SECONDS = 60.0
_ALLOCATOR = "jemalloc_bg_thd"  # pyarrow's, which sees to a fork itself
_SETTLE_SECONDS = 6.0


def measure() -> Findings:
    """Start workers cold, from the zygote, and from a spare; look into the zygote before."""
    findings, real = Findings(), gpus()[:1]
    findings.figures["fresh_process_first_step_s"] = median(_fresh() for _ in range(2))
    before = _used(real[0].uuid) if real else 0.0
    with Bench(spares=False) as bench:
        findings.figures["zygote_warm_s"] = bench.warm_seconds
        findings.facts["zygote_note"] = str(bench.hello["note"])
        _look_into(findings, int(bench.hello["zygote"]), "zygote")
        orders = [_order(bench, f"cold{turn}.1") for turn in range(REPEATS)]
        _look_into(findings, int(bench.hello["zygote"]), "zygote_after_forks")
        findings.figures["forked_first_step_s"] = median(first for first, _ in orders)
        findings.figures["forked_entered_s"] = median(entered for _, entered in orders)
    if not real:
        for name in ("spare_first_step_s", "spare_context_mib"):
            findings.unknown[name] = NO_GPU
        return findings
    waited(lambda: _used(real[0].uuid) <= before + 1, _SETTLE_SECONDS)
    base = _used(real[0].uuid)
    with Bench(spares=True) as bench:
        waited(lambda: _used(real[0].uuid) > base + 50, _SPARE_SECONDS)
        time.sleep(_SETTLE_SECONDS)
        findings.figures["spare_context_mib"] = _used(real[0].uuid) - base
        _look_into(findings, int(bench.hello["zygote"]), "zygote_with_spare")
        firsts = []
        for turn in range(REPEATS):
            firsts.append(_order(bench, f"warm{turn}.1"))
            time.sleep(_SETTLE_SECONDS)  # the next spare gets ready
        findings.figures["spare_first_step_s"] = median(first for first, _ in firsts)
        findings.figures["spare_entered_s"] = median(entered for _, entered in firsts)
    waited(lambda: _used(real[0].uuid) <= base + 1, _SETTLE_SECONDS)
    findings.expect("nothing_left_on_the_gpu", so=_used(real[0].uuid) <= base + 1)
    return findings


def _order(bench: Bench, session: str) -> tuple[float, float]:
    """Return the seconds from an order to the first step done, and to the script's function."""
    at = bench.start(session, 1.0)
    while not (bench.folder / f"{session}.0").exists():
        time.sleep(0.01)
    waited(lambda: any(note[0] == "stepped" for note in bench.notes(session)), 120.0)
    bench.end(session)
    return bench.noted(session, "stepped")[0] - at, bench.noted(session, "entered")[0] - at


def _fresh() -> float:
    """Return the seconds of a new Python process to its first step."""
    began = time.monotonic()
    client = Client(["-m", "benchmarks.gpu.loads", "mlp", "--seconds", "0"], {})
    try:
        client.hear()
        return time.monotonic() - began
    finally:
        client.end()


def _look_into(findings: Findings, pid: int, name: str) -> None:
    """Note that a process has nothing of CUDA: no device is open, no GPU knows of it."""
    opened = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened.append(str(link.readlink()))
        except OSError:
            continue
    devices = sorted({path for path in opened if "nvidia" in path})
    names = [(path / "comm").read_text().strip() for path in Path(f"/proc/{pid}/task").iterdir()]
    own = [thread for thread in names if thread != _ALLOCATOR]
    findings.expect(f"{name}_has_no_device_open", so=not devices, message=" ".join(devices))
    findings.expect(f"{name}_has_one_thread", so=len(own) == 1, message=" ".join(own))


def _used(uuid: str) -> float:
    """Return the memory in use on a GPU, in MiB, whoever has it."""
    command = ["nvidia-smi", "-i", uuid, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return float(done.stdout.strip())

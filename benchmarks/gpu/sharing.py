"""MPS for real: daemons, shares of threads and memory, a client that crashes, and the way back.

Each part is tried for itself, so that one that comes out otherwise doesn't hide the others. What
NVIDIA's manual says ("Multi-Process Service", docs.nvidia.com/deploy/mps) is what is expected.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.gpu.clients import Client, GoneError, short_folder, waited
from benchmarks.gpu.results import NO_GPU, Findings
from cloudtune.infra.node.gpus import gpus
from cloudtune.infra.node.mps import MpsDaemons
from cloudtune.infra.node.mps_daemon import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudtune.infra.node.gpus import Gpu

PROGRAM = ["-m", "benchmarks.gpu.misbehaving"]
SECONDS = 2.0
SPIN_SECONDS = 3.0


def measure() -> Findings:
    """Try each part; without a GPU, only what is said then."""
    findings, real = Findings(), gpus()[:1]
    findings.facts["notice_without_a_gpu"] = MpsDaemons(Path("/nonexistent"), ()).notice
    if not real:
        for name in (*(part.__name__.strip("_") for part in PARTS), "daemon_start_s"):
            findings.unknown[name] = NO_GPU
        return findings
    _fallback(findings, real[0])
    findings.facts["compute_mode"] = _compute_mode(real[0])
    if shutil.which(CONTROL) is None:
        for part in PARTS:
            findings.unknown[part.__name__.strip("_")] = f"{CONTROL} is not installed"
        return findings
    left: set[int] = set()
    for part in PARTS:
        began = time.monotonic()
        folder = short_folder()
        daemons = MpsDaemons(folder, real)
        if part is PARTS[0]:
            findings.figures["daemon_start_s"] = time.monotonic() - began
        name = part.__name__.strip("_")
        try:
            if daemons.notice:
                findings.failed[name] = daemons.notice
            else:
                part(findings, daemons)
        except Exception as error:  # noqa: BLE001  the other parts are still to be seen
            findings.failed[name] = f"{type(error).__name__}: {error}"
        finally:
            began = time.monotonic()
            daemons.stop()
            left |= _running(folder)
            if part is PARTS[0]:
                findings.figures["daemon_stop_s"] = time.monotonic() - began
    findings.expect("no_daemon_is_left", so=not left, message=f"pids {sorted(left)}")
    return findings


def _running(folder: Path) -> set[int]:
    """Return the processes of MPS that have their pipes in a folder."""
    return {
        process.pid
        for process in psutil.process_iter(["environ", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and str(folder) in (process.info["environ"] or {}).get("CUDA_MPS_PIPE_DIRECTORY", "")
    }


def _client(daemons: MpsDaemons, share: float, *words: object) -> Client:
    return Client([*PROGRAM, *map(str, words)], daemons.environment(0, share))


def _rate(client: Client) -> float:
    client.tell()
    return float(client.hear(SECONDS + 60.0)["products_per_s"])


def _thread_share(findings: Findings, daemons: MpsDaemons) -> None:
    """A client with a quarter of the threads computes at a quarter of the speed, or little more."""
    rates = {}
    for share in (1.0, 0.5, 0.25):
        client = _client(daemons, share, "compute", SECONDS)
        try:
            reported = client.hear()
            findings.figures[f"processors_at_{share:g}"] = float(reported["processors"])
            rates[share] = _rate(client)
        finally:
            client.end()
    for share in (0.5, 0.25):
        findings.figures[f"threads_{share:g}_speed_share"] = rates[share] / rates[1.0]
    ratio = rates[0.25] / rates[1.0]
    findings.expect("threads_are_limited", so=ratio < 0.45, message=f"a quarter has {ratio:.2f}")


def _memory_limit(findings: Findings, daemons: MpsDaemons) -> None:
    """A client that overruns its memory has an error of its own, and its neighbour none."""
    neighbour = _client(daemons, 0.25, "compute", SECONDS)
    total = float(neighbour.hear()["total_mib"])
    greedy = _client(daemons, 0.25, "allocate", total)
    try:
        reported = greedy.hear()
        findings.figures["memory_seen_at_0.25_share"] = (
            float(reported["total_mib"]) / gpus()[0].memory_mib
        )
        before = _rate(neighbour)
        greedy.tell()
        done = greedy.hear(120.0)
        findings.facts["overrun_says"] = str(
            done.get("error", f"took {done.get('allocated_mib')} MiB")
        )
        findings.expect("overrun_is_refused_as_out_of_memory", so=done.get("out_of_memory") is True)
        taken = float(done["allocated_mib"]) / gpus()[0].memory_mib
        findings.figures["overrun_took_share"] = taken
        findings.expect(
            "memory_is_limited", so=taken < 0.3, message=f"a quarter took {taken:.2f} of it"
        )
        after = _rate(neighbour)
        findings.expect("overrun_leaves_its_neighbour_alone", so=after > before / 2)
        findings.expect("overrun_is_no_fault_of_the_server", so=not daemons.has_fault(0))
    finally:
        greedy.end()
        neighbour.end()


def _crash(findings: Findings, daemons: MpsDaemons) -> None:
    """A crash ends all clients of the GPU; it is seen, and new ones train after a restart."""
    neighbour = _client(daemons, 0.5, "compute", SECONDS)
    crashing = _client(daemons, 0.5, "crash")
    try:
        neighbour.hear()
        crashing.hear()
        _rate(neighbour)
        began = time.monotonic()
        crashing.tell()
        reported = crashing.hear(60.0)
        findings.facts["crash_says"] = str(reported.get("error", "nothing"))
        findings.facts["crash_is_a_fault_of_the_server"] = daemons.has_fault(0)
        neighbour.tell()
        try:
            done = neighbour.hear(60.0)
            findings.facts["crash_neighbour_says"] = str(done.get("error", "it goes on"))
        except GoneError as error:
            findings.facts["crash_neighbour_says"] = str(error)
        findings.facts["crash_is_a_fault_of_the_server_still"] = daemons.has_fault(0)
        findings.figures["crash_seen_after_s"] = time.monotonic() - began
    finally:
        crashing.end()
        neighbour.end()
    began = time.monotonic()
    restarted = daemons.check()
    findings.figures["crash_restart_s"] = time.monotonic() - began
    findings.facts["crash_restarted"] = restarted == [0]
    again = _client(daemons, 0.5, "compute", SECONDS)
    try:
        again.hear()
        findings.expect("after_a_crash_others_train", so=_rate(again) > 0)
    finally:
        again.end()


def _kill_in_mid_kernel(findings: Findings, daemons: MpsDaemons) -> None:
    """A client that is taken off the GPU first may be killed: its neighbour goes on."""
    neighbour = _client(daemons, 0.5, "compute", SECONDS)
    spinning = _client(daemons, 0.5, "spin", SPIN_SECONDS)
    try:
        neighbour.hear()
        spinning.hear()
        before = _rate(neighbour)
        spinning.tell()
        spinning.hear(30.0)
        began = time.monotonic()
        findings.expect("terminate_client_knows_its_pid", so=daemons.release(spinning.pid))
        findings.figures["terminate_client_s"] = time.monotonic() - began
        spinning.process.kill()
        spinning.process.wait()
        after = _rate(neighbour)
        findings.expect("a_kill_leaves_its_neighbour_alone", so=after > before / 2)
        findings.expect("a_kill_is_no_fault", so=not daemons.has_fault(0))
    finally:
        spinning.end()
        neighbour.end()


def _daemon_dies(findings: Findings, daemons: MpsDaemons) -> None:
    """A daemon that is killed is started afresh."""
    leader = daemons._daemons[0]._leader  # noqa: SLF001  its pid is private
    assert leader is not None
    leader.kill()
    began = time.monotonic()
    findings.expect("a_dead_daemon_is_seen", so=waited(lambda: daemons.has_fault(0), 10.0))
    findings.expect("a_dead_daemon_is_started_afresh", so=daemons.check() == [0])
    findings.figures["dead_daemon_s"] = time.monotonic() - began
    client = _client(daemons, 0.5, "compute", SECONDS)
    try:
        client.hear()
        findings.expect("then_others_train", so=_rate(client) > 0)
    finally:
        client.end()


def _fallback(findings: Findings, gpu: Gpu) -> None:
    """Without its control program, packed trials take turns, and a notice says so."""
    path = os.environ["PATH"]
    os.environ["PATH"], folder = "/nonexistent", short_folder()
    try:
        daemons = MpsDaemons(folder, (gpu,))
    finally:
        os.environ["PATH"] = path
        shutil.rmtree(folder, ignore_errors=True)
    findings.facts["fallback_notice"] = daemons.notice
    findings.expect("fallback_takes_turns", so="time-slicing" in daemons.notice)
    client = _client(daemons, 0.5, "compute", SECONDS)
    try:
        client.hear()
        findings.expect("fallback_trains", so=_rate(client) > 0)
    except GoneError as error:
        findings.failed["fallback_trains"] = str(error)
    finally:
        client.end()


def _compute_mode(gpu: Gpu) -> str:
    command = ["nvidia-smi", "-i", gpu.uuid, "--query-gpu=compute_mode", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()


PARTS: tuple[Callable[[Findings, MpsDaemons], None], ...] = (
    _thread_share,
    _memory_limit,
    _kill_in_mid_kernel,
    _daemon_dies,
    _crash,
)

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
_FAULT_SECONDS = 30.0


def measure() -> Findings:
    """Try each part; without a GPU, only what is said then."""
    found, real = Findings(), gpus()[:1]
    found.facts["notice_without_a_gpu"] = MpsDaemons(Path("/nonexistent"), ()).notice
    before = _running()
    if not real:
        for name in (*(part.__name__.strip("_") for part in PARTS), "daemon_start_s"):
            found.unknown[name] = NO_GPU
        return found
    _fallback(found, real[0])
    found.facts["compute_mode"] = _compute_mode(real[0])
    if shutil.which(CONTROL) is None:
        for part in PARTS:
            found.unknown[part.__name__.strip("_")] = f"{CONTROL} is not installed"
        return found
    for part in PARTS:
        began = time.monotonic()
        daemons = MpsDaemons(short_folder(), real)
        if part is PARTS[0]:
            found.figures["daemon_start_s"] = time.monotonic() - began
        name = part.__name__.strip("_")
        try:
            if daemons.notice:
                found.failed[name] = daemons.notice
            else:
                part(found, daemons)
        except Exception as error:  # noqa: BLE001  the other parts are still to be seen
            found.failed[name] = f"{type(error).__name__}: {error}"
        finally:
            began = time.monotonic()
            daemons.stop()
            if part is PARTS[0]:
                found.figures["daemon_stop_s"] = time.monotonic() - began
    left = _running() - before
    found.expect("no_daemon_is_left", so=not left, told=f"pids {sorted(left)}")
    return found


def _running() -> set[int]:
    """Return the processes of MPS, anybody's."""
    every = psutil.process_iter(["name", "status"])
    alive = (each for each in every if each.info["status"] != psutil.STATUS_ZOMBIE)
    return {each.pid for each in alive if "nvidia-cuda-mps" in str(each.info["name"])}


def _client(daemons: MpsDaemons, share: float, *words: object) -> Client:
    return Client([*PROGRAM, *map(str, words)], daemons.environment(0, share))


def _rate(client: Client) -> float:
    client.tell()
    return float(client.hear(SECONDS + 60.0)["products_per_s"])


def _thread_share(found: Findings, daemons: MpsDaemons) -> None:
    """A client with a quarter of the threads computes at a quarter of the speed, or little more."""
    rates = {}
    for share in (1.0, 0.5, 0.25):
        client = _client(daemons, share, "compute", SECONDS)
        try:
            told = client.hear()
            found.figures[f"processors_at_{share:g}"] = float(told["processors"])
            rates[share] = _rate(client)
        finally:
            client.end()
    for share in (0.5, 0.25):
        found.figures[f"threads_{share:g}_speed_share"] = rates[share] / rates[1.0]
    ratio = rates[0.25] / rates[1.0]
    found.expect("threads_are_limited", so=ratio < 0.45, told=f"a quarter has {ratio:.2f}")


def _memory_limit(found: Findings, daemons: MpsDaemons) -> None:
    """A client that overruns its memory has an error of its own, and its neighbour none."""
    neighbour = _client(daemons, 0.25, "compute", SECONDS)
    total = float(neighbour.hear()["total_mib"])
    greedy = _client(daemons, 0.25, "allocate", total)
    try:
        told = greedy.hear()
        found.figures["memory_seen_at_0.25_share"] = float(told["total_mib"]) / gpus()[0].memory_mib
        before = _rate(neighbour)
        greedy.tell()
        done = greedy.hear(120.0)
        found.facts["overrun_says"] = str(
            done.get("error", f"took {done.get('allocated_mib')} MiB")
        )
        found.expect("overrun_is_refused_as_out_of_memory", so=done.get("out_of_memory") is True)
        taken = float(done["allocated_mib"]) / gpus()[0].memory_mib
        found.figures["overrun_took_share"] = taken
        found.expect("memory_is_limited", so=taken < 0.3, told=f"a quarter took {taken:.2f} of it")
        after = _rate(neighbour)
        found.expect("overrun_leaves_its_neighbour_alone", so=after > before / 2)
        found.expect("overrun_is_no_fault_of_the_server", so=not daemons.is_faulted(0))
    finally:
        greedy.end()
        neighbour.end()


def _crash(found: Findings, daemons: MpsDaemons) -> None:
    """A crash ends all clients of the GPU; it is seen, and new ones train after a restart."""
    neighbour = _client(daemons, 0.5, "compute", SECONDS)
    crashing = _client(daemons, 0.5, "crash")
    try:
        neighbour.hear()
        crashing.hear()
        _rate(neighbour)
        began = time.monotonic()
        crashing.tell()
        told = crashing.hear(60.0)
        found.facts["crash_says"] = str(told.get("error", "nothing"))
        neighbour.tell()
        try:
            done = neighbour.hear(60.0)
            found.facts["crash_neighbour_says"] = str(done.get("error", "it goes on"))
        except GoneError as error:
            found.facts["crash_neighbour_says"] = str(error)
        seen = waited(lambda: daemons.is_faulted(0), _FAULT_SECONDS)
        found.figures["crash_seen_after_s"] = time.monotonic() - began
        found.facts["crash_is_a_fault_of_the_server"] = seen
    finally:
        crashing.end()
        neighbour.end()
    began = time.monotonic()
    restarted = daemons.check()
    found.figures["crash_restart_s"] = time.monotonic() - began
    found.facts["crash_restarted"] = restarted == [0]
    again = _client(daemons, 0.5, "compute", SECONDS)
    try:
        again.hear()
        found.expect("after_a_crash_others_train", so=_rate(again) > 0)
    finally:
        again.end()


def _kill_in_mid_kernel(found: Findings, daemons: MpsDaemons) -> None:
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
        found.expect("terminate_client_knows_its_pid", so=daemons.release(spinning.pid))
        found.figures["terminate_client_s"] = time.monotonic() - began
        spinning.process.kill()
        spinning.process.wait()
        after = _rate(neighbour)
        found.expect("a_kill_leaves_its_neighbour_alone", so=after > before / 2)
        found.expect("a_kill_is_no_fault", so=not daemons.is_faulted(0))
    finally:
        spinning.end()
        neighbour.end()


def _daemon_dies(found: Findings, daemons: MpsDaemons) -> None:
    """A daemon that is killed is started afresh."""
    leader = daemons._daemons[0]._leader  # noqa: SLF001  its pid is nobody else's business
    assert leader is not None
    leader.kill()
    began = time.monotonic()
    found.expect("a_dead_daemon_is_seen", so=waited(lambda: daemons.is_faulted(0), 10.0))
    found.expect("a_dead_daemon_is_started_afresh", so=daemons.check() == [0])
    found.figures["dead_daemon_s"] = time.monotonic() - began
    client = _client(daemons, 0.5, "compute", SECONDS)
    try:
        client.hear()
        found.expect("then_others_train", so=_rate(client) > 0)
    finally:
        client.end()


def _fallback(found: Findings, gpu: Gpu) -> None:
    """Without its control program, packed trials take turns, and a notice says so."""
    path = os.environ["PATH"]
    os.environ["PATH"], folder = "/nonexistent", short_folder()
    try:
        daemons = MpsDaemons(folder, (gpu,))
    finally:
        os.environ["PATH"] = path
        shutil.rmtree(folder, ignore_errors=True)
    found.facts["fallback_notice"] = daemons.notice
    found.expect("fallback_takes_turns", so="time-slicing" in daemons.notice)
    client = _client(daemons, 0.5, "compute", SECONDS)
    try:
        client.hear()
        found.expect("fallback_trains", so=_rate(client) > 0)
    except GoneError as error:
        found.failed["fallback_trains"] = str(error)
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

"""nccl at width 1 in a real worker, and two workers on one GPU: what is said of that."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict

from benchmarks.gpu.clients import Client, GoneError
from benchmarks.gpu.node import Bench, EndedError
from benchmarks.gpu.results import NO_GPU, Findings
from cloudtune.infra.node.gpus import gpus
from cloudtune.infra.node.messages import Epoch, WorkerSlot

_JOIN_SECONDS = 150.0


def measure() -> Findings:
    """Train at width 1 with a process group of the script's own; meet twice on one GPU."""
    findings, real = Findings(), gpus()[:1]
    with Bench() as bench:
        try:
            bench.start("one.1", 1.0, nccl=True)
            bench.hear("one.1", Epoch)
            result = bench.noted("one.1", "joined")[1]
            backend = "nccl" if real else "gloo"
            findings.figures[f"{backend}_width_1_join_s"] = result["seconds"]
            findings.expect(f"{backend}_width_1_adds_up", so=bool(result["right"]))
            bench.end("one.1")
        except EndedError as error:
            findings.failed["width_1"] = str(error)
    if not real:
        findings.unknown["nccl_width_1_join_s"] = NO_GPU
        findings.unknown["two_on_one_gpu"] = NO_GPU
        with Bench(gpus=2) as bench:
            bench.start("two.1", 2.0)
            report = bench.hear("two.1", Epoch).body
            assert isinstance(report, Epoch)
            findings.expect("gloo_width_2_in_sync", so=report.report.in_sync is True)
            bench.end("two.1")
        return findings
    _two_on_one(findings, real[0].uuid)
    return findings


def _two_on_one(findings: Findings, uuid: str) -> None:
    """Have two ranks meet by nccl on one GPU, as a script does that takes cuda:0 on each."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    clients = [
        Client(["-m", "benchmarks.gpu.nccl", str(rank), str(port)], {"CUDA_VISIBLE_DEVICES": uuid})
        for rank in (0, 1)
    ]
    try:
        result = [client.hear(_JOIN_SECONDS) for client in clients]
    except GoneError as error:
        findings.failed["two_on_one_gpu"] = str(error)
        return
    finally:
        for client in clients:
            client.end()
    for rank, answer in enumerate(result):
        findings.facts[f"two_on_one_gpu_rank_{rank}"] = answer["error"][:300]
    refused = [answer for answer in result if answer["error"]]
    findings.expect("two_on_one_gpu_is_refused", so=bool(refused))
    hinted = any("two workers of the trial are on one GPU" in answer["error"] for answer in refused)
    words = " / ".join(answer["traceback"][-600:] for answer in refused)
    findings.expect("two_on_one_gpu_is_reported_as_the_script_s", so=hinted, message=words)


def _meet(rank: int, port: int) -> None:
    """Be one of two ranks on the first GPU; print what a worker would tell of it."""
    import torch  # noqa: PLC0415

    from cloudtune.infra.node.process_group import meet  # noqa: PLC0415
    from cloudtune.infra.node.worker import describe_failure  # noqa: PLC0415

    error = ""
    result = {"error": "", "traceback": ""}
    slot = WorkerSlot(rank, rank, 2, 1)
    listener = None
    if rank == 0:
        server = socket.create_server(("127.0.0.1", port))
        listener = server.detach()
    try:
        meet(slot, f"127.0.0.1:{port}", listener, "cuda:0")
        ones = torch.ones(8, device="cuda:0")
        torch.distributed.all_reduce(ones)
        torch.cuda.synchronize()
    except Exception as raised:  # noqa: BLE001  it is what we want to see
        result = asdict(describe_failure(raised, 2))
        error = result["error"]
    print(json.dumps({**result, "error": error}), flush=True)
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    _meet(int(sys.argv[1]), int(sys.argv[2]))

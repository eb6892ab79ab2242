"""A process on the first GPU that does one thing on demand: compute, allocate, crash, spin.

    python -m benchmarks.gpu.misbehaving compute|allocate|crash|spin [NUMBER]

It prints {"ready": …} with its context made, and then does that for each line that it reads.
`compute`: products of matrices for NUMBER seconds. `allocate`: NUMBER MiB. `crash`: a kernel reads
where nothing is. `spin`: a kernel of NUMBER seconds, and no waiting for it.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

from cloudtune.infra.node.worker import describe_failure


def _figures_of(error: Exception) -> dict[str, object]:
    """Return what a worker would tell of an error."""
    failure = describe_failure(error, 1)
    return {"error": failure.error[:300], "out_of_memory": failure.out_of_memory}


def _compute(seconds: float) -> dict[str, object]:
    one = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        for _ in range(20):
            one @ one
        torch.cuda.synchronize()
        count += 20
    return {"products_per_s": count / (time.monotonic() - began)}


def _allocate(mib: float) -> dict[str, object]:
    held: list[torch.Tensor] = []
    try:
        for _ in range(int(mib)):
            held.append(torch.zeros(2**18, device="cuda"))  # a MiB of float32
            if len(held) % 64 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  it is what is to be seen
        return {"allocated_mib": len(held), **_figures_of(error)}
    return {"allocated_mib": len(held)}


def _crash(_: float) -> dict[str, object]:
    data = torch.zeros(8, device="cuda")
    data[torch.tensor([2**40], device="cuda")] += 1  # the kernel's own check of it traps
    torch.cuda.synchronize()
    return {"crashed": False}


def _spin(seconds: float) -> dict[str, object]:
    cycles = int(seconds * 1.5e9)  # of a clock of about 1.5 GHz
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001
    return {"spins": True}


KINDS = {"compute": _compute, "allocate": _allocate, "crash": _crash, "spin": _spin}


def main(kind: str, number: float) -> None:
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    result = {"ready": kind, "total_mib": total / 2**20, "free_mib": free / 2**20}
    print(json.dumps({**result, "processors": processors}), flush=True)
    for _ in sys.stdin:
        try:
            done = KINDS[kind](number)
        except Exception as error:  # noqa: BLE001  it is what is to be seen
            done = _figures_of(error)
        print(json.dumps(done), flush=True)
        if "error" in done:
            break
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)

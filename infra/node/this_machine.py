"""This machine as an instance: what it has, what it costs, and what its trials see.

This machine is rented like any other, from its own emulated EC2 (`service`), so a run on a
workstation works like one in the cloud. Only its environment differs: it is the user's own, with
their home, their caches and their GPUs.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import psutil

from cloudtune.clock import utc_date
from cloudtune.errors import UsageError
from cloudtune.infra.node.boot import LOCAL_VARIABLE, LOGS_VARIABLE, METADATA_VARIABLE
from cloudtune.infra.node.gpus import VISIBLE, Gpu, own_gpus, why_no_gpus
from cloudtune.model.catalog import CPU, LOCAL, Catalog, InstanceType, Offer

_KEPT = "CLOUDTUNE_KEPT_"
# Variables of the user's shell or of another cluster, which would mislead bash or Ray.
_LEFT_OUT = ("BASH_ENV", "ENV", "CLOUDTUNE_EMULATOR_LOG")
_CGROUP = Path("/sys/fs/cgroup/cpu.max")


def is_local(instance_type: str) -> bool:
    """Return whether an instance type is this machine."""
    return instance_type.startswith(LOCAL)


@cache
def this_machine(slots: int | None = None) -> InstanceType:
    """Return this machine as an instance type, named by its GPUs: local-2x-a10g, local-8x-cpu.

    `slots` is how many of its GPUs may be used, or how many trials share its cores without a GPU;
    None means all. Profiles are keyed by the name, so one of other GPUs isn't used.

    Raises:
        UsageError: it has fewer GPUs, or has some that can't be used.
    """
    own = own_gpus()
    if not own and (why := why_no_gpus()):
        raise UsageError(f"{why}; to train on this machine's cores write {VISIBLE}=-1")
    if own and slots is not None and slots > len(own):
        raise UsageError(
            f"cloud.slots: this machine has {len(own)} GPUs that may be used, not {slots}; "
            "write a smaller number, or leave it out"
        )
    taken = own[:slots]
    count = len(taken) or slots or cores()
    models = Counter(model(gpu) for gpu in taken) or Counter({CPU: count})
    return InstanceType(
        name=LOCAL + "-".join(f"{number}x-{name}" for name, number in models.items()),
        gpus=count,
        gpu=next(iter(models)),
        gpu_memory_mib=min((gpu.memory_mib for gpu in taken), default=0),
        vcpus=cores(),
        memory_mib=memory_mib(),
        gpu_maker="nvidia" if taken else "",
    )


def catalog(region: str, slots: int | None, usd_per_hour: float) -> Catalog:
    """Return the only offer: this machine, by the second, without a minimum."""
    machine = this_machine(slots)
    offer = Offer(machine, "on-demand", region, usd_per_hour, minimum_seconds=0.0)
    source = "this machine" if usd_per_hour else "this machine, which costs nothing"
    return Catalog((offer,), source, utc_date())


def model(gpu: Gpu) -> str:
    """Return a GPU's model as in our price table: "a10g" for "NVIDIA A10G"."""
    words = re.sub(r"\b(nvidia|tesla|geforce)\b", " ", gpu.name.lower()).split()
    name = "-".join(words) or "gpu"
    name = re.sub(r"-(sxm\d*|pcie?|nvl|\d+gb|hbm\d*e?)\b.*", "", name)
    return re.sub(r"[^a-z0-9-]+", "-", name).strip("-") or "gpu"


def cores() -> int:
    """Return the cores that this process may use, by its affinity and its container's quota."""
    # macOS has no affinity.
    has_affinity = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = _CGROUP.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no such quota, or "max"
        return allowed


def memory_mib() -> int:
    """Return this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def physical_cores() -> int:
    """Return how many of `cores()` are physical: for torch, two hyperthreads count as one."""
    whole = psutil.cpu_count(logical=False)
    threads = psutil.cpu_count()
    return max(1, cores() * whole // threads) if whole and threads else cores()


def kept_variables(names: Iterable[str]) -> dict[str, str]:
    """Return variables of the caller under other names, hidden from programs in between."""
    return {_KEPT + name: os.environ[name] for name in names if name in os.environ}


def environment(folder: Path, metadata: str) -> dict[str, str]:
    """Return the environment of this machine as an instance: the user's, and its cloud's address.

    The user's AWS settings stay, for checkpoints and data; only our own metadata are here, at the
    address `metadata`.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in _LEFT_OUT and not name.startswith(("RAY_", _KEPT))
    }
    own |= {name.removeprefix(_KEPT): os.environ[name] for name in os.environ if _KEPT in name}
    proxied = own.get("no_proxy") or own.get("NO_PROXY") or ""
    past_proxies = ",".join(filter(None, (proxied, "127.0.0.1", "localhost")))
    return {
        # By default gloo binds to the host name's address, which may not be this machine's.
        "GLOO_SOCKET_IFNAME": "lo",
        **own,
        # Its own `shutdown` comes first: when this instance ends, the machine stays.
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{own.get('PATH', os.defpath)}",
        "no_proxy": past_proxies,
        "NO_PROXY": past_proxies,
        LOCAL_VARIABLE: "1",
        LOGS_VARIABLE: str(folder / "logs"),
        METADATA_VARIABLE: metadata,
    }

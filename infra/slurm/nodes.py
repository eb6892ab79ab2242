"""What a Slurm cluster has: its partitions, and what an instance of each is."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cloudtune.errors import UsageError
from cloudtune.infra.node.boot import address_towards
from cloudtune.infra.slurm.calls import SlurmError, ask
from cloudtune.model.catalog import InstanceType

_GRES = re.compile(r"gpu(?::([^:(,]+))?:(\d+)")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_NO_LIMIT = 365 * 86400.0
_USELESS = ("down", "drain", "fail", "inval", "maint", "unk")


@dataclass(frozen=True)
class NodeKind:
    """A partition's nodes that are alike, as a type of instances; `hosts` are their names.

    A whole node has `node_gpus`, or no GPU but `cores`. A job there ends after `limit_seconds`.
    Jobs that name no partition go to the one that `is_default`.
    """

    partition: str
    model: str
    node_gpus: int
    cores: int
    memory: int
    limit_seconds: float
    hosts: frozenset[str]
    is_default: bool = False

    def instance(self, name: str, slots: int | None) -> InstanceType | None:
        """Return the type of instances with `slots` slots; None where it has none."""
        available = self.node_gpus or slots or 0
        gpus = min(slots or available, available)
        share = gpus / available if self.node_gpus else 1.0
        if not gpus:
            return None
        cores = max(1, int(share * self.cores))
        return InstanceType(name, gpus, self.model.lower(), 0, cores, int(share * self.memory))


def _look(*command: str) -> str:
    """Return what a command prints that only reads; a UsageError where there is no Slurm."""
    try:
        return ask(*command)
    except SlurmError as error:
        raise UsageError(f"provider slurm needs a machine that submits jobs: {error}") from None


def cluster_name() -> str:
    """Return what the cluster is called.

    Raises:
        UsageError: there is no Slurm here, or its controller doesn't answer.
    """
    settings = _look("scontrol", "show", "config")
    match = re.search(r"^ClusterName\s*=\s*(\S+)", settings, re.MULTILINE)
    assert match is not None, settings
    return match.group(1)


def kinds() -> dict[str, NodeKind]:
    """Return the kinds of instances by name: their partition's, and the GPU's where it has several.

    Nodes with the same GPUs are of one kind, whose cores and memory all of them have.

    Raises:
        UsageError: there is no Slurm here, or its controller doesn't answer.
    """
    alike: dict[tuple[str, str, int, int], list[NodeKind]] = {}
    for node in _nodes():
        cores = 0 if node.node_gpus else node.cores
        alike.setdefault((node.partition, node.model, node.node_gpus, cores), []).append(node)
    alike_kinds = []
    for nodes in alike.values():
        cores = min(node.cores for node in nodes)
        memory = min(node.memory for node in nodes)
        hosts = frozenset[str]().union(*[node.hosts for node in nodes])
        alike_kinds.append(replace(nodes[0], cores=cores, memory=memory, hosts=hosts))
    partitions = [kind.partition for kind in alike_kinds]
    names = {}
    for kind in alike_kinds:
        several = partitions.count(kind.partition) > 1
        own = f"{kind.node_gpus}x-{kind.model}" if kind.node_gpus else f"{kind.cores}-cores"
        names[f"{kind.partition}:{own}" if several else kind.partition] = kind
    return names


def _nodes() -> Iterator[NodeKind]:
    """Yield each node of each partition that may take jobs."""
    answer = _look("sinfo", "--noheader", "--Node", "--format=%P|%G|%c|%m|%l|%T|%N")
    for line in sorted(set(answer.splitlines())):
        partition, gres, cores, memory, limit, state, host = line.split("|")
        if state.startswith(_USELESS):
            continue
        gpus = _GRES.findall(gres)
        count = sum(int(number) for _, number in gpus)
        model = next((model for model, _ in gpus if model), "gpu")
        name = partition.removesuffix("*")
        yield NodeKind(
            partition=name,
            model=model,
            node_gpus=count,
            cores=int(cores),
            memory=int(memory),
            limit_seconds=_limit_seconds(limit),
            hosts=frozenset({host}),
            is_default=name != partition,
        )


def _limit_seconds(text: str) -> float:
    """Return a partition's time limit as sinfo writes it: [days-]hours:minutes:seconds."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        return _NO_LIMIT
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((24 * days + hours) * 60 + minutes) * 60 + seconds)


def own_address() -> str:
    """Return the address of this machine that the cluster's nodes reach.

    Raises:
        UsageError: no node has an address that this machine has a way to.
    """
    addresses = set(_look("sinfo", "--noheader", "--Node", "--format=%o").split())
    for address in sorted(addresses, key=lambda it: (it.startswith(("127.", "localhost")), it)):
        with contextlib.suppress(OSError):  # another may have a way
            return address_towards(address)
    raise UsageError(
        f"no way from this machine to the nodes of the cluster: {sorted(addresses)[:3]}"
    )


def share_hosts(kinds: Iterable[NodeKind]) -> Iterator[frozenset[str]]:
    """Yield the hosts of each kind that no earlier kind has."""
    taken: frozenset[str] = frozenset()
    for kind in kinds:
        yield kind.hosts - taken
        taken |= kind.hosts


def sbatch_options(kind: NodeKind, instance: InstanceType) -> list[str]:
    """Return the options of sbatch for an instance of a kind."""
    asked = ["--nodes=1", "--ntasks=1", f"--partition={kind.partition}"]
    if kind.node_gpus:
        model = "" if kind.model == "gpu" else f"{kind.model}:"
        asked.append(f"--gpus-per-node={model}{instance.gpus}")
    return [*asked, f"--cpus-per-task={instance.vcpus}"]

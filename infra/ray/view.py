"""What a Ray cluster says of itself: asked of its GCS, without joining it."""

import asyncio
import json
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._private.state import GlobalState
from ray._raylet import ActorID, GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from cloudtune.errors import UsageError
from cloudtune.infra.cluster.head import takes_connections
from cloudtune.model.catalog import InstanceType

GROUP = "ray.io/node-group"
_ACCELERATOR = "accelerator_type:"
_ANSWER_SECONDS = 10.0
_STATUS = b"__autoscaling_status"


@dataclass(frozen=True)
class RayNode:
    """A live node with GPUs, its address, whether a label tells its kind, and its free GPUs."""

    kind: InstanceType
    address: str
    labelled: bool
    free_gpus: int


def resolve(address: str) -> str:
    """Return HOST:PORT of the cluster of an address as Ray has them: auto, or RAY_ADDRESS.

    Raises:
        UsageError: there is no cluster there, or it can't be joined from here.
    """
    if "://" in address:
        raise UsageError(
            f"cloud.address: {address} is for Ray's client, by which no run can be followed; run "
            "cloudtune on a node of the cluster, with `address: auto`"
        )
    try:
        canonical = canonicalize_bootstrap_address_or_die(address)
    except (ConnectionError, ValueError):
        raise UsageError(
            "cloud.address: no Ray cluster runs on this machine; write HOST:PORT, or set "
            "RAY_ADDRESS"
        ) from None
    host, _, port = canonical.rpartition(":")
    if not port.isdecimal() or not takes_connections(host, int(port)):
        raise UsageError(f"cloud.address: no Ray cluster answers at {canonical}")
    return str(canonical)


class ClusterView:
    """The nodes and actors of the cluster at HOST:PORT."""

    def __init__(self, address: str) -> None:
        self.address = address

    @cached_property
    def _gcs(self) -> Any:
        return GcsClient(address=self.address)

    def answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        return takes_connections(host, int(port))

    def check_versions(self) -> None:
        """Pass if this process may join.

        Raises:
            UsageError: Ray or Python is another one there.
        """
        metadata = json.loads(self._gcs.internal_kv_get(b"CLUSTER_METADATA", b"cluster"))
        ours = {"ray_version": ray.__version__, "python_version": platform.python_version()}
        if any(metadata[name] != version for name, version in ours.items()):
            raise UsageError(
                f"cloud.address: the cluster has Ray {metadata['ray_version']} and Python "
                f"{metadata['python_version']}, and cloudtune here Ray {ours['ray_version']} and "
                f"Python {ours['python_version']}; install it with the cluster's"
            )

    def _status(self) -> Any:
        reply = GetClusterStatusReply()
        reply.ParseFromString(self._gcs.get_cluster_status())
        return reply

    def nodes(self) -> list[RayNode]:
        """Return the live nodes that have GPUs."""
        return [
            RayNode(
                _kind(node),
                node.node_ip_address,
                GROUP in node.labels,
                int(node.available_resources["GPU"]),
            )
            for node in self._status().cluster_resource_state.node_states
            if node.status in {NodeStatus.RUNNING, NodeStatus.IDLE}
            and node.total_resources["GPU"] >= 1
        ]

    def waiting(self, gpus: int) -> int:
        """Return how many requests for `gpus` of a node wait for room, whoever made them."""
        pending = self._status().cluster_resource_state.pending_resource_requests
        return sum(it.count for it in pending if it.request.resources_bundle["GPU"] == gpus)

    def scales(self) -> bool:
        """Whether Ray's autoscaler brings nodes: one that only watches gives them no types."""
        if any(node.instance_id for node in self._status().cluster_resource_state.node_states):
            return True
        report = json.loads(self._gcs.internal_kv_get(_STATUS, None) or "{}")
        nodes = report.get("autoscaler_report", {}).get("active_nodes", {})
        return any(not name.startswith("node_") for name in nodes)

    def actors(self, state: str | None = None) -> list[dict[str, Any]]:
        """Return the actors, dead ones too, or those in a state, as Ray describes them."""
        return self._actors(actor_state_name=state)

    def actor(self, actor_id: str) -> dict[str, Any]:
        """Return one actor; {} if the cluster knows none of that id."""
        return next(iter(self._actors(actor_id=ActorID.from_hex(actor_id))), {})

    def _actors(self, **which: Any) -> list[dict[str, Any]]:
        """Return the actors of some kind.

        Ray's own table of them ends the process that asks where the server dies meanwhile.
        """

        async def ask() -> dict[Any, Any]:
            answer = self._gcs.async_get_all_actor_info(timeout=_ANSWER_SECONDS, **which)
            return dict(await answer)

        with ThreadPoolExecutor(1) as executor:  # a notebook's thread has a loop that runs
            actors = executor.submit(asyncio.run, ask()).result()
        return [GlobalState()._gen_actor_info(it) for it in actors.values()]  # noqa: SLF001


def _kind(node: Any) -> InstanceType:
    """Return what a node is; without a type of the autoscaler's it is called by its GPUs."""
    resources = node.total_resources
    gpus = int(resources["GPU"])
    models = [name.removeprefix(_ACCELERATOR) for name in resources if _ACCELERATOR in name]
    gpu = models[0].lower() if models else "gpu"
    name = node.ray_node_type_name or node.labels[GROUP] or f"{gpus}x-{gpu}"
    memory = int(resources["memory"]) // 2**20
    return InstanceType(name, gpus, gpu, 0, int(resources["CPU"]), memory)

"""Ray clusters of somebody else, on this machine: a head, nodes with slots, or Ray's autoscaler."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest import mock

from ray._private import parameter
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.util import get_node_ip_address

from cloudtune.infra.node.boot import LOGS_VARIABLE
from cloudtune.infra.processes import ProcessGroup
from cloudtune.infra.ray.view import ClusterView

OPEN = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_initial_delay_ms": "500",
}
_COMMAND = (sys.executable, "-m", "ray.scripts.scripts", "start")
_HEAD_ID = "f" * 51 + "00000"
_SCALING = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
}


class FakeNodes(FakeMultiNodeProvider):  # type: ignore[misc]  # Ray ships no types
    """Ray's own, but for a folder for each node: one that is shared is unpacked to by all."""

    def _create_node_with_resources_and_labels(self, *given: Any) -> None:
        folder = mkdtemp(dir=os.environ["FAKE_NODES"])
        own = partial(parameter.RayParams, temp_dir=folder)
        with mock.patch.object(parameter, "RayParams", own):
            super()._create_node_with_resources_and_labels(*given)


@dataclass
class SomebodysCluster:
    """A cluster, and what is to be known of it from outside."""

    folder: Path
    address: str
    processes: list[ProcessGroup] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**OPEN, "RAY_ADDRESS": self.address}

    @property
    def view(self) -> ClusterView:
        return ClusterView(self.address)

    def start(self, *options: str, environment: Mapping[str, str] | None = None) -> ProcessGroup:
        """Start a node, in a folder of its own: those that share one race."""
        name = f"n{len(self.processes)}"
        command = [
            *(*_COMMAND, "--block", "--num-cpus=0", f"--temp-dir={self.folder / name}"),
            *("--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0"),
            *("--dashboard-agent-listen-port=0", "--include-log-monitor=false"),
            *("--disable-usage-stats", *options),
        ]
        group = ProcessGroup.start(
            command,
            log=self.folder / f"{name}.log",
            environment={
                **os.environ,
                **OPEN,
                LOGS_VARIABLE: str(self.folder / "logs"),
                **(environment or {}),
            },
        )
        self.processes.append(group)
        return group

    def wait_for_nodes(self, count: int, seconds: float = 60.0) -> None:
        give_up = time.monotonic() + seconds
        while len(self.view.nodes()) != count:
            assert time.monotonic() < give_up, f"{len(self.view.nodes())} nodes, not {count}"
            time.sleep(0.1)

    def left(self) -> dict[str, Any]:
        """Return what of anybody's is on it: live actors, placement groups, requests."""
        status = self.view._status().cluster_resource_state
        state = GlobalState()
        state._initialize_global_state(
            GcsClientOptions.create(
                self.address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
            )
        )
        table = state.placement_group_table()
        return {
            "actors": [it["Name"] for it in self.view.actors() if it["State"] != "DEAD"],
            "placement groups": [it for it in table.values() if it["state"] != "REMOVED"],
            "requests": list(status.cluster_resource_constraints),
        }


NOTHING: dict[str, list[Any]] = {"actors": [], "placement groups": [], "requests": []}


@contextmanager
def cluster(
    folder: Path, *, nodes: int = 0, gpus: int = 2, scales_to: int = 0
) -> Iterator[SomebodysCluster]:
    """Start a cluster with nodes, or one that scales from none; its processes end with it."""
    ports = [_free_port() for _ in range(4)]
    started = SomebodysCluster(folder, f"{get_node_ip_address()}:{ports[0]}")
    paths = {"FAKE_NODES": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    servers = {"AUTOSCALER_METRIC_PORT": f"{ports[1]}", "DASHBOARD_METRIC_PORT": f"{ports[2]}"}
    scaling = []
    if scales_to:
        config = folder / "autoscaling.json"
        config.write_text(json.dumps(_autoscaling(started.address, gpus, scales_to)))
        scaling = [f"--autoscaling-config={config}"]
    try:
        started.start(
            *("--head", f"--port={ports[0]}", f"--ray-client-server-port={ports[3]}"),
            *("--num-gpus=0", "--include-dashboard=false", *scaling),
            environment={**servers, **(_SCALING | paths if scales_to else {})},
        )
        give_up = time.monotonic() + 60.0
        while not started.view.answers():
            assert time.monotonic() < give_up
            time.sleep(0.1)
        while scales_to and not started.view.scales():
            assert time.monotonic() < give_up
            time.sleep(0.1)
        for slot in range(nodes):
            label = f"--labels=slot={slot}"
            started.start(f"--address={started.address}", f"--num-gpus={gpus}", label)
        started.wait_for_nodes(nodes)
        yield started
    finally:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda group: group.stop(grace=0.1), started.processes))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _autoscaling(address: str, gpus: int, most: int) -> dict[str, Any]:
    """Return a config of Ray's own fake provider, past what its wheel lacks."""
    node = {"node_config": {}, "min_workers": 0}
    commands = ("initialization", "setup", "head_setup", "worker_setup")
    return {
        "cluster_name": "somebodys",
        "max_workers": most,
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": 0.05,
        "provider": {
            "type": "external",
            "module": "tests.ray_cluster.FakeNodes",
            "launch_multiple": True,
            "head_node_id": _HEAD_ID,
            "gcs_address": address,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {**node, "resources": {"CPU": 0}, "max_workers": 0},
            "gpu-node": {**node, "resources": {"CPU": 0, "GPU": gpus}, "max_workers": most},
        },
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{f"{name}_commands": [] for name in commands},
        **{f"{name}_start_ray_commands": [] for name in ("head", "worker")},
        "cluster_synced_files": [],
    }

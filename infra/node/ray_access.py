"""Who may speak to a run's Ray, and where it listens.

Ray runs whatever a caller that it lets in asks for, so each run has a random token, without which
no process of its cluster answers. What runs on one machine alone listens on its loopback only.

`python -m` is `ray start`, with three differences that it has no option for: a node at the loopback
address stays there (`ray start` puts the machine's other address in its place), Ray's client
server, which is unused here, isn't started, and it ends once the node has left its cluster.
"""

import os
import secrets
import sys
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "cloudtune.infra.node.ray_access", "start")
TOKEN_FILE = "ray-token"  # noqa: S105  its name
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  its name
_LOOPBACK = "127.0.0.1"
# Ray reads it where a machine asks for its own address: with 0 the answer is the loopback.
_ELSEWHERE_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def token_of(folder: Path) -> str:
    """Return the token of the run in a folder, made when it is first asked for."""
    path = folder / TOKEN_FILE
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        pass
    return path.read_text(encoding="utf-8")


def ray_environment(address: str, token: str) -> dict[str, str]:
    """Return the environment of a cluster's processes, at this address of their machine."""
    return {
        "RAY_AUTH_MODE": "token",
        TOKEN_VARIABLE: token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_enable_metrics_collection": "0",  # a server on every node, which is never read
        _ELSEWHERE_VARIABLE: str(int(address != _LOOPBACK)),
    }


# For drivers. By default Ray ends their process, with exit code 1 and no chance to give anything
# back, if a call waits for a minute as the head dies. Nodes have to end with their cluster.
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}


def join_as_driver(address: str, token: str) -> None:
    """Have this process speak to the cluster whose head is at that address; before `ray.init`."""
    os.environ.update({**ray_environment(address, token), **PATIENCE})
    from ray._private import ray_constants  # noqa: PLC0415  after the environment
    from ray._raylet import (  # type: ignore[attr-defined]  # noqa: PLC0415
        AuthenticationTokenLoader,
        Config,
    )

    # Ray has read them already if it was imported before, for another run perhaps.
    ray_constants.ENABLE_RAY_CLUSTER = address != _LOOPBACK
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def start() -> None:
    """Be `ray start`."""
    from ray._private import node, ray_constants, services  # noqa: PLC0415  in this process only
    from ray.scripts import scripts  # noqa: PLC0415

    # Unused here, and it takes seconds of each run's start.
    node.Node.start_api_server = lambda *_, **__: None
    # What can't import gRPC starts no client server.
    scripts.get_ray_client_dependency_error = lambda: ImportError("it is not to be used")
    dead_processes = node.Node.dead_processes

    def dead_ones(self: Any) -> Any:
        dead = dead_processes(self)
        if any(kind == "raylet" and process.returncode == 0 for kind, process in dead):
            sys.exit()  # `ray start --block` takes that for a good end, and waits on
        return dead

    node.Node.dead_processes = dead_ones
    if not ray_constants.ENABLE_RAY_CLUSTER:
        services.get_node_ip_address = lambda *_: _LOOPBACK
        ray_constants.ENABLE_RAY_CLUSTER = True  # or it would take this for a Mac, and not join
    scripts.main()


if __name__ == "__main__":
    start()

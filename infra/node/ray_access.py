"""Access to a run's Ray: who may connect, and where it listens.

Ray runs any code for callers that it admits, so each run has a random token, without which no
process of its cluster answers. A cluster on a single machine only listens on the loopback.

`python -m` works like `ray start`, with five differences for which that has no option: a node at
the loopback address stays there (`ray start` would use the machine's other address), what is unused
here isn't started or imported (Ray's client server, its dashboard agent, the agent of runtime
environments where there are none, commands for Ray Serve, jobs and states), a busy machine has
longer to start, and it ends once the node has left its cluster.
"""

import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "cloudtune.infra.node.ray_access", "start")
# How long Ray may take to know a node that starts.
REGISTER_SECONDS = 150.0
TOKEN_FILE = "ray-token"  # noqa: S105  its name
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  its name
_LOOPBACK = "127.0.0.1"
# Of Ray's command line: over half of the seconds that its import takes. Ray goes on without them.
_UNUSED_COMMANDS = (
    "ray.serve.scripts",
    "ray.dashboard.modules.job.cli",
    "ray.util.state.state_cli",
)
# Set where no process has a runtime environment: all of the cluster is the user's own machine.
NO_RUNTIME_ENVS = {"CLOUDTUNE_RUNTIME_ENVS": "none"}
_NO_AGENT = str(Path(__file__).with_name("no_agent.py"))


@dataclass(frozen=True)
class UnusedAgent:
    """An agent that a raylet would start: its option, its file, and its ports, as in their files.

    `none` is a number that says that there is no such port.
    """

    option: str
    file: str
    ports: tuple[str, ...]
    none: str

    def replaced(self, word: str) -> str:
        """Return a raylet's option with `no_agent` in place of this agent; others unchanged.

        So is one that another Ray writes in another way: its own agent starts.
        """
        if not word.startswith(self.option):
            return word
        words = shlex.split(word.removeprefix(self.option))
        places = [number for number, word in enumerate(words) if word.endswith(self.file)]
        if len(places) != 1:
            return word
        [place] = places
        ours = [_NO_AGENT, f"--as={self.none}", *(f"--no-port={port}" for port in self.ports)]
        return self.option + subprocess.list2cmdline([*words[:place], *ours, *words[place + 1 :]])


DASHBOARD = UnusedAgent(
    "--dashboard_agent_command=",
    "/ray/dashboard/agent.py",
    ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "-1",  # as Ray's own says it if it isn't to serve
)
RUNTIME_ENVS = UnusedAgent(
    "--runtime_env_agent_command=",
    "/ray/_private/runtime_env/agent/main.py",
    ("runtime_env_agent_port",),
    "1",  # Ray wants one that could be: nothing connects to it
)
# Ray reads this to find a machine's own address: with 0 it is the loopback.
_ELSEWHERE_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def read_token(folder: Path) -> str:
    """Return the token of the run in a folder, created on first use."""
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
        "RAY_enable_metrics_collection": "0",  # an unused server on every node
        _ELSEWHERE_VARIABLE: str(int(address != _LOOPBACK)),
    }


# By default Ray ends a driver's process with exit code 1, and no chance to return anything, if a
# call waits for a minute after the head has died. Nodes must end with their cluster. And it leaves
# out what .gitignore names, of a folder that has only what is to be sent.
FOR_DRIVERS = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",
}


def join_as_driver(address: str, token: str) -> None:
    """Connect this process to the cluster with its head at that address; call before `ray.init`."""
    os.environ.update({**ray_environment(address, token), **FOR_DRIVERS})
    from ray._private import ray_constants  # noqa: PLC0415  after the environment
    from ray._raylet import (  # type: ignore[attr-defined]  # noqa: PLC0415
        AuthenticationTokenLoader,
        Config,
    )

    # Ray has read them already if it was imported before, perhaps for another run.
    ray_constants.ENABLE_RAY_CLUSTER = address != _LOOPBACK
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def patient(get_node: Callable[[str, str], Any], seconds: float) -> Callable[[str, str], Any]:
    """Return Ray's look-up of a node, waiting until the node is known.

    `ray start` gives its own raylet 30 s to register, which isn't enough where many start at once.
    """

    def wait_for_node(address: str, node_id: str) -> Any:
        give_up = time.monotonic() + seconds
        while True:
            try:
                return get_node(address, node_id)
            except RuntimeError:
                if time.monotonic() > give_up:
                    raise
            time.sleep(0.1)

    return wait_for_node


def start() -> None:
    """Run `ray start`."""
    # An import of these fails, as if they weren't installed.
    sys.modules |= dict.fromkeys(_UNUSED_COMMANDS)  # type: ignore[arg-type]
    from ray import _raylet  # noqa: PLC0415  in this process only
    from ray._private import node, ray_constants, services  # noqa: PLC0415
    from ray.scripts import scripts  # noqa: PLC0415

    start_process = services.start_ray_process
    unused = [DASHBOARD]
    if NO_RUNTIME_ENVS.items() <= os.environ.items():
        unused.append(RUNTIME_ENVS)

    def start_ray_process(command: list[str], *others: Any, **named: Any) -> Any:
        for agent in unused:
            command = [agent.replaced(word) for word in command]
        return start_process(command, *others, **named)

    if hasattr(_raylet, "persist_port"):  # an older Ray's agent has more to say
        services.start_ray_process = start_ray_process
    # Unused here, and it costs seconds at each start.
    node.Node.start_api_server = lambda *_, **__: None
    # Without gRPC it starts no client server.
    scripts.get_ray_client_dependency_error = lambda: ImportError("it is not to be used")
    dead_processes = node.Node.dead_processes

    def dead_ones(self: Any) -> Any:
        dead = dead_processes(self)
        if any(kind == "raylet" and process.returncode == 0 for kind, process in dead):
            sys.exit()  # `ray start --block` would take this for a success, and keep waiting
        return dead

    node.Node.dead_processes = dead_ones
    services.get_node = patient(services.get_node, REGISTER_SECONDS)
    if not ray_constants.ENABLE_RAY_CLUSTER:
        services.get_node_ip_address = lambda *_: _LOOPBACK
        ray_constants.ENABLE_RAY_CLUSTER = True  # else it takes this for a Mac, and doesn't join
    scripts.main()


if __name__ == "__main__":
    start()

"""What an instance runs at boot: join the cluster, and stay until the machine goes.

Started by the user data (`user_data`), on AWS and on the emulator alike. It learns who it is from
the instance metadata service, starts Ray, and prints READY when the node has joined.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import urllib.request
from dataclasses import dataclass

READY = "cloudtune-node ready"
INSTANCE_LABEL = "cloudtune/instance"
INTENT_LABEL = "cloudtune/intent"
_METADATA = "http://169.254.169.254"
_OBJECT_STORE_BYTES = 100 * 2**20  # trials exchange checkpoints through storage, not through Ray


@dataclass(frozen=True)
class Join:
    """Where and as what an instance joins: the cluster's address, the intent, its GPUs."""

    address: str
    intent: str
    gpus: int


def user_data(join: Join, lease_minutes: int) -> str:
    """Return the script that EC2 runs when the instance boots.

    Its first act is the last brake on money: the machine powers itself off, and so terminates,
    when the lease ends, whatever becomes of the controller.
    """
    arguments = shlex.join(
        ["--address", join.address, "--intent", join.intent, "--gpus", str(join.gpus)]
    )
    return (
        "#!/bin/bash\n"
        f"shutdown -P +{lease_minutes}\n"
        f"exec python3 -m cloudtune.infra.node {arguments}\n"
    )


def metadata(path: str) -> str:
    """Return one item of the instance metadata service (IMDSv2)."""
    root = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _METADATA).rstrip("/")
    token = urllib.request.Request(  # noqa: S310  http to a link-local address
        f"{root}/latest/api/token",
        method="PUT",
        headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"},
    )
    with urllib.request.urlopen(token, timeout=10) as answer:  # noqa: S310
        secret = answer.read().decode()
    item = urllib.request.Request(  # noqa: S310
        f"{root}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": secret}
    )
    with urllib.request.urlopen(item, timeout=10) as answer:  # noqa: S310
        return str(answer.read().decode())


def ray_command(join: Join, instance: str, address: str) -> list[str]:
    """Return the command that starts Ray on this machine."""
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
        f"--address={join.address}",
        f"--node-ip-address={address}",
        f"--num-gpus={join.gpus}",
        "--num-cpus=0",  # trials are counted in GPUs, and no idle workers are started
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--labels={INSTANCE_LABEL}={instance},{INTENT_LABEL}={join.intent}",
    ]
    if "TMPDIR" in os.environ:
        command.append(f"--temp-dir={os.environ['TMPDIR']}")
    return command


def ray_environment(join: Join, instance: str) -> dict[str, str]:
    """Return the environment of Ray on this machine."""
    ours = {
        "RAY_CLOUD_INSTANCE_ID": instance,
        "RAY_NODE_TYPE_NAME": join.intent,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    return {**os.environ, **ours}


def main() -> int:
    """Join the cluster and stay; return Ray's exit code."""
    parser = argparse.ArgumentParser(prog="cloudtune.infra.node")
    parser.add_argument("--address", required=True)
    parser.add_argument("--intent", required=True)
    parser.add_argument("--gpus", required=True, type=int)
    given = parser.parse_args()
    join = Join(given.address, given.intent, given.gpus)
    instance, address = metadata("instance-id"), metadata("local-ipv4")
    say(json.dumps({"instance": instance, "address": address, "intent": join.intent}))
    with subprocess.Popen(
        ray_command(join, instance, address),
        env=ray_environment(join, instance),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ray:
        assert ray.stdout is not None
        for line in ray.stdout:
            say(line.rstrip())
            if "Ray runtime started" in line:
                say(READY)
    return ray.returncode


def say(line: str) -> None:
    """Print a line to the machine's console."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""The boot of an instance: join the cluster, stay in it, and end the machine when it is over.

Started by the user data (`user_data`), on AWS and on the emulator. The machine learns its identity
from the instance metadata service, or from its environment if a cloud has none; it starts Ray, and
prints READY when the node has joined.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from cloudtune.infra.environments.delivery import Delivery
from cloudtune.infra.node.early_zygote import started_early
from cloudtune.infra.node.gpus import GPUS_VARIABLE, STAND_IN, THREADS_VARIABLE, VISIBLE, own_gpus
from cloudtune.infra.node.lease import Lease, lease_environment
from cloudtune.infra.node.ray_access import (
    COMMAND,
    NO_RUNTIME_ENVS,
    TOKEN_VARIABLE,
    ray_environment,
)
from cloudtune.train.storage import STAGING_VARIABLE

READY = "cloudtune-node ready"
LOGS_VARIABLE = "CLOUDTUNE_LOGS"
# Set in the environment of the user's own machine as an instance.
LOCAL_VARIABLE = "CLOUDTUNE_LOCAL"
INSTANCE_LABEL = "cloudtune/instance"
INTENT_LABEL = "cloudtune/intent"
# The id of this instance, for clouds without metadata.
INSTANCE_VARIABLE = "CLOUDTUNE_INSTANCE"
# The address of this node's metadata, if boto3 should still use AWS's for credentials.
METADATA_VARIABLE = "CLOUDTUNE_METADATA"
_AWS_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_METADATA = "http://169.254.169.254"
_METADATA_SECONDS = 120.0
_METADATA_PAUSE = 0.5
_BY_CLOUD_INIT = re.compile(r"^.*?cloud-init\[\d+\]: ")
# The prefix of our scripts' lines; other lines are the system's.
SCRIPT_SAYS = re.compile("cloudtune-(head|node): ")
_FROM_SCRIPT = re.compile(r"cloud-init\[\d+\]: |cloudtune-")
_ANSWER_SECONDS = 10.0
_METADATA_MOST = 8.0
_ANY_PORT = 9
# The model of instance store disks (EC2 User Guide, "Amazon EBS volumes and NVMe", 2026-11-23).
_STORE_MODEL = "Amazon EC2 NVMe Instance Storage"
_STORE_SECONDS = 20.0
_SEND_SECONDS = 3
# Seconds for which an instance may upload its boot log: booting takes minutes.
UPLOAD_SECONDS = 3600
_OBJECT_STORE_BYTES = 100 * 2**20  # trials exchange checkpoints through storage, not through Ray


@dataclass(frozen=True)
class Join:
    """How an instance joins: the cluster's address, the intent, its GPUs.

    `until` is the last moment (Unix time) to which its lease may be extended; None: not at all.
    """

    address: str
    intent: str
    gpus: int
    until: float | None = None


def user_data(
    join: Join,
    lease: str,
    token: str,
    delivery: Delivery | None = None,
    *,
    boot_log: str = "",
    index: str = "",
) -> str:
    """Return the script that EC2 runs when the instance boots; `token` admits it to the cluster.

    `delivery` says how it gets its Python; None means from its image. Output goes to the console,
    and to the address `boot_log` if there is one. `index` are lines that name a package index.

    The script first sets the last brake on money (`lease`, the lines of `first_lease`): the machine
    powers itself off at that time, and so terminates, whatever happens to the controller.
    """
    until = [] if join.until is None else ["--until", str(math.floor(join.until))]
    arguments = shlex.join(
        ["--address", join.address, "--intent", join.intent, "--gpus", str(join.gpus), *until]
    )
    return (
        "#!/bin/bash\n"
        f"{lease}"
        f"{uploading(boot_log)}"
        f"{index}"
        f"{(delivery or Delivery()).lines()}"
        f"export {TOKEN_VARIABLE}={token}\n"  # arguments are visible in process lists
        f'exec "$python" -m cloudtune.infra.node.boot {arguments}\n'
    )


def uploading(address: str) -> str:
    """Return lines of bash that upload the script's output from then on, as it grows.

    So a waiting user sees what the machine does before it has a Python, and why it ends.
    """
    if not address:
        return ""
    return (
        "boot_log=$(mktemp)\n"
        'exec > >(tee -a "$boot_log") 2>&1\n'
        f"send_boot_log() {{ curl -sf -m 20 -o /dev/null -T \"$boot_log\" '{address}'; }}\n"
        "(\n"
        f"  while kill -0 $$ && ((SECONDS < {UPLOAD_SECONDS})); do\n"
        '    size=$(stat -c %s "$boot_log")\n'
        '    [ "$size" = "$sent" ] || { send_boot_log && sent=$size; }\n'
        f"    sleep {_SEND_SECONDS}\n"
        "  done\n"
        "  send_boot_log\n"
        ") < /dev/null > /dev/null 2>&1 &\n"
    )


def metadata(path: str, patience: float = 0.0, *, seconds: float = _ANSWER_SECONDS) -> str:
    """Return one item of the instance metadata service (IMDSv2), with retries for `patience` s.

    Each request waits `seconds`. A service that doesn't answer yet, or is busy, is no reason to
    lose an instance.

    Raises:
        OSError: it gave no answer in that time, or has no such item (HTTP 404).
    """
    give_up = time.monotonic() + patience
    pause = _METADATA_PAUSE
    while True:
        try:
            return _metadata(path, seconds)
        except OSError as error:
            unknown = getattr(error, "code", None) == HTTPStatus.NOT_FOUND
            if unknown or time.monotonic() + pause > give_up:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _METADATA_MOST)


def _metadata(path: str, seconds: float) -> str:
    root = os.environ.get(METADATA_VARIABLE) or os.environ.get(_AWS_VARIABLE) or _METADATA
    root = root.rstrip("/")
    token = urllib.request.Request(  # noqa: S310  http to a link-local address
        f"{root}/latest/api/token",
        method="PUT",
        headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"},
    )
    # A proxy from the environment can't reach a link-local address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(token, timeout=seconds) as answer:
        secret = answer.read().decode()
    item = urllib.request.Request(  # noqa: S310
        f"{root}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": secret}
    )
    with opener.open(item, timeout=seconds) as answer:
        return str(answer.read().decode())


def instance_store(
    place: Path = Path("/opt/dlami/nvme"), disks: Path = Path("/sys/block")
) -> Path | None:
    """Return where AWS's images mount the instance store; None if there is none.

    They do so during boot, which is waited for. Files there disappear with the instance.
    """
    models = disks.glob("nvme*/device/model")
    if not any(model.read_text().strip() == _STORE_MODEL for model in models):
        return None
    give_up = time.monotonic() + _STORE_SECONDS
    while place.parent.is_dir() and time.monotonic() < give_up:
        if place.is_mount():
            return place
        time.sleep(0.5)
    return None


def staging() -> str:
    """Return the folder on the instance store where checkpoints wait; "" if there is none.

    The environment takes precedence. Only rented machines with EC2's own metadata have one:
    elsewhere checkpoints wait in a folder that is removed with the run.
    """
    configured = os.environ.get(STAGING_VARIABLE)
    if configured is not None:
        return configured
    rented = not (os.environ.get(METADATA_VARIABLE) or os.environ.get(_AWS_VARIABLE))
    emulated = any(gpu.name == STAND_IN for gpu in own_gpus())
    store = instance_store() if rented and not emulated else None
    if store is None:
        return ""
    folder = store / "cloudtune"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        free = shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        say(f"checkpoints don't wait on the instance's own disk: {error}")
        return ""
    say(f"checkpoints wait in {folder}, on the instance's own disk: {free:,.0f} GiB free")
    return str(folder)


def ray_command(join: Join, instance: str, address: str) -> list[str]:
    """Return the command that starts Ray on this machine."""
    command = [
        *(*COMMAND, "--block"),
        f"--address={join.address}",
        f"--node-ip-address={address}",
        f"--num-gpus={join.gpus}",
        "--num-cpus=0",  # trials are counted in GPUs; no idle workers
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--labels={INSTANCE_LABEL}={instance},{INTENT_LABEL}={join.intent}",
    ]
    if "TMPDIR" in os.environ:
        command.append(f"--temp-dir={os.environ['TMPDIR']}/r")  # Ray opens its own to all users
    return command


def node_environment(join: Join, instance: str, address: str) -> dict[str, str]:
    """Return the environment of Ray on this machine."""
    ours = {
        "RAY_CLOUD_INSTANCE_ID": instance,
        "RAY_NODE_TYPE_NAME": join.intent,
        **ray_environment(address, os.environ[TOKEN_VARIABLE]),
    }
    uuids = ",".join(gpu.uuid for gpu in own_gpus()[: join.gpus])
    # Ray refuses to count hidden GPUs; the agent knows ours by `found`.
    others = {name: value for name, value in os.environ.items() if name != VISIBLE}
    threads = os.environ.get("OMP_NUM_THREADS", "")  # Ray replaces it by 1
    facts = {GPUS_VARIABLE: uuids, THREADS_VARIABLE: threads, STAGING_VARIABLE: staging()}
    # On the user's own machine trials train in a folder that is there already.
    own = NO_RUNTIME_ENVS if LOCAL_VARIABLE in os.environ else {}
    return {**others, **ours, **facts, **own, **lease_environment(join.until)}


def identity(join: Join) -> tuple[str, str]:
    """Return the id of this instance, and its address in the cluster.

    Raises:
        OSError: its metadata can't be read.
    """
    instance = os.environ.get(INSTANCE_VARIABLE)
    if instance is not None:
        return instance, address_towards(join.address.rpartition(":")[0])
    instance, address = (
        metadata(item, patience=_METADATA_SECONDS) for item in ("instance-id", "local-ipv4")
    )
    return instance, address


def address_towards(host: str) -> str:
    """Return this machine's address for connections to a host, without sending anything.

    Raises:
        OSError: there is no route to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, _ANY_PORT))
        return str(probe.getsockname()[0])


def main() -> int:
    """Join the cluster, stay, and end this machine if it is rented; return Ray's exit code."""
    parser = argparse.ArgumentParser(prog="cloudtune.infra.node.boot")
    parser.add_argument("--address", required=True)
    parser.add_argument("--intent", required=True)
    parser.add_argument("--gpus", required=True, type=int)
    parser.add_argument("--until", type=float)
    options = parser.parse_args()
    join = Join(options.address, options.intent, options.gpus, options.until)
    instance, address = identity(join)
    say(json.dumps({"instance": instance, "address": address, "intent": join.intent}))
    environment = node_environment(join, instance, address)
    say(f"cloudtune-node: joins the cluster at {join.address}")
    with (
        started_early(environment, join.gpus) as known,
        subprocess.Popen(
            ray_command(join, instance, address),
            env={**environment, **known},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as ray,
    ):
        assert ray.stdout is not None
        for line in ray.stdout:
            say(line.rstrip())
            if "Ray runtime started" in line:
                say(READY)
    lease = Lease.of_this_node(environment)
    if lease is not None:  # it has no more use, and EC2 may not be called to end it
        lease.end_now()
    return ray.returncode


def telling_lines(console: str) -> list[str]:
    """Return the boot script's lines of a console; if there are none, all lines.

    Around them systemd reports what it starts and stops, which hides why a boot failed.
    """
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    written = [_BY_CLOUD_INIT.sub("", line) for line in lines if _FROM_SCRIPT.search(line)]
    return [line for line in written if not line.startswith("Cloud-init v.")] or lines


def say(line: str) -> None:
    """Print a line to the machine's console."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

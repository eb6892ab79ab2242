"""The head of a run's Ray cluster, on the controller's machine, with Ray's autoscaler v2.

The controller writes which launch intents are wanted; Ray's autoscaler reads that once a second and
launches or terminates through `CloudNodeProvider`.
"""

import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra.cluster.base import JoinedNode, Rental
from cloudtune.infra.cluster.head_process import RECORD, TEMP, HeadProcess
from cloudtune.infra.cluster.node_provider import HEAD_TYPE, PROVIDER, Journal, head_instance
from cloudtune.infra.environments.index import CERTIFICATES_VARIABLE, export_lines
from cloudtune.infra.node import ray_access
from cloudtune.infra.node.boot import INSTANCE_LABEL, INTENT_LABEL, UPLOAD_SECONDS, Join, user_data
from cloudtune.infra.node.lease import first_lease
from cloudtune.infra.node.messages import Training
from cloudtune.infra.node.process_group import free_port
from cloudtune.infra.node.ray_agent import GROUPS, NodeAgent, find_actor
from cloudtune.infra.processes import DamagedRecordError, ProcessGroup, write_atomically
from cloudtune.infra.provider import at_place, find_provider, merge_requests
from cloudtune.infra.sent_files import link_folder, link_sent_files
from cloudtune.model.commands import Launch
from cloudtune.model.serialization import decode, encode
from cloudtune.train.programs.process_tree import die_with_parent
from cloudtune.train.storage import StorageError, upload_address

JOURNAL = "provider.jsonl"
INTENTS = "intents.json"
_LEFT = "its node left the cluster"
# Ray's head takes about 10 s to start, several times that on a busy machine.
_START_SECONDS = 180.0
_STAND_IN_SECONDS = 15.0
_ANSWER_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_Agent = ray.remote(
    num_cpus=0, num_gpus=0, max_restarts=0, lifetime="detached", concurrency_groups=GROUPS
)(NodeAgent)
_ENVIRONMENT = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_NODE_TYPE_NAME": HEAD_TYPE,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


def health_checks(silent_seconds: float) -> dict[str, str]:
    """Return the settings for when Ray's head declares a machine lost: after five failed checks.

    At 50 s they are Ray's defaults (2.60, `src/ray/common/ray_config_def.h`: delay 5000 ms, period
    3000, timeout 10000, threshold 5): a silent machine is lost after 50 to 65 s, one whose raylet
    is gone, or that can't be reached at all, after 15. Tighter settings would give up a machine
    that swaps, or whose network hangs for some seconds, which costs an epoch of all its trials and
    a boot. They would gain nothing if EC2 says that an instance has ended, which is noticed in 3 s.
    So only an instance that hangs is held for a minute in vain.
    """
    per_second = {"initial_delay": 100, "period": 60, "timeout": 200}
    parts = {f"RAY_health_check_{name}_ms": part for name, part in per_second.items()}
    checks = {name: str(round(part * silent_seconds)) for name, part in parts.items()}
    return {**checks, "RAY_health_check_failure_threshold": "5"}


@dataclass
class _Intent:
    """A requested launch: what, when (Unix time), and its lease in seconds.

    `first` is the initial lease, `lease` the longest with renewals. `boot_log` is the address to
    which it uploads its boot output.
    """

    launch: Launch
    asked_at: float
    lease: float
    first: float
    wanted: bool = True
    boot_log: str = ""

    @property
    def settings(self) -> dict[str, str]:
        """What the node provider needs to know on top of the request itself."""
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.asked_at + self.lease))
        asked = self.launch
        where = {"market": asked.market, "zone": asked.zone, "lease": end}
        return {"instance_type": asked.instance_type, **where}


class RayHead:
    """Starts, controls and ends the head. Everything it writes, except Ray's files, is in `folder`.

    If the folder had a head before, it continues with its address and intents, so that instances
    launched by that head can join, and requests to EC2 are identical. If its process is still
    alive, it is that head.
    """

    def __init__(self, folder: Path, rental: Rental, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.rental = rental
        self.journal = Journal(folder / JOURNAL)
        self._ip = address
        self._port = 0
        self._config = folder / "autoscaler.json"
        self._lock = threading.Lock()
        self._intents: dict[str, _Intent] = {}
        self._group: ProcessGroup | None = None
        self._server: tuple[list[str], dict[str, str]] | None = None
        self._recall()
        self._port = self._port or free_port(address)
        # Ray's sockets need short paths, so its folder can't be inside ours.
        self.temp = self._recall_process() or Path(tempfile.mkdtemp(prefix=TEMP))

    def _recall(self) -> None:
        """Take over the address and the intents of the previous head."""
        path = self.folder / INTENTS
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            self._ip = str(state["ip"])
            self._port = int(state["port"])
            self._intents = decode(dict[str, _Intent], state["intents"])
        except FileNotFoundError:
            return
        except (KeyError, TypeError, ValueError) as error:
            raise CloudtuneError(
                f"{path} is damaged, so that the run can't be gone on with ({error}); `cloudtune "
                "gc` gives back what it has left"
            ) from None

    def _recall_process(self) -> Path | None:
        """Take over the process of the previous head if it lives, or end its remains."""
        try:
            head = HeadProcess.recorded(self.folder)
        except DamagedRecordError:
            return None  # no process is proven to be it; the run gets a new head
        if head is None:
            return None
        if head.group.alive():
            self._group = head.group
            return head.temp
        head.stop()
        return None

    @property
    def running(self) -> bool:
        """Whether the head was running already, so that there may be nodes and trials."""
        return self._group is not None

    @property
    def intents(self) -> frozenset[str]:
        return frozenset(self._intents)

    @property
    def address(self) -> str:
        return f"{self._ip}:{self._port}"

    @property
    def token(self) -> str:
        """The token for joining the cluster, the same for every controller of the run."""
        return ray_access.read_token(self.folder)

    @property
    def _session(self) -> Path:
        return self.temp / "r"  # Ray opens its folder to all users; ours is closed

    @property
    def autoscaler_events(self) -> Path:
        """Ray's own record of its autoscaler's decisions."""
        return self._session / "session_latest" / "logs" / "events" / "event_AUTOSCALER.log"

    def connect(self, directory: Path) -> None:
        """Start the head, and join its cluster as a driver that provides this folder."""
        ray_access.join_as_driver(self._ip, self.token)
        self.start()
        with tempfile.TemporaryDirectory() as folder:
            sent = {}
            if self.rental.source_files is not None:
                self._link(directory, self.rental.source_files)
            else:
                link_sent_files(directory, Path(folder))
                sent["working_dir"] = folder
            ray.init(
                address=self.address,
                namespace=self.rental.run,
                runtime_env=sent,
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )

    def _link(self, directory: Path, source_files: Collection[str]) -> None:
        """Make the folder in which trials on this machine train, unless it is there."""
        if not self._code.exists():  # of a controller whose trials may still train
            with tempfile.TemporaryDirectory(dir=self.temp) as folder:
                made = Path(folder) / self._code.name
                made.mkdir()
                link_folder(directory, made, source_files)
                made.rename(self._code)

    @property
    def _code(self) -> Path:
        return self.temp / "code"

    @cached_property
    def _client(self) -> Any:
        return GcsClient(address=self.address)

    def nodes(self) -> list[JoinedNode]:
        """Return the instances in the cluster, by the labels of their nodes.

        None of them if its server doesn't answer.
        """
        # Not ray.nodes(): if the server dies during the call, that ends this process.
        try:
            nodes = self._client.get_all_node_info(timeout=_ANSWER_SECONDS)
        except RayError:
            return []
        joined = []
        for node_id, node in nodes.items():
            if INSTANCE_LABEL not in node.labels:
                continue
            is_alive = node.state == GcsNodeInfo.ALIVE
            death = "" if is_alive else node.death_info.reason_message or _LEFT
            gpus = int(node.resources_total.get("GPU", 0))
            joined.append(JoinedNode(node.labels[INSTANCE_LABEL], node_id.hex(), gpus, death))
        return joined

    def agent(self, node: JoinedNode, training: Training, *, existing: bool = False) -> Any | None:
        run = self.rental.run
        name = f"agent-{node.instance}"
        if existing:
            return find_actor(name, run)
        place = NodeAffinitySchedulingStrategy(node.node, soft=False)
        if self.rental.source_files is not None:
            training = replace(training, folder=str(self._code))
        options = {"name": name, "namespace": run, "get_if_exists": True}
        return _Agent.options(**options, scheduling_strategy=place).remote(
            node.instance, run, node.gpus, training
        )

    def start(self) -> None:
        """Start the head and wait until the cluster can be joined.

        Raises:
            CloudtuneError: it ended, or didn't start in time; the message has its output.
        """
        if self._group is not None:
            HeadProcess(self._group, self.temp).record(self.folder)
            self._server = self._gcs()
            return
        self._write_config()
        log = self.folder / "head.log"
        inherited = {
            name: text for name, text in os.environ.items() if name not in ray_access.FOR_DRIVERS
        }
        # `connect` sends a folder only where there are no `source_files`.
        runtime_envs = {} if self.rental.source_files is None else ray_access.NO_RUNTIME_ENVS
        environment = {
            **inherited,
            **ray_access.ray_environment(self._ip, self.token),
            **_ENVIRONMENT,
            **health_checks(self.rental.endpoint.silent_seconds),
            **runtime_envs,
            "RAY_CLOUD_INSTANCE_ID": head_instance(self.rental.run),
            # Two servers that can't be turned off, each at its own port.
            "AUTOSCALER_METRIC_PORT": str(free_port(self._ip)),
            "DASHBOARD_METRIC_PORT": str(free_port(self._ip)),
        }
        self._group = ProcessGroup.start(self._command(), log=log, environment=environment)
        HeadProcess(self._group, self.temp).record(self.folder)
        give_up = time.monotonic() + _START_SECONDS
        while "Ray runtime started" not in log.read_text(errors="replace"):
            if not self._group.alive() or time.monotonic() > give_up:
                lines = log.read_text(errors="replace").split("\n")
                last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
                raise CloudtuneError(
                    f"Ray's head did not start on this machine; its log ends with: {last} ({log})"
                )
            time.sleep(0.05)
        self._server = self._gcs()

    def _gcs(self) -> tuple[list[str], dict[str, str]] | None:
        """Return the command and the environment of the server for drivers."""
        assert self._group is not None
        for process in self._group.members():
            with contextlib.suppress(psutil.Error):
                if process.name() == "gcs_server":
                    return process.cmdline(), process.environ()
        return None

    @contextlib.contextmanager
    def stand_in(self) -> Iterator[bool]:
        """Start a server at the address of a dead head; yield whether there is one.

        Ray only lets a driver leave a cluster whose head answers: without one it waits a minute,
        and then ends the driver's process. The server ends with this process, which Ray may still
        end in spite of it.
        """
        if self._group is not None:
            self._group.stop()
        if self._server is None:
            yield False
            return
        command, environment = self._server
        with (self.folder / "head.log").open("ab") as log:
            server = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509  it takes no lock
            )
        give_up = time.monotonic() + _STAND_IN_SECONDS
        try:
            while not self.answers() and server.poll() is None and time.monotonic() < give_up:
                time.sleep(0.05)
            yield server.poll() is None and self.answers()
        finally:
            server.kill()
            server.wait()

    def answers(self) -> bool:
        return takes_connections(self._ip, self._port)

    def alive(self) -> bool:
        return self._group is not None and self._group.alive()

    def want(self, launch: Launch, until: float = math.inf) -> None:
        """Let Ray's autoscaler launch the instance of an intent, leased until then (Unix time)."""
        now = unix_time()
        lease, first = self.rental.leases(now, until)
        intent = _Intent(launch, now, lease, first)
        if launch.intent not in self._intents:  # not under the lock: it may call S3
            with contextlib.suppress(StorageError):  # its console has the same
                log = self.rental.boot_log(launch.intent)
                intent.boot_log = upload_address(log, UPLOAD_SECONDS)
        with self._lock:  # the watcher gives up refused intents in its own thread
            # Set only once: a repeated request to EC2 must be identical.
            self._intents.setdefault(launch.intent, intent)
            self._write_config()

    def give_back(self, intent: str) -> None:
        """Let Ray's autoscaler end the instance of an intent, or never launch it."""
        with self._lock:
            self._intents[intent].wanted = False
            self._write_config()

    def stop(self) -> None:
        """End the head and all its processes; nothing can be launched after that."""
        if self._group is not None:
            self._group.stop()
            (self.folder / RECORD).unlink(missing_ok=True)
        for record in (self.autoscaler_events, self.autoscaler_events.parents[1] / "monitor.log"):
            if record.exists():
                shutil.copy(record, self.folder)
        shutil.rmtree(self.temp, ignore_errors=True)

    def _command(self) -> list[str]:
        return [
            *(*ray_access.COMMAND, "--head", "--block"),
            f"--node-ip-address={self._ip}",
            f"--port={self._port}",
            f"--temp-dir={self._session}",
            f"--autoscaling-config={self._config}",
            "--num-cpus=0",
            "--num-gpus=0",
            "--object-store-memory=104857600",
            "--include-dashboard=false",
            "--include-log-monitor=false",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
            "--disable-usage-stats",
        ]

    def _write_config(self) -> None:
        """Replace the config in one step, because the autoscaler may read it at any time.

        Before it, save what it is made from: the next controller must make identical requests.
        """
        state = {"ip": self._ip, "port": self._port, "intents": encode(self._intents)}
        write_atomically(self.folder / INTENTS, json.dumps(state))
        # Ray reads it as YAML, which doesn't allow surrogate pairs.
        write_atomically(self._config, json.dumps(self._settings(), ensure_ascii=False))

    def _settings(self) -> dict[str, Any]:
        rental = self.rental
        head = {"resources": {"CPU": 0}, "node_config": {}, "min_workers": 0, "max_workers": 0}
        types = {name: self._node_type(intent) for name, intent in self._intents.items()}
        return {
            "cluster_name": rental.run,
            "max_workers": max(1, len(self._intents)),
            "upscaling_speed": 100.0,
            "idle_timeout_minutes": 60 * 24 * 365,
            "head_node_type": HEAD_TYPE,
            "available_node_types": {HEAD_TYPE: head, **types},
            "provider": {
                "type": "external",
                "module": PROVIDER,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
                "run": rental.run,
                "endpoint": vars(rental.endpoint),
                "intents": {name: intent.settings for name, intent in self._intents.items()},
                "tags": dict(rental.tags),
                "journal": str(self.folder / JOURNAL),
                "config": str(self._config),
            },
            # An external provider gets no defaults: all of these are required.
            **{name: {} for name in ("auth", "docker", "file_mounts")},
            **{name: [] for name in _COMMAND_LISTS},
        }

    def _node_type(self, intent: _Intent) -> dict[str, Any]:
        launch = intent.launch
        count = int(intent.wanted)
        gpus = self.rental.gpus[launch.instance_type]
        # As in its tag: beyond that, another machine's `gc` would treat it as an orphan.
        join = Join(self.address, launch.intent, gpus, intent.asked_at + intent.lease)
        lease = first_lease(intent.asked_at, intent.asked_at + intent.first)
        index = ""
        if self.rental.delivery.commands:  # nothing else there installs packages
            index = export_lines(os.environ, os.environ.get(CERTIFICATES_VARIABLE, ""))
        script = user_data(
            join, lease, self.token, self.rental.delivery, boot_log=intent.boot_log, index=index
        )
        own = find_provider(self.rental.endpoint.provider).launch_request(launch, script)
        request = at_place(self.rental.request, self.rental.places, launch.zone)
        return {
            "resources": {"CPU": 0, "GPU": gpus},
            "labels": {INTENT_LABEL: launch.intent},
            "min_workers": count,
            "max_workers": count,
            "node_config": merge_requests(request, own),
        }


_COMMAND_LISTS = (
    "cluster_synced_files",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)


def takes_connections(address: str, port: int) -> bool:
    """Whether something listens there. Ray's calls hang if its server has just died."""
    with socket.socket() as probe:
        probe.settimeout(_CONNECT_SECONDS)
        return probe.connect_ex((address, port)) == 0

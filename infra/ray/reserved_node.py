"""An instance on a Ray cluster: a detached actor that holds GPUs of a node, and is its agent.

As long as it waits for GPUs it is demand that Ray's autoscaler sees. It ends with its lease, so
that what a dead controller has left gives its GPUs back.
"""

import contextlib
import functools
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import RayError

from cloudtune.clock import unix_time
from cloudtune.infra.node.gpus import GPUS_VARIABLE, own_gpus
from cloudtune.infra.node.lease import LEASE_MINUTES
from cloudtune.infra.node.messages import Message, Training
from cloudtune.infra.node.ray_agent import GROUPS, NodeAgent

_REAL = "ray.io/accelerator-type"
_TICK_SECONDS = 0.5
_DRAIN_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_KILL_SECONDS = 5.0


class ActorLease:
    """Ends this process when it isn't renewed; `end` is the last moment (Unix time)."""

    def __init__(self, end: float, first: float, close: threading.Event) -> None:
        self._end = end
        self._due = min(end, first)
        self._ending = close
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self, until: float) -> float:
        self._due = min(self._end, until, unix_time() + 60 * LEASE_MINUTES)
        return self._due

    def end_now(self) -> None:
        self._ending.set()

    def _watch(self) -> None:
        while not self._ending.wait(_TICK_SECONDS):
            if unix_time() >= self._due:
                self._ending.set()


class ReservedNode(NodeAgent):
    """Holds GPUs from when it starts; an agent from when a controller has called `begin`."""

    def __init__(self, instance: str, run: str, end: float, first: float) -> None:
        # The agent's own begins in `begin`: what the sessions have in common isn't known yet.
        self._instance = instance
        self._run = run
        self._ending = threading.Event()
        self._begun = threading.Event()
        self._first_lease = ActorLease(end, first, self._ending)
        threading.Thread(target=self._await_end, name="end", daemon=True).start()

    def begin(self, gpus: int, training: Training) -> None:
        """Be the agent, if it isn't yet."""
        if self._begun.is_set():
            return
        labels = ray.get_runtime_context().get_node_labels()
        training = replace(training, has_gpus=_REAL in labels)  # others are only counted
        os.environ[GPUS_VARIABLE] = ",".join(gpu.uuid for gpu in own_gpus())
        super().__init__(
            self._instance,
            f"{self._run}/{self._instance}",  # the nodes may share a home
            gpus,
            training,
            lease=self._first_lease,
            notice=_drain_time,
            at_risk=lambda: False,
        )
        self._storage = training.storage
        self._begun.set()

    def hello(self) -> dict[str, str | int]:
        self._begun.wait()
        facts = super().hello()
        run = Path(self._storage)
        if "://" not in self._storage and not run.parent.is_dir():
            facts["lack"] = f"no folder {run.parent}, which is the storage of every node"
        return facts

    def messages(self, after: int, acknowledged: int, seconds: float) -> list[Message]:
        self._begun.wait()
        return super().messages(after, acknowledged, seconds)

    def execute(self, words: list[str]) -> tuple[int, str, str]:
        """Run a person's command in the folder of the trials; return its exit code and output."""
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        except OSError as error:
            return 127, "", f"{words[0]}: {error.strerror}\n"
        return done.returncode, done.stdout, done.stderr

    def end(self) -> None:
        """End what trains; and this process, unless it is killed before."""
        if self._begun.is_set():
            self.close()
        self._first_lease.renew(unix_time() + _KILL_SECONDS)

    def _await_end(self) -> None:
        self._ending.wait()
        if self._begun.is_set():
            self.close()
        os._exit(0)


def _drain_time() -> float | None:
    """Return when Ray drains this node (Unix time); None if it doesn't."""
    here = ray.get_runtime_context()
    with contextlib.suppress(RayError):  # asked again soon
        due = _gcs(here.gcs_address).get_draining_nodes(_ANSWER_SECONDS).get(here.get_node_id())
        return None if due is None else due / 1000 or unix_time() + _DRAIN_SECONDS
    return None


@functools.cache
def _gcs(address: str) -> Any:
    return GcsClient(address=address)


Reserved = ray.remote(num_cpus=0, max_restarts=0, lifetime="detached", concurrency_groups=GROUPS)(
    ReservedNode
)

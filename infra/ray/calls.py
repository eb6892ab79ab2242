"""Reserving nodes of a Ray cluster, and giving them back: what a cloud is asked elsewhere."""

import contextlib
import hashlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray.exceptions import RayError

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError
from cloudtune.infra.node.ray_agent import find_actor
from cloudtune.infra.provider import (
    INTENT_TAG,
    LEASE_TAG,
    PRICE_TAG,
    QUEUED,
    RUN_TAG,
    Calls,
    Instance,
    lease_end,
)
from cloudtune.infra.ray.reserved_node import Reserved
from cloudtune.infra.ray.view import ClusterView
from cloudtune.model.events import RefusalKind

NAMESPACE = "cloudtune"
RELEASED = "Released"
_MARK = "cloudtune "
_LIVE = {"DEPENDENCIES_UNREADY": QUEUED, "PENDING_CREATION": QUEUED, "ALIVE": "running"}
_POLL_SECONDS = 0.2
# What Ray may take to find GPUs that are free.
_SHORT_SECONDS = 5.0
# Maximum seconds for a node from the autoscaler, or for an environment that Ray builds on one.
_LONG_SECONDS = 900.0
# Maximum seconds for a process to start on a node whose GPUs it has, with an existing Python.
_START_SECONDS = 60.0
_END_SECONDS = 2.0


class NoRoomError(CloudtuneError):
    """No node of the cluster has that many free GPUs."""


class NoStartError(CloudtuneError):
    """A process can't be started on the node, now or later."""


@contextlib.contextmanager
def driver(address: str, code: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Be a driver of the cluster within the context, unless this process is one already."""
    if ray.is_initialized():
        yield
        return
    join(address, code or {})
    try:
        yield
    finally:
        ray.shutdown()


def join(address: str, code: Mapping[str, Any]) -> None:
    """Join the cluster as a driver that provides code and this version of cloudtune."""
    ours = str(Path(__file__).parents[2])
    ray.init(
        address=address,
        namespace=NAMESPACE,
        runtime_env={"py_modules": [ours], "excludes": ["__pycache__/"], **code},
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
    )


class RayCalls(Calls):
    """The calls to a cluster: each instance is an actor, whose name has the tags."""

    errors: tuple[type[Exception], ...] = (NoRoomError, NoStartError, RayError, ConnectionError)
    _kinds: ClassVar[Mapping[str, RefusalKind]] = {"NoRoomError": "capacity", RELEASED: "busy"}

    def __init__(self, address: str) -> None:
        self.view = ClusterView(address)
        self._seen: dict[str, dict[str, Any]] = {}
        self._listed = False

    def is_definite(self, error: BaseException) -> bool:
        return isinstance(error, NoRoomError | NoStartError)

    def refusal_kind(self, code: str) -> RefusalKind:
        return self._kinds.get(code, "unknown")

    def run_instance(self, token: str, tags: Mapping[str, str], request: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Reserve GPUs of a node, once there are any.

        Raises:
            NoRoomError: there are none now, and no autoscaler adds some in time.
            NoStartError: its process fails to start.
        """
        kind = request["kinds"][request["instance_type"]]
        gpus = kind["gpus"]
        words = [tags[RUN_TAG], tags[INTENT_TAG], request["instance_type"], tags[LEASE_TAG]]
        name = _MARK + " ".join([*words, f"${kind['usd_per_hour']:g}/h"])
        instance = _id(name)
        end = lease_end(tags[LEASE_TAG])
        options = {"name": name, "namespace": NAMESPACE, "get_if_exists": True, "num_gpus": gpus}
        if kind["selector"]:
            options["label_selector"] = kind["selector"]
        with driver(self.view.address):
            actor = Reserved.options(**options).remote(
                instance, tags[RUN_TAG], end, request.get("first", end)
            )
            began = starting_since = time.monotonic()
            python = request["code"].get("py_executable")
            while True:
                record = self.view.actor(actor._actor_id.hex())  # noqa: SLF001
                wanted = request.get("wanted", lambda: True)()
                if wanted and record and record["State"] == "ALIVE":
                    return instance
                if record and record["State"] == "DEAD":
                    raise _why(record)
                now = time.monotonic()
                if not self._is_starting(gpus):
                    starting_since = now
                if python is not None and now - starting_since > _START_SECONDS:
                    ray.kill(actor)
                    raise NoStartError(f"no process starts on a node: has it {python}, with Ray?")
                patience = _LONG_SECONDS if request["scales"] else _SHORT_SECONDS
                is_refused = starting_since == now and now - began > patience
                if not wanted or is_refused or now - began > _LONG_SECONDS:
                    ray.kill(actor)
                    raise NoRoomError(f"no node has {gpus} free GPUs for {instance}")
                time.sleep(_POLL_SECONDS)

    def _is_starting(self, gpus: int) -> bool:
        """Whether Ray has GPUs for one of our pending instances."""
        queued = [it for it in self.ours(ended=False) if it.state == QUEUED]
        return self.view.waiting(gpus) < len(queued)

    def ours(self, run: str | None = None, *, ended: bool = True) -> list[Instance]:
        """Return instances; all that have ended are listed once, as a cluster keeps 100,000."""
        if ended and not self._listed:
            seen = {it["ActorID"]: it for it in self._list_ours(None)}
        else:
            live = {it["ActorID"]: it for state in _LIVE for it in self._list_ours(state)}
            seen = self._seen | live
            for actor_id in seen.keys() - live.keys():
                if seen[actor_id]["State"] != "DEAD":
                    seen[actor_id] = self.view.actor(actor_id)
        self._listed = self._listed or ended
        self._seen = seen
        # One that has ended before it was there has never been.
        instances = [
            _instance(it) for it in seen.values() if it["StartTime"] or it["State"] in _LIVE
        ]
        return [it for it in instances if run in {None, it.run} and (ended or it.billing)]

    def _list_ours(self, state: str | None) -> list[dict[str, Any]]:
        if not self.view.answers():
            raise ConnectionError(f"no Ray cluster answers at {self.view.address}")
        return [it for it in self.view.actors(state) if it["Name"].startswith(_MARK)]

    def alive(self, run: str) -> dict[str, Instance]:
        """Return the live instances of a run, by the names of their actors."""
        alive = {it["Name"]: _instance(it) for it in self._list_ours("ALIVE")}
        return {name: it for name, it in alive.items() if it.run == run}

    def execute(self, instance: str, words: Sequence[str]) -> int:
        """Run a command on an instance, print what it printed, and return its exit code.

        Raises:
            NoStartError: there is no such instance.
        """
        name = next(
            (it["Name"] for it in self._list_ours("ALIVE") if _id(it["Name"]) == instance), ""
        )
        with driver(self.view.address):
            actor = find_actor(name, NAMESPACE) if name else None
            if actor is None:
                raise NoStartError(f"{instance} is gone")
            code, output, errors = ray.get(
                actor.execute.options(concurrency_group="hello").remote(list(words))
            )
        sys.stdout.write(output)
        sys.stderr.write(errors)
        return int(code)

    def terminate(self, ids: Sequence[str]) -> None:
        """End the actors of these instances, with their trials."""
        live = [it["Name"] for state in _LIVE for it in self._list_ours(state)]
        names = [name for name in live if _id(name) in ids]
        if not names:
            return
        with driver(self.view.address):
            named = [find_actor(name, NAMESPACE) for name in names]
            actors = [actor for actor in named if actor is not None]
            ends = [actor.end.remote() for actor in actors]
            ray.wait(ends, num_returns=len(ends), timeout=_END_SECONDS)
            for actor in actors:
                ray.kill(actor)


def _why(actor: Mapping[str, Any]) -> CloudtuneError:
    """Return the error of an instance that ended before it began."""
    cause = actor["DeathCause"]
    broken = cause.runtime_env_failed_context.error_message
    broken = broken or cause.creation_task_failure_context.formatted_exception_string
    if broken:
        return NoStartError(f"it can't be started on a node: {broken.strip()[-500:]}")
    return NoRoomError(_instance(actor).reason or "it ended before it began")


def _id(name: str) -> str:
    return f"ray-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def _instance(actor: Mapping[str, Any]) -> Instance:
    run, intent, kind, lease, price = actor["Name"].removeprefix(_MARK).split(" ")
    ended = actor["EndTime"] / 1000 or None
    cause = actor["DeathCause"].actor_died_error_context.error_message
    return Instance(
        id=_id(actor["Name"]),
        run=run,
        intent=intent,
        lease=lease,
        instance_type=kind,
        state=_LIVE.get(actor["State"], "terminated"),
        launched_at=actor["StartTime"] / 1000 or ended or unix_time(),
        ended_at=ended,
        reason=cause.partition("\n")[0].partition(". ")[0],
        tags={PRICE_TAG: price.strip("$/h")},
    )

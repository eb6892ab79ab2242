"""Ray's external node provider: every node that Ray's autoscaler requests is one instance.

Each launch intent of the policy is a separate node type with min = max = 1, or 0 once it is
returned (docs/decisions/0003-one-node-type-per-intent.md). So Ray launches and terminates exactly
the instances that the policy wants, and requesting one intent twice is harmless.

This module runs in Ray's monitor process on the head. It writes what it is about to do, and the
outcome, to a journal (JSON lines) that the controller reads: intent before the call, answer after.
"""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.autoscaler import tags as ray_tags
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.node_provider import NodeProvider

from cloudtune.clock import unix_time
from cloudtune.infra import provider
from cloudtune.infra.cluster.head_process import HeadProcess, end_from_inside
from cloudtune.infra.processes import DamagedRecordError
from cloudtune.model.serialization import decode

HEAD_TYPE = "head"
PROVIDER = "cloudtune.infra.cluster.node_provider.CloudNodeProvider"
# Notes after which a launch intent is never requested again.
GIVEN_UP = frozenset({"refused", "lost", "broken"})
# Three lost answers in a row aren't chance: then the watcher looks for the instance.
_LOST_ANSWERS = 3
# Seconds for which a launched instance counts as existing, though EC2 doesn't list it yet.
_UNLISTED_SECONDS = 60.0


def printable(error: Exception) -> str:
    """Return an error's message in a form for any file and any terminal."""
    return str(error).encode("ascii", "backslashreplace").decode()


def head_instance(run: str) -> str:
    """Return Ray's id of the controller's own machine, which EC2 never sees."""
    return f"head-{run}"


@dataclass(frozen=True)
class Note:
    """A line of the journal: asking, unanswered, launched, refused, lost, broken or returning.

    "lost": given up, but the instance may exist, because an answer was lost. "broken": the same,
    after an error that isn't the cloud's and would recur; without an intent, it is about another
    call of the provider.
    """

    at: float
    what: str
    intent: str
    instance: str = ""
    code: str = ""
    message: str = ""


class Journal:
    """The provider's actions, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, note: Note) -> None:
        """Append a line, and return once it is on disk."""
        with self._lock, self._path.open("ab+") as file:
            text = json.dumps(vars(note)) + "\n"
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                text = f"\n{text}"  # the last write was cut short: begin a new line
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> Iterator[Note]:
        """Yield the lines so far, without incomplete or damaged ones.

        A request forgotten that way is repeated with the same token.
        """
        if not self._path.exists():
            return
        for line in self._path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                with contextlib.suppress(ValueError):
                    yield decode(Note, json.loads(line))


class CloudNodeProvider(NodeProvider):  # type: ignore[misc]  # Ray ships no types
    """Launches and terminates through the calls of a cloud, one instance per intent.

    It has the methods that Ray's autoscaler v2 calls: nodes register by themselves, and aren't
    updated.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.run: str = provider_config["run"]
        endpoint = provider.Endpoint(**provider_config["endpoint"])
        self._calls = provider.calls_to(endpoint)
        self._look_seconds = endpoint.look_seconds
        self._journal = Journal(Path(provider_config["journal"]))
        self._config = Path(provider_config["config"])
        self._lock = threading.Lock()
        self._seen: dict[str, provider.Instance] = {}
        self._seen_until = -math.inf
        self._launched: dict[str, tuple[provider.Instance, float]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._launching: set[str] = set()  # intents whose request is under way
        self._ended = False

    def non_terminated_nodes(self, tag_filters: Mapping[str, str]) -> list[str]:
        """Return the ids of live instances of this run, and of the head.

        Ray calls this several times a second; EC2 is only called now and then, and after each
        change of ours.
        """
        with self._lock:
            instances = self._seen if time.monotonic() < self._seen_until else None
        if instances is None:
            until = time.monotonic() + self._look_seconds
            listed = {it.id: it for it in self._list()}
            with self._lock:
                now = time.monotonic()
                # Include instances launched just now that aren't listed yet: if a node joins before
                # Ray knows its instance, Ray's autoscaler stops for good (2.60: "Invalid status
                # transition").
                self._launched = {
                    name: (instance, unlisted_until)
                    for name, (instance, unlisted_until) in self._launched.items()
                    if name not in listed and now < unlisted_until
                }
                instances = listed | {name: it for name, (it, _) in self._launched.items()}
                self._seen = instances
                self._seen_until = until
            self._end_if_abandoned(instances)
        nodes = [head_instance(self.run), *instances]
        return [node for node in nodes if tag_filters.items() <= self.node_tags(node).items()]

    def _end_if_abandoned(self, instances: Collection[str]) -> None:
        """End the head whose controller has died, once the leases have ended all its instances.

        Until then the run may be resumed, and goes on with them. Without instances it would only
        take memory, and ask for those that a dead controller was refused.
        """
        if instances or self._launching or self._ended:
            return
        with contextlib.suppress(DamagedRecordError):
            head = HeadProcess.recorded(self._config.parent)
            if head is not None and head.abandoned:
                self._ended = True
                end_from_inside(self._config.parent)

    def _list(self) -> list[provider.Instance]:
        """Return the live instances; note errors that aren't the cloud's, each kind once."""
        try:
            return self._calls.ours(self.run, ended=False)
        except self._calls.errors:
            raise
        except Exception as error:
            failure = type(error).__name__, printable(error)
            if failure not in self._reported:
                self._reported.add(failure)
                self._note("broken", "", code=failure[0], message=failure[1])
            raise

    def node_tags(self, node_id: str) -> dict[str, str]:
        if node_id == head_instance(self.run):
            return {
                ray_tags.TAG_RAY_NODE_KIND: ray_tags.NODE_KIND_HEAD,
                ray_tags.TAG_RAY_USER_NODE_TYPE: HEAD_TYPE,
            }
        instance = self._instance(node_id)
        return dict(instance.tags) if instance else {}

    def is_running(self, node_id: str) -> bool:
        """Whether the instance runs, according to EC2."""
        instance = self._instance(node_id)
        return node_id == head_instance(self.run) or (
            instance is not None and instance.state == "running"
        )

    def _instance(self, node_id: str) -> provider.Instance | None:
        with self._lock:
            return self._seen.get(node_id)

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],  # noqa: ARG002  the user data has them
        labels: dict[str, str],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Launch the instance of an intent, once: a repeated call returns the first answer.

        Raises:
            NodeLaunchException: EC2 refused, now or before, or the intent was returned.
        """
        intent = tags[ray_tags.TAG_RAY_USER_NODE_TYPE]
        assert count == 1, f"asked for {count} nodes of intent {intent}, which stands for one"
        self._launching.add(intent)
        try:
            return self._answered_before(intent) or self._launch(intent, node_config, tags)
        finally:
            self._launching.discard(intent)

    def _answered_before(self, intent: str) -> dict[str, Any] | None:
        """Return the instance of the intent; None if EC2 was never called for it.

        Raises:
            NodeLaunchException: it was refused, its instance ended, or it is unwanted.
        """
        before = self._notes(intent)
        refused = next((note for note in before if note.what in GIVEN_UP), None)
        if refused is not None:
            raise NodeLaunchException(refused.code, refused.message, None)
        if any(note.what == "launched" for note in before):
            alive = [it.id for it in self._calls.ours(self.run, ended=False) if it.intent == intent]
            if not alive:
                raise NodeLaunchException("IntentSpent", f"{intent} was launched and ended", None)
            return {alive[0]: {}}
        if not self._settings()["available_node_types"][intent]["max_workers"]:
            raise NodeLaunchException("Released", f"{intent} was given back", None)
        return None

    def _settings(self) -> dict[str, Any]:
        """Return the controller's present config."""
        return json.loads(self._config.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def _launch(
        self, intent: str, node_config: Mapping[str, Any], tags: Mapping[str, str]
    ) -> dict[str, Any]:
        settings = self._settings()["provider"]
        asked = settings["intents"][intent]
        token = provider.launch_token(
            self.run, intent, asked["instance_type"], asked["market"], asked["zone"]
        )
        named = {
            **tags,
            **settings["tags"],
            ray_tags.TAG_RAY_NODE_STATUS: ray_tags.STATUS_UP_TO_DATE,
            ray_tags.TAG_RAY_CLUSTER_NAME: self.cluster_name,
            provider.RUN_TAG: self.run,
            provider.INTENT_TAG: intent,
            provider.LEASE_TAG: asked["lease"],
            "Name": f"cloudtune-{self.run}-{intent}",
        }
        named.pop(ray_tags.TAG_RAY_NODE_NAME, None)
        # If an answer was lost, now or before, there may be an instance, whatever EC2 says next.
        asked_before = bool(self._notes(intent))
        self._note("asking", intent)
        try:
            instance = self._ask(intent, token, named, node_config)
        except self._calls.errors as error:
            silent = any(note.what == "unanswered" for note in self._notes(intent))
            refused = self._calls.is_definite(error) and not (asked_before or silent)
            outcome = "refused" if refused else "lost"
            code = self._calls.code(error)
            message = str(error)
            self._note(outcome, intent, code=code, message=message)
            raise NodeLaunchException(code, message, sys.exc_info()) from error
        except Exception as error:
            code = type(error).__name__
            self._note("broken", intent, code=code, message=printable(error))
            raise NodeLaunchException(code, printable(error), sys.exc_info()) from error
        self._note("launched", intent, instance=instance)
        pending = provider.Instance(
            id=instance,
            run=self.run,
            intent=intent,
            lease=asked["lease"],
            instance_type=asked["instance_type"],
            state="pending",
            launched_at=unix_time(),
            ended_at=None,
            reason="",
            tags=named,
        )
        with self._lock:
            self._launched[instance] = pending, time.monotonic() + _UNLISTED_SECONDS
            self._seen_until = -math.inf
        return {instance: {}}

    def _ask(
        self, intent: str, token: str, tags: Mapping[str, str], request: Mapping[str, Any]
    ) -> str:
        """Launch, and retry if the answer was lost: the token makes it the same launch."""
        for _ in range(_LOST_ANSWERS):
            try:
                return self._calls.run_instance(token, tags, request)
            except self._calls.errors as error:
                if self._calls.is_definite(error):
                    raise
                self._note("unanswered", intent, code=self._calls.code(error), message=str(error))
                time.sleep(1.0)
        return self._calls.run_instance(token, tags, request)

    def _notes(self, intent: str) -> list[Note]:
        return [note for note in self._journal.read() if note.intent == intent]

    def terminate_nodes(self, node_ids: Sequence[str]) -> None:
        """Terminate instances, but not the head, which isn't ours to end."""
        doomed = [node for node in node_ids if node != head_instance(self.run)]
        for node in doomed:
            instance = self._instance(node)
            intent = instance.intent if instance else ""
            self._note("returning", intent, instance=node)
        if doomed:
            self._calls.terminate(doomed)
            with self._lock:
                for node in doomed:
                    self._launched.pop(node, None)
                self._seen_until = -math.inf

    def _note(self, what: str, intent: str, **more: str) -> None:
        self._journal.write(Note(unix_time(), what, intent, **more))

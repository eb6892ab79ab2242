"""The controller's side of the agents, one per node, through Ray.

Agents are detached actors, named after their instance in the run's own namespace. They live until
the run ends them or their node goes, so that the next controller finds them.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

from cloudtune.clock import unix_time
from cloudtune.infra.cluster.base import JoinedNode, RunCluster
from cloudtune.infra.node.lease import RENEW_SECONDS
from cloudtune.infra.node.messages import Acks, Described, Message, Training

# An agent answers when it has something to report, at the latest after this many seconds.
_POLL_SECONDS = 10.0
# A node under load answers late; it is asked again after this many seconds.
_ANSWER_SECONDS = 30.0
# Seconds for nodes to end by themselves before they are terminated.
_END_SECONDS = 2.0
_MAX_STARTS = 3
# A lease that ends sooner by fewer seconds isn't worth a message.
_EARLIER_SECONDS = 5.0


@dataclass(eq=False)
class _Agent:
    """An agent, the last message received from it, and whether it has answered."""

    node: JoinedNode
    actor: Any
    hello: Any
    acks: Acks = field(default_factory=Acks)
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: bool = False
    refused: bool = False
    renewed_at: float = -math.inf
    leased_until: float = math.inf
    thread: threading.Thread | None = None

    @property
    def instance(self) -> str:
        return self.node.instance

    def settle(self, number: int) -> None:
        with self.lock:
            self.acks.settle(number)


class Agents:
    """The agents of a run's nodes.

    Args:
        cluster: the cluster of the nodes.
        training: the common settings of the sessions.
        hear: called with an instance, its message, and what to call once that is handled.
        lost: called with an instance and a reason when its agent and workers are gone, and with
            whether another agent replaces it.
        leased_until: the Unix time at which all must be gone if nothing more is decided.
        refuse: called with a useless instance, and why it is.
        answered: called when an agent has answered for the first time, so that it may be `ready`.
    """

    def __init__(
        self,
        cluster: RunCluster,
        training: Training,
        hear: Callable[[str, Message, Callable[[], None]], None],
        lost: Callable[[str, str, bool], None],
        leased_until: Callable[[], float],
        *,
        refuse: Callable[[str, str], None] = lambda *_: None,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._refuse = refuse
        self._answered = answered
        self._leased_until = leased_until
        self._cluster = cluster
        self._training = training
        self._hear = hear
        self._lost = lost
        self._agents: dict[str, _Agent] = {}
        self._starts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def ready(self, node: JoinedNode, *, wanted: bool = True) -> bool:
        """Start an agent on that Ray node; return whether it can start workers at once by now.

        While the node is wanted, this also renews its lease as often as necessary.
        """
        with self._lock:
            agent = self._agents.get(node.instance)
            if agent is None:
                self._start(node)
                return False
        if not (agent.answered or agent.refused) and ray.wait([agent.hello], timeout=0)[0]:
            lack = ""  # of the GPUs of its type
            with contextlib.suppress(RayError):  # its listener notices
                lack = ray.get(agent.hello)["lack"]
            agent.answered = not lack
            if lack:
                agent.refused = True
                self._refuse(agent.instance, f"{agent.instance} shows {lack}: of no use")
        if agent.answered and wanted:
            self._renew(agent)
        return agent.answered

    def _renew(self, agent: _Agent) -> None:
        """Renew a lease when it is due, and at once if the limits pay for less than granted.

        Or for more, if the granted lease is soon over.
        """
        now = time.monotonic()
        until = self._leased_until()
        granted = agent.leased_until
        over_soon = granted - unix_time() < 2 * RENEW_SECONDS and until > granted + _EARLIER_SECONDS
        earlier = until < granted - _EARLIER_SECONDS
        if now >= agent.renewed_at + RENEW_SECONDS or earlier or over_soon:
            agent.renewed_at = now
            agent.leased_until = until
            agent.actor.renew.options(concurrency_group="messages").remote(until)

    def _start(self, node: JoinedNode) -> None:
        self._starts[node.instance] = self._starts.get(node.instance, 0) + 1
        if self._starts[node.instance] > _MAX_STARTS:
            return
        actor = self._cluster.agent(node, self._training)
        if actor is not None:  # otherwise it has just gone
            self._take(node, actor)

    def _take(self, node: JoinedNode, actor: Any) -> None:
        hello = actor.hello.options(concurrency_group="hello").remote()
        hello.future().add_done_callback(lambda _: self._answered())
        agent = _Agent(node, actor, hello)
        self._agents[node.instance] = agent
        name = f"agent-{node.instance}"
        agent.thread = threading.Thread(target=self._listen, args=(agent,), name=name, daemon=True)
        agent.thread.start()

    def find(self) -> Mapping[str, Mapping[str, Described]]:
        """Listen to the agents left by another controller; return their sessions by instance."""
        described = {}
        for node in self._cluster.nodes():
            with contextlib.suppress(ValueError, RayError):  # it has gone meanwhile
                actor = self._cluster.agent(node, self._training, existing=True)
                if actor is None or node.lost:
                    continue
                sessions = ray.get(actor.describe.remote(), timeout=_ANSWER_SECONDS)
                described[node.instance] = sessions
                with self._lock:
                    self._take(node, actor)
        return described

    def call(self, instance: str, method: str, *arguments: object) -> Any:
        """Call an agent's method; return Ray's reference to the answer, None without an agent."""
        agent = self._agents.get(instance)
        return None if agent is None else getattr(agent.actor, method).remote(*arguments)

    def forget(self) -> None:
        """Stop listening to agents: their cluster is gone."""
        self._closing.set()

    def close(self) -> None:
        """End all agents, and with them all workers.

        Instances that are left shut themselves down, because nothing renews their leases.
        """
        self._closing.set()
        with self._lock:
            agents = list(self._agents.values())
        closed = [agent.actor.close.remote() for agent in agents]
        ended = [*closed, *(agent.actor.power_off.remote() for agent in agents)]
        ray.wait(ended, num_returns=len(ended), timeout=_END_SECONDS) if ended else None
        for agent in agents:
            with contextlib.suppress(Exception):  # whatever is wrong with one, the others must go
                ray.kill(agent.actor)
        for agent in agents:
            if agent.thread is not None:
                agent.thread.join(_END_SECONDS)

    def _listen(self, agent: _Agent) -> None:
        """Pass on what an agent has to tell, until it is gone."""
        fetch = agent.actor.messages.options(concurrency_group="messages")
        while not self._closing.is_set():
            with agent.lock:
                after = agent.acks.received
                acknowledged = agent.acks.acknowledged
            try:
                asked = fetch.remote(after, acknowledged, _POLL_SECONDS)
                messages = ray.get(asked, timeout=_POLL_SECONDS + _ANSWER_SECONDS)
            except (ActorUnavailableError, GetTimeoutError):
                self._closing.wait(0.1)  # it may be back
                continue
            except Exception as error:  # noqa: BLE001  Ray's own, or that it was shut down
                self._note_gone(agent, (str(error).strip() or repr(error)).splitlines()[0])
                return
            for message in messages:
                with agent.lock:
                    agent.acks.receive(message.number)
                self._hear(agent.instance, message, partial(agent.settle, message.number))

    def _note_gone(self, agent: _Agent, reason: str) -> None:
        if self._closing.is_set():
            return
        with self._lock:
            del self._agents[agent.instance]
            here = [node.instance for node in self._cluster.nodes() if not node.lost]
            if agent.instance in here:  # what is asked for from now on waits for another
                self._start(agent.node)
            replaced = agent.instance in self._agents
        self._lost(agent.instance, f"the agent of {agent.instance} is gone: {reason}", replaced)

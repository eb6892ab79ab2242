"""A fault campaign on launching: our node provider, killed at any boundary, on a hostile EC2.

The provider and the sweep are the product's own; EC2 is a model of it in memory that honours client
tokens, loses answers, refuses, throttles, and lists an instance only after a while. Ray's
autoscaler is a loop that asks again for what is wanted and isn't there. What must be zero: intents
bought twice, instances left after the sweep, and those that no intent on record names.

    python -m benchmarks.fault_launches [--runs 1000] [--seed 0]
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from botocore.exceptions import ClientError, ConnectionClosedError
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

from benchmarks.runner import parser
from cloudtune.infra import provider
from cloudtune.infra import sweep as sweeping
from cloudtune.infra.aws.errors import SortedErrors
from cloudtune.infra.cluster import node_provider
from cloudtune.infra.cluster.node_provider import CloudNodeProvider, Journal
from cloudtune.infra.provider import INTENT_TAG, LEASE_TAG, Instance

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudtune.infra.cluster.node_provider import Note

RUN = "campaign"
_REFUSALS = ("InsufficientInstanceCapacity", "VcpuLimitExceeded", "RequestLimitExceeded")


class KilledError(BaseException):
    """The provider's process died here; not an Exception, so that nothing handles it."""


@dataclass
class Clock:
    """A clock that moves when somebody looks at it, or sleeps."""

    now: float = 1_000_000.0

    def time(self) -> float:
        """Return the time, a little later each time."""
        self.now += 0.01
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class _Machine:
    token: str
    tags: Mapping[str, str]
    launched_at: float
    seen_after: int
    ended_at: float | None = None


@dataclass
class HostileEc2(SortedErrors):
    """EC2 with trouble by a seed; `deaths` are the boundaries at which the caller is killed."""

    rng: random.Random
    clock: Clock
    deaths: list[int]
    passed: int = 0
    machines: dict[str, _Machine] = field(default_factory=dict)
    bought: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    calm: bool = False

    def boundary(self) -> None:
        """Pass a boundary.

        Raises:
            KilledError: not this one.
        """
        self.passed += 1
        if not self.calm and self.deaths and self.passed >= self.deaths[0]:
            self.deaths.pop(0)
            raise KilledError

    # ---- as infra.aws.ec2.Ec2 ------------------------------------------------------------

    def run_instance(self, token: str, tags: Mapping[str, str], _request: object) -> str:
        """Launch, once for each token."""
        self.boundary()
        self._refuse_sometimes()
        name = self.launched_by(token)
        if name is None:
            name = f"i-{len(self.machines):04d}"
            self.bought[tags[INTENT_TAG]] += 1
            seen_after = self.rng.choice((0, 0, 1, 3))
            self.machines[name] = _Machine(token, tags, self.clock.time(), seen_after)
        elif self.machines[name].ended_at is not None:
            raise _error("IdempotentInstanceTerminated", 400)
        self._lose_sometimes()
        self.boundary()
        return name

    def launched_by(self, token: str) -> str | None:
        return next((name for name, it in self.machines.items() if it.token == token), None)

    def ours(self, _run: str | None = None, *, ended: bool = True) -> list[Instance]:
        """Return what can be seen by now."""
        self.boundary()
        if self._happens("throttled", 0.1):
            raise _error("RequestLimitExceeded", 503)
        instances = []
        for name, it in self.machines.items():
            it.seen_after -= 1
            if it.seen_after < 0 and (ended or it.ended_at is None):
                instances.append(_instance(name, it))
        return instances

    def console(self, _instance: str) -> str:
        """Return "": nothing that boots here prints anything."""
        return ""

    def terminate(self, ids: Sequence[str]) -> None:
        self.boundary()
        for name in ids:
            machine = self.machines[name]
            machine.ended_at = machine.ended_at or self.clock.time()
        self._lose_sometimes()
        self.boundary()

    # ---- trouble -------------------------------------------------------------------------

    def _happens(self, what: str, rate: float) -> bool:
        if self.calm or self.rng.random() >= rate:
            return False
        self.faults[what] += 1
        return True

    def _refuse_sometimes(self) -> None:
        if self._happens("refused", 0.15):
            raise _error(self.rng.choice(_REFUSALS), 400)

    def _lose_sometimes(self) -> None:
        if self._happens("answer lost", 0.25):
            if self.rng.random() < 0.5:
                raise ConnectionClosedError(endpoint_url="http://ec2")
            raise _error("InternalError", 500)


def _error(code: str, status: int) -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": code},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "RunInstances")


def _instance(name: str, it: _Machine) -> Instance:
    state = "running" if it.ended_at is None else "terminated"
    intent, lease = it.tags[INTENT_TAG], it.tags[LEASE_TAG]
    return Instance(
        name, RUN, intent, lease, "x", state, it.launched_at, it.ended_at, "", dict(it.tags)
    )


# ---- one case ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What happened over all cases, and the seeds of those in which something went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    seeds: list[int] = field(default_factory=list)


class _Provider:
    """The product's provider, in a process that may die, and the loop that asks it."""

    def __init__(self, folder: Path, ec2: HostileEc2) -> None:
        self.journal = folder / "provider.jsonl"
        self.config = folder / "autoscaler.json"
        self.ec2 = ec2
        self.wanted: dict[str, bool] = {}
        self._born: CloudNodeProvider | None = None

    def tell(self) -> None:
        """Write the config, as the controller's head does."""
        asked = {"instance_type": "x", "market": "on-demand", "zone": ""}
        intents = {name: {**asked, "lease": "2030-01-01T00:00:00Z"} for name in self.wanted}
        types = {name: {"max_workers": int(want)} for name, want in self.wanted.items()}
        provider = {"intents": intents, "tags": {}}
        self.config.write_text(json.dumps({"provider": provider, "available_node_types": types}))

    def step(self) -> None:
        """Do as Ray's autoscaler does in one of its rounds."""
        provider = self._born = self._born or self._bear()
        nodes = provider.non_terminated_nodes({})
        kinds = {provider.node_tags(node).get(INTENT_TAG, ""): node for node in nodes}
        for intent, want in self.wanted.items():
            if want and intent not in kinds:
                tags = {TAG_RAY_USER_NODE_TYPE: intent}
                provider.create_node_with_resources_and_labels(
                    {"InstanceType": "x"}, tags, 1, {}, {}
                )
        doomed = [node for intent, node in kinds.items() if self.wanted.get(intent) is False]
        if doomed:
            provider.terminate_nodes(doomed)

    def _bear(self) -> CloudNodeProvider:
        settings = {
            "run": RUN,
            "endpoint": {"region": "us-east-1"},
            "journal": str(self.journal),
            "config": str(self.config),
        }
        with mock.patch.object(provider, "calls_to", return_value=self.ec2):
            return CloudNodeProvider(settings, RUN)

    def rounds(self, count: int) -> int:
        """Go through so many rounds, born again after each death; returns the deaths."""
        deaths = 0
        for _ in range(count):
            try:
                self.step()
            except KilledError:
                self._born, deaths = None, deaths + 1
            except (NodeLaunchException, *SortedErrors.errors):
                continue  # Ray logs it, and asks again in its next round
        return deaths


def play(seed: int, tally: Tally, folder: Path) -> None:
    """Play a case: some intents wanted, some given back, the controller gone, then the sweep."""
    rng, clock = random.Random(seed), Clock()
    ec2 = HostileEc2(rng, clock, sorted(rng.sample(range(1, 60), rng.choice((0, 1, 2, 4)))))
    with _instead(clock, ec2):
        provider = _Provider(folder, ec2)
        for number in range(rng.choice((1, 2, 4))):
            provider.wanted[f"i{number:03d}"] = True
        provider.tell()
        tally.counts["deaths"] += provider.rounds(rng.choice((1, 3, 6)))
        for intent in provider.wanted:
            provider.wanted[intent] = rng.random() < 0.5
        provider.tell()
        tally.counts["deaths"] += provider.rounds(rng.choice((0, 1, 4)))
        ec2.calm = True
        sweeping.sweep(ec2, RUN, Journal(provider.journal))
    _take_down(seed, tally, ec2, Journal(provider.journal).read())


def _take_down(seed: int, tally: Tally, ec2: HostileEc2, notes: Iterator[Note]) -> None:
    asked = {note.intent for note in notes if note.what == "asking"}
    wrong = {
        "bought twice": sum(count > 1 for count in ec2.bought.values()),
        "instances left": sum(machine.ended_at is None for machine in ec2.machines.values()),
        "unknown": sum(it.tags[INTENT_TAG] not in asked for it in ec2.machines.values()),
    }
    tally.counts.update({"runs": 1, "purchases": ec2.bought.total(), **wrong})
    tally.counts.update(ec2.faults)
    if any(wrong.values()):
        tally.seeds.append(seed)


@contextlib.contextmanager
def _instead(clock: Clock, ec2: HostileEc2) -> Iterator[None]:
    """Have provider and sweep look at our clock, and die at their journal's boundaries as well."""
    write = Journal.write

    def written(self: Journal, note: Note) -> None:
        ec2.boundary()
        write(self, note)
        ec2.boundary()

    with (
        mock.patch.object(node_provider, "time", clock),
        mock.patch.object(sweeping, "time", clock),
        mock.patch.object(Journal, "write", written),
    ):
        yield


def campaign(runs: int, seed: int) -> Tally:
    tally = Tally()
    for number in range(seed, seed + runs):
        with tempfile.TemporaryDirectory(prefix="ct-faults-") as folder:
            play(number, tally, Path(folder))
    return tally


def main() -> None:
    given = parser(__doc__, runs=1000, seed=0).parse_args()
    tally = campaign(given.runs, given.seed)
    for name, value in {**tally.counts, "seeds": tally.seeds}.items():
        print(f"{name:16} {value}")


if __name__ == "__main__":
    main()

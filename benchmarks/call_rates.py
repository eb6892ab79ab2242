"""How often a run calls EC2 in an hour, and how much of what EC2 allows that is.

    python benchmarks/call_rates.py [--instances 1 10 50]

The two that call are the real ones, each as its process runs it: the node provider, which Ray's
monitor asks five times a second, and the controller's watcher, which looks twice a second. EC2 and
the clock are not: an hour passes as fast as it can. Each instance is launched within the hour, one
every ten seconds, and given back at its end, which is more than most runs do. EC2's figures are
those of its page on throttling (`tests/aws_stand_in/rates.py`), by which the stand-in throttles.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1]))

from cloudtune.infra.aws.errors import SortedErrors
from cloudtune.infra.cluster import node_provider, watcher
from cloudtune.infra.provider import Endpoint, Instance
from tests.aws_stand_in.rates import rate_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOUR = 3600.0
STEP = 0.1
_MONITOR, _WATCHER = 0.2, 0.5
"""Seconds between two looks of Ray's monitor and of the controller."""
_LAUNCHES = 10.0
_FILTERED = {"Filter.1.Name": "tag:cloudtune:run"}


class CountedEc2(SortedErrors):
    """Stands for EC2: instances run at once, and each call is counted by its action."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.calls: Counter[str] = Counter()
        self.instances: dict[str, Instance] = {}

    def ours(self, run: str | None = None, *, ended: bool = True) -> list[Instance]:
        """Return those there are: one page holds a thousand."""
        assert run == self.run
        self.calls["DescribeInstances"] += 1
        return [each for each in self.instances.values() if ended or each.billing]

    def run_instance(self, token: str, tags: Mapping[str, str], request: object) -> str:
        """Launch one."""
        del token, request
        self.calls["RunInstances"] += 1
        name, intent = f"i-{len(self.instances):017x}", tags["cloudtune:intent"]
        self.instances[name] = Instance(
            id=name,
            run=self.run,
            intent=intent,
            lease="",
            instance_type="g4dn.xlarge",
            state="running",
            launched_at=0.0,
            ended_at=None,
            reason="",
            tags=dict(tags),
        )
        return name

    def terminate(self, ids: Sequence[str]) -> None:
        """End some."""
        self.calls["TerminateInstances"] += bool(ids)
        for each in ids:
            del self.instances[each]


def calls_in_an_hour(instances: int, folder: Path) -> Counter[str]:
    """Return how often each action is called in an hour of a run of so many instances."""
    run, now = "rates", [1000.0]
    ec2 = CountedEc2(run)
    provider = _provider(run, instances, folder, ec2)
    looking = _watcher(run, instances, folder, ec2)
    launched: list[str] = []

    def clock() -> float:
        return now[0]

    with (
        mock.patch("time.monotonic", clock),
        mock.patch("time.time", clock),
        mock.patch.object(watcher, "ray", SimpleNamespace(nodes=list)),
    ):
        begun, due = now[0], {"monitor": 0.0, "watcher": 0.0}
        for step in range(int(HOUR / STEP)):
            now[0] = begun + step * STEP
            if len(launched) < instances and now[0] >= begun + len(launched) * _LAUNCHES:
                launched += _launch(provider, len(launched))
            if now[0] >= due["monitor"]:
                due["monitor"] = now[0] + _MONITOR
                provider.non_terminated_nodes({})
            if now[0] >= due["watcher"]:
                due["watcher"] = now[0] + _WATCHER
                looking._idle_looks = 0  # noqa: SLF001 - its nodes join, as Ray would say
                looking._look()  # noqa: SLF001 - what its thread does
        for each in launched:
            provider.terminate_node(each)
            provider.non_terminated_nodes({})
    return ec2.calls


def share(action: str, calls: int) -> float:
    """Return the share of what EC2 allows of an action in an hour."""
    _, rate = rate_of(action, _FILTERED)
    return calls / (rate.per_second * HOUR)


def _intent(number: int) -> str:
    return f"i{number:03}"


def _provider(run: str, instances: int, folder: Path, ec2: CountedEc2) -> Any:
    config = folder / "autoscaler.json"
    asked = {"instance_type": "g4dn.xlarge", "market": "on-demand", "zone": "", "lease": ""}
    intents = [_intent(number) for number in range(instances)]
    settings = {
        "run": run,
        "endpoint": vars(Endpoint("us-east-1", "http://127.0.0.1:1", "key", "secret"))
        | {"look_seconds": Endpoint("").look_seconds},
        "intents": dict.fromkeys(intents, asked),
        "tags": {},
        "journal": str(folder / "provider.jsonl"),
        "config": str(config),
    }
    types = {each: {"max_workers": 1} for each in intents}
    config.write_text(json.dumps({"available_node_types": types, "provider": settings}))
    made = node_provider.Ec2NodeProvider(settings, run)
    made._ec2 = cast("Any", ec2)  # noqa: SLF001 - in place of boto3
    return made


def _watcher(run: str, instances: int, folder: Path, ec2: CountedEc2) -> Any:
    head = SimpleNamespace(
        journal=node_provider.Journal(folder / "provider.jsonl"),
        give_back=lambda _: None,
        answers=lambda: True,
        rental=SimpleNamespace(run=run, endpoint=Endpoint("us-east-1")),
        folder=folder,
    )
    made = watcher.Watcher(
        cast("Any", ec2), cast("Any", head), 1e9, lambda *_: None, lambda *_, **__: False
    )
    for number in range(instances):
        made.expect(_intent(number))
    return made


def _launch(provider: Any, number: int) -> list[str]:
    tags = {"ray-user-node-type": _intent(number), "ray-node-type": "worker"}
    return list(provider.create_node_with_resources_and_labels({}, tags, 1, {}, {}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 10, 50])
    print("| instances | action | calls an hour | of what EC2 allows |\n|---:|---|---:|---:|")
    for instances in parser.parse_args().instances:
        with tempfile.TemporaryDirectory() as folder:
            calls = calls_in_an_hour(instances, Path(folder))
        for action, count in sorted(calls.items()):
            print(f"| {instances} | {action} | {count:,} | {share(action, count):.2%} |")


if __name__ == "__main__":
    main()

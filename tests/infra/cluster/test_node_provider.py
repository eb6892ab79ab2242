"""The node provider against the emulated EC2: one intent is one instance, whatever happens."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from ray.autoscaler.node_launch_exception import NodeLaunchException

from cloudtune.infra.aws.ec2 import Ec2, market_request
from cloudtune.infra.cluster.node_provider import CloudNodeProvider, Journal, Note, head_instance
from cloudtune.infra.emulator.provider import make_endpoint
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.provider import Endpoint, Instance, launch_token
from cloudtune.infra.sweep import sweep

LEASE = "2026-12-31T00:00:00Z"
TAGS = {"ray-user-node-type": "i000", "ray-node-type": "worker", "ray-launch-request": "r"}
CONFIG = {"InstanceType": "g4dn.xlarge", "ImageId": "ami-1", "UserData": "#!/bin/bash\nsleep 60\n"}


class Bench:
    """A provider of a run of its own, and what it wrote."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self.run = f"run-{folder.parent.name}-{time.time_ns()}"
        self.endpoint = make_endpoint(emulator.access)
        self.ec2 = Ec2(self.endpoint)
        self.config = folder / "autoscaler.json"
        self.journal = Journal(folder / "provider.jsonl")
        self.want("i000", 1)
        self.provider = self.fresh()

    def want(self, intent: str, count: int, market: str = "on-demand", zone: str = "") -> None:
        types = {intent: {"max_workers": count}}
        settings = {
            "run": self.run,
            "endpoint": vars(self.endpoint),
            "intents": {
                intent: {
                    "instance_type": CONFIG["InstanceType"],
                    "market": market,
                    "zone": zone,
                    "lease": LEASE,
                }
            },
            "tags": {},
            "journal": str(self.config.with_name("provider.jsonl")),
            "config": str(self.config),
        }
        config = {"available_node_types": types, "provider": settings}
        self.config.write_text(json.dumps(config))

    def fresh(self) -> CloudNodeProvider:
        """Return a provider as a restarted monitor makes it."""
        settings = json.loads(self.config.read_text())["provider"]
        return CloudNodeProvider(settings, self.run)

    def launch(self, **more: Any) -> list[str]:
        answer: dict[str, Any] = self.provider.create_node_with_resources_and_labels(
            {**CONFIG, **more}, TAGS, 1, {}, {}
        )
        return list(answer)

    def workers(self) -> list[str]:
        return self.provider.non_terminated_nodes({"ray-node-type": "worker"})

    def whats(self) -> list[str]:
        return [note.what for note in self.journal.read()]


@pytest.fixture
def bench(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(emulator, tmp_path)
    yield made
    monkeypatch.setattr("cloudtune.infra.sweep._LISTED_SECONDS", 1.0)
    assert sweep(made.ec2, made.run, made.journal, patience=20) == []


def test_console_outlives_the_instance(
    bench: Bench, eventually: Callable[[Callable[[], object]], None]
) -> None:
    (instance,) = bench.launch(UserData="#!/bin/bash\necho ä; exec nosuchpython\n")
    eventually(lambda: "nosuchpython: not found" in bench.ec2.console(instance))
    bench.provider.terminate_nodes([instance])
    assert bench.ec2.console(instance).startswith("ä\n")
    assert bench.ec2.console("i-0123456789abcdef0") == ""


def test_what_was_launched_is_there_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that joins before Ray has heard of its instance stops Ray's autoscaler for good."""
    provider, listed = bench.provider, bench.provider._calls.ours
    now, late = 100.0, True
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def ours(*given: Any, **named: Any) -> list[Instance]:
        return [] if late else listed(*given, **named)

    monkeypatch.setattr(provider._calls, "ours", ours)
    (instance,) = bench.launch()
    assert bench.workers() == [instance]
    assert provider.node_tags(instance)["ray-launch-request"] == "r"
    assert not provider.is_running(instance)
    late = False
    now += 10
    assert bench.workers() == [instance]
    assert len(provider._seen) == 1
    late = True
    now += 10
    assert bench.workers() == [], "it has been listed, so it is gone"
    late = False


def test_what_ec2_never_lists_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with monkeypatch.context() as patch:
        patch.setattr(bench.provider._calls, "ours", lambda *_given, **_named: [])
        (instance,) = bench.launch()
        now += 59
        assert bench.workers() == [instance]
        now += 2
        assert bench.workers() == []


def test_ec2_is_asked_after_each_change(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.endpoint = dataclasses.replace(bench.endpoint, look_seconds=Endpoint("").look_seconds)
    bench.want("i000", 1)
    provider = bench.provider = bench.fresh()
    asked: list[float] = []
    listed, now = provider._calls.ours, 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def ours(*given: Any, **named: Any) -> list[Instance]:
        asked.append(now)
        return listed(*given, **named)

    monkeypatch.setattr(provider._calls, "ours", ours)
    assert bench.workers() == []
    (instance,) = bench.launch()
    assert bench.workers() == [instance]
    asked.clear()
    for _ in range(60 * 4):  # Ray asks several times a second
        assert bench.workers() == [instance]
        now += 0.25
    assert len(asked) == 60 / 3 - 1
    provider.terminate_nodes([instance])
    assert bench.workers() == []


def test_an_intent_is_one_instance_with_its_tags(bench: Bench) -> None:
    (instance,) = bench.launch()
    (result,) = bench.ec2.ours(bench.run)
    assert (result.id, result.intent, result.lease) == (instance, "i000", LEASE)
    assert bench.whats() == ["asking", "launched"]
    assert bench.workers() == [instance]
    assert bench.provider.non_terminated_nodes({"ray-node-type": "head"}) == [
        head_instance(bench.run)
    ]


def test_intent_keeps_market_and_zone(bench: Bench) -> None:
    bench.want("i000", 1, "spot", "us-east-1b")
    (instance,) = bench.launch(**market_request("spot", "us-east-1b"))
    answer = bench.ec2._client.describe_instances(InstanceIds=[instance])
    (result,) = answer["Reservations"][0]["Instances"]
    assert result["InstanceLifecycle"] == "spot"
    assert result["Placement"]["AvailabilityZone"] == "us-east-1b"
    assert result["ClientToken"] == launch_token(
        bench.run, "i000", "g4dn.xlarge", "spot", "us-east-1b"
    )


def test_a_new_monitor_sees_the_same_instance(bench: Bench) -> None:
    first = bench.launch()
    bench.provider = bench.fresh()
    assert bench.launch() == first
    assert len(bench.ec2.ours(bench.run)) == 1


def test_a_lost_answer_buys_nothing_twice(bench: Bench) -> None:
    lost = iter([True, True])

    def lose(**_: object) -> None:
        if next(lost, False):
            raise EndpointConnectionError(endpoint_url="http://127.0.0.1")

    launcher = cast("Ec2", bench.provider._calls)._launcher
    launcher.meta.events.register("after-call.ec2.RunInstances", lose)
    (instance,) = bench.launch()
    assert [result.id for result in bench.ec2.ours(bench.run)] == [instance]
    assert bench.whats() == ["asking", "unanswered", "unanswered", "launched"]


def test_an_intent_whose_instance_ended_is_spent(bench: Bench) -> None:
    bench.launch()
    bench.provider.non_terminated_nodes({})
    bench.provider.terminate_nodes([result.id for result in bench.ec2.ours(bench.run)])
    with pytest.raises(NodeLaunchException, match="launched and ended"):
        bench.launch()
    assert bench.whats() == ["asking", "launched", "returning"]


def test_returned_intent_is_never_launched(bench: Bench) -> None:
    bench.want("i000", 0)
    with pytest.raises(NodeLaunchException, match="given back"):
        bench.launch()
    assert bench.whats() == []


def test_a_sweep_waits_for_late_instances(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch whose answer never came may show up seconds later."""
    bench.journal.write(Note(time.time(), "asking", "i000"))
    hidden = iter([True, True, True])
    real = bench.ec2.ours

    def ours(run: str | None = None, *, ended: bool = True) -> list[Any]:
        return [] if next(hidden, False) else real(run, ended=ended)

    bench.ec2.run_instance("t", {"cloudtune:run": bench.run, "cloudtune:intent": "i000"}, CONFIG)
    monkeypatch.setattr(bench.ec2, "ours", ours)
    monkeypatch.setattr("cloudtune.infra.sweep._LISTED_SECONDS", 4.0)
    assert sweep(bench.ec2, bench.run, bench.journal, patience=20) == []
    (result,) = real(bench.run)
    assert result.state in {"terminated", "shutting-down"}


def refusal(code: str) -> Any:
    def refuse(*_: object, **__: object) -> Any:
        raise ClientError({"Error": {"Code": code}}, "any")

    return refuse


def test_a_sweep_waits_for_credentials(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = bench.ec2.run_instance(bench.run, {"cloudtune:run": bench.run}, CONFIG)
    asked: list[str] = []
    real = bench.ec2.ours

    def ours(run: str | None = None) -> list[Any]:
        asked.append("")
        return refusal("ExpiredToken")() if len(asked) < 3 else real(run)

    monkeypatch.setattr(bench.ec2, "ours", ours)
    assert sweep(bench.ec2, bench.run, bench.journal, patience=20) == []
    assert not {it.id for it in real(bench.run, ended=False)} & {instance}


def test_what_a_sweep_may_not_end_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = bench.ec2.run_instance(bench.run, {"cloudtune:run": bench.run}, CONFIG)
    with monkeypatch.context() as patch:
        patch.setattr(bench.ec2, "terminate", refusal("UnauthorizedOperation"))
        left = sweep(bench.ec2, bench.run, bench.journal, patience=0.1)
        assert [result.id for result in left] == [instance]
    assert sweep(bench.ec2, bench.run, bench.journal, patience=20) == []


def test_an_error_of_ours_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise UnicodeEncodeError("utf-8", "\udc80", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(bench.provider._calls, "run_instance", broken)
    for _ in range(2):
        with pytest.raises(NodeLaunchException):
            bench.launch()
    assert bench.whats() == ["asking", "broken"]
    (*_, note) = bench.journal.read()
    assert (note.intent, note.code) == ("i000", "UnicodeEncodeError")


def test_damaged_lines_of_a_journal_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "provider.jsonl"
    journal = Journal(path)
    first, second = Note(1.0, "asking", "i000"), Note(2.0, "launched", "i000", "i-1")
    journal.write(first)
    with path.open("ab") as file:
        file.write(b"null\n{}\n\xff\n[1]\n" + b'{"at": null, "what": "asking", "intent": "x"}\n')
        file.write(b'{"at": 3.0, "wh')  # and then the power went
    journal.write(second)
    assert list(journal.read()) == [first, second]

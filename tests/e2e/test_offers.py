"""A run that goes on by another offer: a spot instance of four GPUs is gone, a small one is not."""

import json
from pathlib import Path

import pytest

from cloudtune.engine.ledger import read_entries
from cloudtune.experiment import Experiment
from cloudtune.forecast import staged_plans
from cloudtune.forecast.plan_file import VERSION
from cloudtune.forecast.problem import build_problem
from cloudtune.infra.aws.pricing import catalog
from cloudtune.model.catalog import Market
from cloudtune.model.commands import Launch
from cloudtune.model.plans import Allowance, Group, Limits
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.profiles.store import script_hash, write
from cloudtune.runs.job import Job
from tests.bench import Bench, wait_for
from tests.builders import run_plan

pytestmark = pytest.mark.cluster


def measure(instance_type: str, script: Path) -> ScalingProfile:
    return ScalingProfile(
        instance_type=instance_type,
        epoch={1.0: Measurement(0.5)},
        launch=Measurement(0.6),
        boot=Measurement(7.0),
        start=Measurement(4.0),
        resize=Measurement(4.0),
        release=Measurement(1.5),
        script_hash=script_hash(script),
        measured_at="2026-11-20T00:00:00Z",
        source="a test",
    )


def group(
    request: PlanRequest, instance_type: str, market: Market, trials: int
) -> tuple[Group, ...]:
    offers = [rentable.offer for rentable in request.rentables]
    (offer,) = (o for o in offers if (o.instance_type.name, o.market) == (instance_type, market))
    return (Group(offer, 1, 1.0, trials, 1),)


def saved_plan(bench: Bench) -> Path:
    path = bench.experiment(trials=2, first=10, last=20)
    text = path.read_text().replace(
        "[g7.12xlarge], market: on-demand", "[g4dn.12xlarge, g4dn.xlarge], market: any"
    )
    text = text.replace("{deadline: 3m, budget: $2}", "{deadline: 4m, budget: $1}")
    path.write_text(text.replace("max_instances: 2", "max_instances: 1"))
    script = bench.folder / "train.py"
    write(bench.folder / "profile.json", [measure(t, script) for t in TYPES])
    problem = build_problem(Experiment.load(path), [measure(t, script) for t in TYPES])
    request = staged_plans.build_request(problem, Allowance())
    groups = [group(request, TYPES[0], "spot", 2), group(request, TYPES[1], "on-demand", 1)]
    plan = price(request, groups, "by hand")
    limits = Limits(240.0, 1.0)
    job = Job(
        "", problem.experiment, run_plan(plan), request.rentables, limits, 0.0, False, "a test"
    )
    saved = bench.folder / "plan.json"
    saved.write_text(json.dumps({"cloudtune_plan": VERSION, **job.to_json()}))
    return saved


TYPES = ("g4dn.12xlarge", "g4dn.xlarge")


def test_run_survives_lost_spot(bench: Bench) -> None:
    process = bench.start("run", saved_plan(bench))
    wait_for(lambda: any(bench.home.glob("storage/*/t00/epoch-00003/manifest.json")))
    (first,) = bench.alive()
    bench.refuse("RunInstances", "InsufficientInstanceCapacity", InstanceType=TYPES[0])
    bench.end(first["id"])
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "replans: " in out
    report = bench.last_report()
    assert {trial["epoch"] for trial in report["trials"]} == {20, 10}
    longest = max(report["trials"], key=lambda trial: int(trial["epoch"]))
    assert sorted(map(int, longest["history"])) == list(range(1, 21)), "no epoch is missing"
    assert max(size["instances"] for size in report["fleet"]) == 1, "never more than one"
    assert {i["instance_type"] for i in report["instances"]} == set(TYPES)
    assert {i["state"] for i in report["instances"]} == {"terminated"}
    # Each is billed at its own price, and for a minute at least.
    [ledger] = bench.home.glob("runs/*/ledger.jsonl")
    offers = list_requests(ledger)
    assert offers[0] == (TYPES[0], "spot")
    # A dry pool is asked where EC2 likes and in us-east-1a to f, without a storm of retries.
    asked = [c["intent"] for c in report["provider_calls"] if c["what"] == "asking"]
    assert len(asked) == len(set(asked)), "each intent is asked for once"
    assert 2 + 7 <= len(asked) <= 40, asked
    launched = [c["intent"] for c in report["provider_calls"] if c["what"] == "launched"]
    assert len(launched) == len(report["instances"]) == 2
    known = catalog("us-east-1", ("on-demand", "spot"))
    by_hand = 0.0
    for item, (name, market) in zip(report["instances"], [offers[0], offers[-1]], strict=True):
        offer = known.offer(name, "spot" if market == "spot" else "on-demand")
        by_hand += offer.charge(item["ended_at"] - item["launched_at"])
    assert report["dollars"]["actual"] == pytest.approx(by_hand, rel=0.05)


def list_requests(ledger: Path) -> list[tuple[str, str]]:
    """Return the instance type and the market of each request, in their order."""
    commands = [command for entry in read_entries(ledger) for command in entry.commands]
    return [(c.instance_type, c.market) for c in commands if isinstance(c, Launch)]

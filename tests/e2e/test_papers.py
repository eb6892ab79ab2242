"""The papers' strategies with real workers: what each row claims is seen in the run, and billed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cloudtune.engine.ledger import Entry, read_entries, read_header
from cloudtune.infra.aws.pricing import catalog
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochDone, Event, TrialFailed, TrialLost
from cloudtune.runs.job import Job
from cloudtune.runs.report import simulate
from tests.bench import Bench

pytestmark = [pytest.mark.cluster, pytest.mark.walk("each strategy of the papers is a whole run")]

LIMITS = {"deadline": "10m", "budget": "$2"}

NETWORKS = """
import tempfile
from pathlib import Path
from typing import Literal
import torch
import cloudtune
from cloudtune import models

def base():
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    return torch.nn.Sequential(*layers)

def depth(network, times: Literal[1, 2, 3]):
    return models.repeat(network, "2", times)

MODEL = models.space(base, depth)

def train(config):
    torch.manual_seed(0)
    network = MODEL.build(config["model"])
    checkpoint = cloudtune.get_checkpoint()
    taken = new = 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            inherited = cloudtune.inherit(network, torch.load(Path(folder) / "state.pt"))
            taken = len(inherited.taken)
            new = len(inherited.new)
    optimizer = torch.optim.SGD(network.parameters(), lr=config["lr"])
    x = torch.randn(64, 4)
    for epoch in cloudtune.epochs():
        loss = (network(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers = {"loss": float(loss.detach()), "layers": len(network), "taken": taken, "new": new}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(network.state_dict(), Path(folder) / "state.pt")
            cloudtune.report(numbers, cloudtune.Checkpoint.from_directory(folder))
"""

BATCHES = """
import torch
from torch.utils.data import DataLoader, Dataset
import cloudtune

class Points(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        with open({loaded!r}, "a") as file:
            file.write(".")
        return torch.full((4,), float(index))

def train(config):
    model = torch.nn.Linear(4, 1)
    loader = cloudtune.prepare_data_loader(DataLoader(Points(), 4, num_workers=1), shared=True)
    for epoch in cloudtune.epochs():
        seen = sum(float(batch[:, 0].sum()) for batch in loader)
        cloudtune.report({{"loss": config["lr"], "seen": seen}})
"""


class Run(NamedTuple):
    """A run that is over: its report, its ledger, its experiment and where its script is."""

    report: dict[str, Any]
    entries: list[Entry]
    path: Path

    @property
    def events(self) -> list[Event]:
        return [entry.event for entry in self.entries]

    @property
    def starts(self) -> list[StartTrial]:
        return [c for entry in self.entries for c in entry.commands if isinstance(c, StartTrial)]

    def widths(self) -> dict[str, list[float]]:
        widths: dict[str, list[float]] = {}
        for start in self.starts:
            widths.setdefault(start.session.partition(".")[0], []).append(start.width)
        return widths


def ran(bench: Bench, strategy: Mapping[str, object], **changes: Any) -> Run:
    """Run an experiment to its end; its winner, its bill and what it leaves are checked here."""
    script = changes.pop("script", "")
    epoch = changes.pop("epoch", 0.3)
    path = bench.experiment(changes.pop("trouble", "pass"))
    if script:
        (bench.folder / "train.py").write_text(script)
    bench.profile(epoch=epoch, start=2.0)
    experiment: dict[str, Any] = {
        "name": "small",
        "train": "train.py:train",
        "metric": {"name": "loss", "mode": "min"},
        "search": {"lr": {"uniform": [0.01, 0.1]}},
        "limits": LIMITS,
        "cloud": {"instances": ["g7.12xlarge"], "max_instances": 2},
        "strategy": strategy,
        "eta": 2,
    }
    path.write_text(json.dumps({**experiment, **changes}))  # JSON is YAML
    bench("run", path).succeeded("0 instances left (checked ")
    report = bench.last_report()
    entries = list(read_entries(bench.home / "runs" / report["run"] / "ledger.jsonl"))
    run = Run(report, entries, path)
    assert not [e for e in run.events if isinstance(e, TrialFailed | TrialLost)]
    values = [value for trial in report["trials"] for value in trial["history"].values()]
    assert report["best"]["value"] == min(values)
    offer = catalog("us-east-1", ("on-demand",)).offer("g7.12xlarge", "on-demand")
    bill = sum(offer.charge(it["ended_at"] - it["launched_at"]) for it in report["instances"])
    assert 0 < bill <= 2.0
    assert bill == pytest.approx(report["dollars"]["actual"], rel=0.1)
    return run


def test_asha_promotes_before_its_rung_is_full(bench: Bench) -> None:
    run = ran(bench, {"name": "asha", "fleet": "constant:1"}, trials=6, epochs={"min": 1, "max": 4})
    reports = [event for event in run.events if isinstance(event, EpochDone)]
    first = next(n for n, event in enumerate(reports) if event.epoch == 2)
    at_first_rung = {event.session for event in reports[:first] if event.epoch == 1}
    assert 2 <= len(at_first_rung) < 6
    assert max(trial["epoch"] for trial in run.report["trials"]) == 4


def test_hyperband_begins_brackets_at_several_rungs(bench: Bench) -> None:
    run = ran(bench, {"name": "hyperband"}, trials=8, epochs={"min": 1, "max": 4})
    assert {start.until_epoch for start in run.starts if start.start_epoch == 0} >= {1, 2}
    epochs = sorted(trial["epoch"] for trial in run.report["trials"])
    assert (epochs[0], epochs[-1]) == (1, 4)


def test_bohb_draws_from_a_model_of_earlier_results(bench: Bench) -> None:
    """Other results, those of a simulated run of the same job, lead to other configurations."""
    run = ran(bench, {"name": "bohb"}, trials=12, epochs={"min": 1, "max": 2})
    header = read_header(bench.home / "runs" / run.report["run"] / "ledger.jsonl")
    simulated = simulate(Job.from_json(header)).policy.trials.values()
    drawn = [it["config"] for it in sorted(run.report["trials"], key=lambda it: it["trial"])]
    others = [dict(trial.trial.config) for trial in simulated]
    assert drawn[:2] == others[:2], "at random"
    assert drawn != others


def test_pbt_passes_weights_on_to_other_networks(bench: Bench) -> None:
    """Each network is the one of its configuration; a clone's weights are those of its parent."""
    run = ran(
        bench,
        {"name": "pbt", "inherit": True},
        script=NETWORKS,
        search={"lr": {"loguniform": [0.001, 0.05]}, "model": {"mutators": "train.py:MODEL"}},
        trials=12,  # a population of eight, and four clones
        epochs={"min": 1, "max": 10},
    )
    reports = [event for event in run.events if isinstance(event, EpochDone)]
    configs = {trial["trial"]: trial["config"] for trial in run.report["trials"]}
    for event in reports:
        times = configs[event.session.partition(".")[0]]["model/depth/times"]
        assert event.metrics["layers"] == 3 + times
    clones = [start for start in run.starts if start.checkpoint and start.session.endswith(".1")]
    assert clones, "no trial was cloned"
    for start in clones:
        own = next(event for event in reports if event.session == start.session)
        assert own.metrics["taken"] >= 4
    changed = [event.metrics for event in reports if event.metrics["new"] > 0]
    assert changed, "no clone has another network than its parent"


def test_hypersched_widens_what_leads_towards_the_deadline(bench: Bench) -> None:
    run = ran(
        bench,
        {"name": "hypersched-patient", "fleet": "constant:1"},
        trials=4,
        epochs={"min": 5, "max": 60},
        limits={**LIMITS, "deadline": "3m"},
    )
    assert {width for widths in run.widths().values() for width in widths[:1]} == {1.0}
    assert run.widths()[run.report["best"]["trial"]][-1] == 2.0


def test_static_fluid_divides_the_gpus_at_each_rung(bench: Bench) -> None:
    strategy = {"name": "halving", "allocator": "static-fluid", "fleet": "constant:1"}
    run = ran(bench, strategy, trials=4, epochs={"min": 10, "max": 40})
    widths = run.widths()
    assert {trial: sizes[0] for trial, sizes in widths.items()} == dict.fromkeys(widths, 1.0)
    assert widths[run.report["best"]["trial"]][-1] == 2.0
    for change in run.report["width_changes"]:
        after_rung = [change["last_epoch"] - rung for rung in (10, 20)]
        assert any(0 <= epochs <= 2 for epochs in after_rung), "they keep it until they go on"


def test_dynamic_fluid_widens_in_mid_training(bench: Bench) -> None:
    """Of two trials on two GPUs the slower one takes over the other's GPU when that has ended."""
    run = ran(
        bench,
        {"name": "grid", "allocator": "dynamic-fluid", "fleet": "constant:1"},
        trouble="import time; time.sleep(0.9 * config['slow'])",
        search={"lr": 0.05, "slow": {"grid": [0, 1]}},
        trials=2,
        epochs={"min": 60, "max": 60},
    )
    [change] = run.report["width_changes"]
    assert (change["before"], change["after"]) == (1.0, 2.0)
    assert 0 < change["last_epoch"] < 60
    assert change["next_epoch"] == change["last_epoch"] + 1


def test_shared_input_loads_batches_once(bench: Bench) -> None:
    run = ran(
        bench,
        {"name": "random", "fleet": "constant:1"},
        script=BATCHES.format(loaded=str(bench.home / "loaded")),
        trials=2,
        epochs={"min": 3, "max": 3},
    )
    for event in run.events:
        if isinstance(event, EpochDone):
            assert event.metrics["seen"] == sum(range(12))
    assert (bench.home / "loaded").read_text() == "." * 3 * 12

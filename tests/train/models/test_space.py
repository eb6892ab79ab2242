"""Networks from a search over them: drawn, trained, and built again from what the record has."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from cloudtune import models
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.model.events import EpochReport
from cloudtune.model.trial import Trial, nest
from cloudtune.runs.job import make_sampler
from cloudtune.train.checkpoint import Checkpoint, CheckpointStore
from cloudtune.train.user_script import load_function
from tests.bench import python
from tests.train.sessions import run_to_grant

pytestmark = pytest.mark.usefixtures("as_a_worker")

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/models"
# Another process, which has the script and a line of the record.
REBUILD = """
import json, sys
from pathlib import Path
import torch
from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.user_script import load_function
from cloudtune.model.trial import nest

script = load_function(Path(sys.argv[1]), "train.py:train").__globals__
record = json.loads(sys.argv[2])
network = script["MODEL"].build(nest(record["config"])["model"])
with Checkpoint.from_storage(record["checkpoint"]).as_directory() as folder:
    network.load_state_dict(torch.load(Path(folder, "state.pt"))["network"])
images = script["load_digits"]()[1].tensors[0][:20]
print(json.dumps(network.eval()(images).tolist()))
"""


def train(trial: Trial, store: CheckpointStore, **options: Any) -> EpochReport:
    """Train a trial for an epoch more, as a worker does."""
    own = {"trial_id": trial.id, "metric_name": "val_accuracy", "max_epoch": 1, "store": store}
    script = load_function(EXAMPLE, "train.py:train")
    return run_to_grant(script, config=nest(trial.config), **{**own, **options})[-1]


def test_the_winners_network_comes_back_from_its_record(tmp_path: Path) -> None:
    experiment = Experiment.load(EXAMPLE / "experiment.yaml")
    sampler, store = make_sampler(experiment), CheckpointStore(str(tmp_path))
    trials = [trial for _ in range(4) if (trial := sampler.ask()) is not None]
    networks = [{n: v for n, v in trial.config.items() if "model/" in n} for trial in trials]
    assert any(network != networks[0] for network in networks)
    ended = [(train(trial, store), trial) for trial in trials]
    best, winner = max(ended, key=lambda item: item[0].metrics["val_accuracy"])

    record = json.dumps({"config": dict(winner.config), "checkpoint": best.checkpoint})
    done = python(REBUILD, str(EXAMPLE), record, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")

    script = load_function(EXAMPLE, "train.py:train").__globals__
    network = script["MODEL"].build(nest(winner.config)["model"])
    assert best.checkpoint is not None
    with Checkpoint.from_storage(best.checkpoint).as_directory() as folder:
        network.load_state_dict(torch.load(Path(folder, "state.pt"))["network"])
    images, labels = script["load_digits"]()[1].tensors
    scores = network.eval()(images)
    assert torch.allclose(torch.tensor(json.loads(done.stdout)), scores[:20], atol=1e-6)
    right = (scores.argmax(1) == labels).float().mean().item()
    assert right == pytest.approx(best.metrics["val_accuracy"], abs=1e-6)


def test_a_clone_has_anothers_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The parent has learned; a clone with another layer goes on from there, a new one doesn't."""
    plain = {"model/block": "none", "model/regular": "none", "model/activation/kind": "relu"}
    narrow = {"lr": 0.03, "model/width/channels": 8, "model/width/hidden": 32, **plain}
    parent = Trial("t00", narrow)
    clone = Trial("t01", {**narrow, "model/block": "batch_norm"})
    store = CheckpointStore(str(tmp_path))
    before = train(parent, store)
    after = train(clone, store, restore=before.checkpoint, max_epoch=2)
    assert after.epoch == 2
    assert "began from another network: 8 tensors taken over, 5 new" in capfd.readouterr().out
    alone = train(Trial("t02", clone.config), store)
    assert after.metrics["val_loss"] < alone.metrics["val_loss"] / 2


def base() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))


def width(network: nn.Module, units: Literal[4, 8]) -> nn.Module:
    models.replace(network, "2", nn.Linear(units, 1))
    return models.replace(network, "0", nn.Linear(2, units))


def tanh(network: nn.Module) -> nn.Module:
    return models.replace(network, "1", nn.Tanh())


def forgetful(network: nn.Module, on: bool) -> None:
    models.replace(network, "1", nn.Tanh())


def kinds(network: nn.Module) -> list[str]:
    return [type(item).__name__ for item in network.children()]


def test_mutators_are_applied_by_the_named_choices() -> None:
    space = models.space(base, width, models.one_of("act", None, tanh))
    assert kinds(space.build({})) == ["Linear", "ReLU", "Linear"]
    assert kinds(space.build({"act": "none"})) == ["Linear", "ReLU", "Linear"]
    wide = space.build({"width": {"units": 8}, "act": "tanh"})
    assert kinds(wide) == ["Linear", "Tanh", "Linear"]
    assert [parameter.shape for parameter in wide.parameters()] == [(8, 2), (8,), (1, 8), (1,)]
    flat = space.build({"width/units": 8, "act": "tanh"})
    assert [parameter.shape for parameter in flat.parameters()] == [(8, 2), (8,), (1, 8), (1,)]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"widht": {"units": 8}}, "have widht, and there is no such mutator.*Did you mean 'width'"),
        ({"width": 8}, "the choices of width are 8; give them by their names"),
        ({"width": {"unit": 8}}, "the choices of width are unit: "),
        ({"width": {}}, "the choices of width are none: "),
        ({"act": "tan"}, "act is 'tan'; it may be none, tanh. Did you mean 'tanh'"),
        ({"forgetful": {"on": True}}, r"forgetful\(\) gave nothing; let it return the network"),
    ],
)
def test_choices_that_are_none_of_the_spaces_are_refused(choices: Any, message: str) -> None:
    space = models.space(base, width, models.one_of("act", None, tanh), forgetful)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        space.build(choices)


def no_type(network: nn.Module, units: int) -> nn.Module:
    return network


def test_a_space_that_says_nothing_is_refused_at_once() -> None:
    for make, result in (
        (lambda: models.space(base), "has no mutators"),
        (lambda: models.space(base, tanh), r"tanh\(\) has no choices"),
        (lambda: models.space(base, width, width), "width stands there twice"),
        (lambda: models.space(base, no_type), "units of no_type.. doesn't say what it may be"),
        (lambda: models.one_of("act"), "has nothing to choose from"),
        (lambda: models.one_of("act", lambda network: network), "has no name"),
    ):
        with pytest.raises(UsageError, match=result):
            make()

"""Every GPU that a provider rents can be compared, or a line says why not."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import correlation, fmean, pstdev

import pytest
from click.testing import CliRunner

from cloudtune.api.experiments import load_experiment
from cloudtune.cli.plan import plan
from cloudtune.forecast.prediction import RUNS, draw_rentable
from cloudtune.infra.aws import pricing
from cloudtune.lifecycle.planning import load_problem
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.plans import Rentable
from tests.builders import profile

YAML = """
name: every
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {loguniform: [1e-4, 1]}}
trials: 4
epochs: {min: 1, max: 4}
limits: {deadline: 4h, budget: $40}
cloud: {provider: emulated, instances: ['*']}
"""


@pytest.fixture
def experiment_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("def train(config, context): pass\n")
    path = tmp_path / "every.yaml"
    path.write_text(YAML)
    return path


def test_every_nvidia_gpu_is_offered_or_named(experiment_file: Path) -> None:
    # With a cap of one's own emulated machines don't have to fit on this one.
    experiment = load_experiment(experiment_file, {"max_instances": 4})
    problem = load_problem(experiment, "resnet50-cifar10@v100")
    offered = {rentable.offer.instance_type.name for rentable in problem.rentables}
    reasons = pricing.unfit()
    for name, kind in pricing.instance_types().items():
        assert name in offered or reasons[name]
        if kind.gpu_maker == "nvidia" and kind.gpus > 0 and not reasons.get(name):
            assert name in offered
    left_out = [note for note in problem.notes if note.startswith("not among the offers: ")]
    for reason in set(reasons.values()):
        assert any(note.endswith(reason) for note in left_out)
    for rentable in problem.rentables:
        assert max(rentable.profile.widths) == rentable.offer.gpus


def test_the_plan_says_which_types_it_leaves_out(experiment_file: Path) -> None:
    options = [str(experiment_file), "--profile", "resnet50-cifar10@v100", "--verbose"]
    result = CliRunner().invoke(plan, options, catch_exceptions=False)
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "g6f.large, g6f.xlarge, g6f.2xlarge and 2 more types: it has only a part" in text
    assert "dl1.24xlarge: its accelerators are habana's" in text


def rentable(gpu: str, name: str, **errors: float) -> Rentable:
    machine = InstanceType(name, 1, gpu, 16384, 8, 65536)
    made = replace(profile({1.0: 10.0}, name=name), **errors)  # type: ignore[arg-type]
    return Rentable(Offer(machine, "on-demand", "us-east-1", 1.0), made, 4)


def logs(one: Rentable) -> list[float]:
    seconds = [draw_rentable(one, run, 17).profile.epoch_seconds(1.0) for run in range(RUNS)]
    return [math.log(each / 10.0) for each in seconds]


def test_an_error_common_to_all_types_moves_them_together() -> None:
    assert logs(rentable("t4", "a", error=0.4)) == logs(rentable("a100", "b", error=0.4))


def test_gpu_error_moves_its_types_together() -> None:
    t4 = logs(rentable("t4", "a", gpu_error=0.4))
    assert t4 == logs(rentable("T4", "b", gpu_error=0.4))
    a100 = logs(rentable("a100", "c", gpu_error=0.4))
    common = logs(rentable("t4", "a", error=0.4))
    for one in (t4, a100):
        assert one[0] == 0.0, "a forecast of one run is the median"
        assert fmean(one) == pytest.approx(0.0, abs=0.05)
        assert pstdev(one) == pytest.approx(0.4, abs=0.05)
    assert abs(correlation(t4, a100)) < 0.4
    assert abs(correlation(t4, common)) < 0.4
    assert (
        draw_rentable(rentable("t4", "a", error=0.4, gpu_error=0.4), 3, 17).profile.speed_error
        == 0.0
    )

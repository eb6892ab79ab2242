"""A script that calls what isn't there is refused before anything is rented, with what to write."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import cloudtune
from cloudtune.cli.main import cli
from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from tests.builders.experiments import write_experiment

EXPERIMENT = {
    "name": "ports",
    "train": "train.py:fit",
    "metric": {"name": "accuracy", "mode": "max"},
    "search": {"lr": {"loguniform": [0.001, 0.1]}, "batch_size": {"choice": [32, 64]}},
    "trials": 4,
    "epochs": {"min": 1, "max": 4},
    "limits": {"deadline": "1h", "budget": 5},
    "cloud": {"instances": ["p3.2xlarge"]},
}


def list_warnings(folder: Path, source: str) -> list[str]:
    """Return what is wrong with a script, line by line."""
    path = write_experiment(folder, json.dumps(EXPERIMENT), source)
    try:
        Experiment.load(path).check_train()
    except ExperimentError as error:
        return str(error).replace(f"{folder}/", "").splitlines()
    return []


IMPORTS = {
    "import cloudtune as ray": "ray.train.report({}); ray.train.torch.prepare_model(1)",
    "from cloudtune import train": "train.report({}); train.torch.backward(1)",
    "import cloudtune.train.torch": "cloudtune.train.torch.get_devices(); cloudtune.report({})",
    "import cloudtune as t": "t.report({}, checkpoint=t.Checkpoint.from_directory('.'))",
    "from cloudtune.train import Checkpoint, report": "report({}, Checkpoint('x'))",
    "from cloudtune.train.torch import prepare_data_loader": "prepare_data_loader(1)",
    "import cloudtune.clock": "cloudtune.clock.unix_time()",
    "import cloudtune": "cloudtune.train.get_context().get_local_world_size()",
    "import ray, ray.data": "ray.data.range(3)",
    "try:\n    from ray import train\nexcept ImportError:\n    import cloudtune as train": "train",
    "from ray import tune": "tune.report({})  # cloudtune: leave",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_a_script_of_ray_runs_with_its_import_changed(tmp_path: Path, line: str) -> None:
    assert list_warnings(tmp_path, f"{line}\ndef fit(config):\n    {IMPORTS[line]}\n") == []


RAY = "is Ray's, which doesn't run this script"
LEAVE_OUT = "leave it out: cloudtune starts the training function that the experiment file names"
WRONG = {
    "import ray.train; ray.train.report({})": f"ray.train.report {RAY}; write cloudtune.report",
    "from ray import tune; tune.report({})": f"ray.tune.report {RAY}; write cloudtune.report",
    "from ray.air import session; session.get_world_size()": (
        f"ray.air.session.get_world_size {RAY}; write cloudtune.get_context().get_world_size()"
    ),
    "from ray.train import Checkpoint as C; C.from_directory(1)": (
        f"ray.train.Checkpoint.from_directory {RAY}; write cloudtune.Checkpoint.from_directory"
    ),
    "import ray.train.torch as rt; rt.get_devices()": (
        f"ray.train.torch.get_devices {RAY}; write cloudtune.train.torch.get_devices"
    ),
    "from ray.train import ScalingConfig; ScalingConfig()": f"ScalingConfig {RAY}; {LEAVE_OUT}",
    "from ray import tune; tune.uniform(0, 1)": (
        f"ray.tune.uniform {RAY}; the search space stands in the experiment file, under `search`"
    ),
    "from ray.train.lightning import RayDDPStrategy as S; S()": (
        "cloudtune.integrations.lightning.Trainer takes the place of lightning's Trainer"
    ),
    "from ray.train.huggingface.transformers import prepare_trainer as p; p(1)": (
        "write cloudtune.integrations.transformers.prepare(trainer)"
    ),
    "import cloudtune as t; b = config['batch_size'] // t.get_context().get_world_size(); "
    "t.prepare_data_loader(b)": (
        "prepare_data_loader() divides the batch among the workers itself; give the DataLoader the "
        "batch of all of them"
    ),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_not_there_is_reported_with_its_line(tmp_path: Path, line: str) -> None:
    (result,) = list_warnings(tmp_path, f"def fit(config):\n    {line}\n")
    assert result.startswith("train.py:2: ")
    assert WRONG[line] in result


def test_only_reachable_names_are_checked(tmp_path: Path) -> None:
    """The driver of a script that Ray runs as well stays as it is."""
    script = """
from ray import tune
import cloudtune
class Net:
    def forward(self): return tune.choice([1])
def driver(): tune.Tuner(fit).fit()
def fit(config, tune_it=None):
    local(cloudtune); Net()
    cloudtune.report({})
def local(tune): tune.report()
if __name__ == "__main__":
    driver()
"""
    lines = [line.partition(" ")[0] for line in list_warnings(tmp_path, script)]
    assert lines == ["train.py:5:"]
    lines = [line.partition(" ")[0] for line in list_warnings(tmp_path, f"{script}driver()\n")]
    assert lines == ["train.py:5:", "train.py:6:"], "an import of the file would run it"


def test_many_mistakes_are_reported_at_once_and_not_endlessly(tmp_path: Path) -> None:
    lines = "".join(f"    ray.train.report({n})\n" for n in range(20))
    result = list_warnings(tmp_path, f"import ray.train\ndef fit(config):\n{lines}")
    assert len(result) == 9
    assert result[-1] == "… and 12 more"


@pytest.mark.parametrize("command", ["plan", "profile", "run"])
def test_each_command_refuses_it_before_anything_is_rented(tmp_path: Path, command: str) -> None:
    assert list_warnings(tmp_path, "import ray.train\ndef fit(config): ray.train.report(1)")
    options = ["--profile", "resnet50-cifar10@v100"] if command != "profile" else []
    file = str(tmp_path / "experiment.yaml")
    done = CliRunner().invoke(cli, [command, file, *options], env={"CLOUDTUNE_HOME": str(tmp_path)})
    assert isinstance(done.exception, ExperimentError), done.output
    assert done.exception.exit_code == 2
    assert "train.py:2: ray.train.report is Ray's" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment.yaml", "train.py"]


def test_the_look_imports_nothing_heavy(tmp_path: Path) -> None:
    list_warnings(
        tmp_path, "import cloudtune as c\ndef fit(config): c.prepare_model(1); c.load_run('x')"
    )
    code = (
        "import sys; from cloudtune.experiment import Experiment; "
        f"Experiment.load({str(tmp_path / 'experiment.yaml')!r}).check_train(); "
        "print(sorted({'ray', 'torch', 'lightning', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    folder = Path(cloudtune.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

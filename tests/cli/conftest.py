"""A command line that must not touch any cloud."""

from functools import partial
from pathlib import Path

import pytest

from cloudtune.forecast import alternatives, prediction
from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.profiles.store import write
from tests.bench import EXPERIMENT, TRAIN, Command, called, script_profile


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Return a command line that must not touch any cloud."""
    (tmp_path / "train.py").write_text(TRAIN.format(trouble="pass"))
    text = EXPERIMENT.format(trials=16, first=2, last=16).replace("g7.12xlarge", "g4dn.12xlarge")
    text = text.replace("deadline: 3m", "deadline: 30m")
    (tmp_path / "experiment.yaml").write_text(text)
    write(tmp_path / "profile.json", [script_profile(tmp_path / "train.py")])
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    # One run, not 31.
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 1)
    monkeypatch.setattr(alternatives, "_POOL_RUNS", 1)
    monkeypatch.chdir(tmp_path)

    def no_cloud(*_: object) -> None:
        raise AssertionError("planning has asked a cloud")

    monkeypatch.setattr(Ec2, "__init__", no_cloud)
    monkeypatch.setattr("cloudtune.aws_session.session", no_cloud)

    return partial(called, capsys)

"""Folders of data on their way to instances: uploaded once, by content."""

from pathlib import Path

import pytest

from cloudtune.experiment import Experiment
from cloudtune.lifecycle.data import with_data
from cloudtune.private_files import a_guest, keep_private
from tests.experiment.test_variables import load


def address(experiment: Experiment) -> str:
    with a_guest():
        keep_private()  # as each command does
        return with_data(experiment).data_sources["sets"]


@pytest.mark.usefixtures("at_home")
def test_each_content_is_uploaded_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "a").write_text("1")
    experiment = load(tmp_path, f"data: {{sets: {folder}}}")
    first = address(experiment)
    assert f"data.sets: 0 MB uploaded to {first}" in capsys.readouterr().err
    assert Path(first, "a").read_text() == "1"
    assert address(experiment) == first
    assert "uploaded" not in capsys.readouterr().err, "it is there"
    (folder / "a").write_text("2")
    assert address(experiment) != first
    assert Path(first, "a").read_text() == "1", "an earlier run has what it had"

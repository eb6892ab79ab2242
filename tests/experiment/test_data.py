"""`data` of an experiment file: what it takes, and each mistake with its line."""

from pathlib import Path

import pytest

from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from tests.experiment.test_variables import load


def test_a_source_is_a_folder_or_an_address(tmp_path: Path) -> None:
    written = "data: {a: s3://bucket/sets/, b: s3://bucket, c: sets, d: ~/sets, e: /sets}"
    experiment = load(tmp_path, written)
    assert experiment.data_sources == {
        "a": "s3://bucket/sets",
        "b": "s3://bucket",
        "c": str(tmp_path / "sets"),
        "d": str(Path.home() / "sets"),
        "e": "/sets",
    }
    assert Experiment.from_json(experiment.to_json()) == experiment


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("data: {../a: sets}", "data: '../a' can't name a folder"),
        ("data: {a/b: sets}", "data: 'a/b' can't name a folder"),
        ("data: {a: gs://bucket/sets}", "data.a: 'gs://bucket/sets' is no address in S3"),
        ("data: {a: 's3://bucket/*'}", "data.a: 's3://bucket/*' is no address in S3"),
        ("data: {a: s3:///sets}", "data.a: 's3:///sets' is no address in S3"),
        ("data: {a: }", "data.a: null is no folder"),
        ("data: s3://bucket", "data: 's3://bucket' is not a mapping"),
    ],
)
def test_mistakes_have_their_line(tmp_path: Path, written: str, complaint: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        load(tmp_path, written)
    assert str(refused.value).startswith(f"{tmp_path}/experiment.yaml:7: {complaint}")

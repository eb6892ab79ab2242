"""Copies of data on a node: complete or not there, and shared by the agents of a run."""

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from cloudtune.infra.emulator.service import stop_emulator
from cloudtune.infra.node.data import DataError, NodeData
from tests.aws_stand_in.account import found_by_boto3, start

SOURCE = "s3://theirs/sets"


@pytest.fixture(autouse=True)
def bucket(warm_emulators: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found_by_boto3(start(tmp_path / "aws").access, monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    boto3.client("s3", "us-east-1").create_bucket(Bucket="theirs")
    put("a", b"a")
    yield
    stop_emulator(tmp_path / "aws", only_if_idle=False)


def put(name: str, data: bytes) -> None:
    boto3.client("s3", "us-east-1").put_object(Bucket="theirs", Key=f"sets/{name}", Body=data)


def beside(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


def test_agents_of_a_run_share_a_copy(tmp_path: Path) -> None:
    first, second, other = (NodeData({"d": SOURCE}, run) for run in ("run", "run", "another"))
    code, its = beside(tmp_path, "code"), beside(tmp_path, "its")
    first.provide(code)
    put("b", b"b")  # comes too late for the run
    second.provide(code)
    other.provide(its)
    assert [path.name for path in (code / "d").iterdir()] == ["a"]
    assert (code / "d").resolve().stat().st_mode & 0o077 == 0, "others may not read it"
    assert sorted(path.name for path in (its / "d").iterdir()) == ["a", "b"]
    first.close()
    assert (code / "d" / "a").read_text() == "a", "another agent has it"
    second.close()
    other.close()
    assert not list(tmp_path.glob("cloudtune-data-*"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_copy_of_another_users_is_refused(tmp_path: Path) -> None:
    first, second = NodeData({"d": SOURCE}, "run"), NodeData({"d": SOURCE}, "run")
    code = beside(tmp_path, "code")
    first.provide(code)
    os.chown((code / "d").resolve(), 12345, -1)
    with pytest.raises(DataError, match=r"data\.d: .* is another user's"):
        second.provide(beside(tmp_path, "its"))
    first.close()


def test_a_name_that_leads_out_is_refused(tmp_path: Path) -> None:
    put("../../escaped", b"x")
    data = NodeData({"d": SOURCE}, "run")
    with pytest.raises(DataError, match=r"data\.d: s3://theirs/sets can't be copied:"):
        data.provide(beside(tmp_path, "code"))
    assert not list(tmp_path.rglob("escaped"))


def test_a_file_in_its_place_stays(tmp_path: Path) -> None:
    code = beside(tmp_path, "code")
    (code / "d").write_text("mine")
    data = NodeData({"d": SOURCE}, "run")
    with pytest.raises(DataError, match="d is in the script's folder already"):
        data.provide(code)
    assert (code / "d").read_text() == "mine"
    data.close()


@pytest.mark.parametrize(
    ("source", "problem"),
    [("s3://theirs/none", "nothing is below"), ("/none", "this machine has no folder /none")],
)
def test_what_is_not_there_is_named(tmp_path: Path, source: str, problem: str) -> None:
    with pytest.raises(DataError, match=rf"data\.d: .*{problem}"):
        NodeData({"d": source}, "run").provide(tmp_path)

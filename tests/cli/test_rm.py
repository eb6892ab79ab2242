"""`cloudtune rm`: a run goes with its checkpoints and logs, unless it is alive or may bill."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.processes import ProcessGroup
from cloudtune.infra.provider import Cloud, Endpoint, Instance
from cloudtune.lifecycle import cleanup, measuring, removal
from cloudtune.runs import control
from cloudtune.runs.job import Job
from tests.bench import Bench


@pytest.fixture
def run(bench: Bench) -> Path:
    """A run's folder; its storage has a checkpoint of 9,000 bytes and a log."""
    old = os.umask(0o077)
    folder = bench.home / "runs" / "small-1"
    folder.mkdir(parents=True)
    header = {"cloudtune_ledger": 3, "experiment": {"storage": "~/.cloudtune/storage"}}
    (folder / "ledger.jsonl").write_text(json.dumps(header) + "\n")
    fill(bench.home / "storage" / folder.name)
    os.umask(old)
    return folder


def fill(stored: Path) -> None:
    for name, data in (("t00/epoch-00001/state.pt", b"x" * 9000), ("logs/t00.1.0.log", b"hello")):
        (stored / name).parent.mkdir(parents=True)
        (stored / name).write_bytes(data)


def test_rm_removes_what_it_shows_after_yes(bench: Bench, simulated: list[Job]) -> None:
    run = bench.ran()
    fill(bench.home / "storage" / run.name)
    stored = bench.home / "storage" / run.name
    other = bench.home / "storage" / "another"
    fill(other)
    done = bench.here("rm", run.name)
    assert (done.code, run.is_dir(), stored.is_dir()) == (2, True, True)
    assert f"  2 files, 9.01 kB in {stored}\n" in done.out
    assert "nothing was removed: add --yes" in done.err
    done = bench.here("rm", run.name, "--yes")
    assert (done.code, run.exists(), stored.exists()) == (0, False, False)
    assert done.out.splitlines()[-1].startswith("Removed 1 run, ")
    assert other.is_dir()
    assert "No run on this machine yet" in bench.here("runs").out


def test_what_links_point_to_stays(bench: Bench, run: Path) -> None:
    elsewhere = bench.folder / "elsewhere"
    fill(elsewhere)
    stored = bench.home / "storage" / run.name
    (stored / "t01").symlink_to(elsewhere)
    (stored / "t00" / "epoch-00002").symlink_to(elsewhere)
    (run / "linked").symlink_to(elsewhere)
    (stored / "nowhere").symlink_to("none")
    bench.here("rm", run.name, "--yes").succeeded("  5 files, 9.")
    assert not run.exists()
    assert not stored.exists()
    assert (elsewhere / "logs" / "t00.1.0.log").exists()


def test_rm_removes_a_linked_run(bench: Bench, run: Path) -> None:
    elsewhere = bench.folder / "elsewhere"
    stored = bench.home / "storage" / run.name
    stored.rename(elsewhere)
    stored.symlink_to(elsewhere)
    bench.here("rm", run.name, "--yes").succeeded(
        f"  {stored}, a link; {elsewhere}, which it points to, stays"
    )
    assert not stored.is_symlink()
    assert (elsewhere / "logs" / "t00.1.0.log").exists()


@pytest.mark.parametrize("place", ["", "t00", "t00/epoch-00001"])
def test_rm_takes_names_beyond_utf_8(bench: Bench, run: Path, place: str) -> None:
    stored = bench.home / "storage" / run.name
    for folder in (stored / place, run):
        (folder / os.fsdecode(b"n\xff.pt")).touch(0o600)
    done = bench.here("rm", run.name, "--yes")
    assert (done.code, done.err) == (0, "")
    assert f"  3 files, 9.01 kB in {stored}\n" in done.out
    assert not run.exists()
    assert not stored.exists()


@pytest.mark.parametrize("command", ["report", "export", "runs", "logs"])
def test_names_beyond_utf_8_are_read(bench: Bench, simulated: list[Job], command: str) -> None:
    run = bench.ran()
    stored = bench.home / "storage" / run.name
    fill(stored)
    for folder in (stored, stored / "logs", stored / "t00", stored / "t00/epoch-00001", run):
        (folder / os.fsdecode(b"n\xff.pt")).touch(0o600)
    more = ["--to", "csv"] if command == "export" else []
    done = bench.here(command, *([] if command == "runs" else [run.name]), *more).succeeded()
    assert "Traceback" not in done.err


def test_rm_asks_on_a_terminal(bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])

    def confirm(text: str, *, abort: bool) -> None:
        assert text.startswith("Remove 1 run, ")
        if not next(answers):
            raise click.Abort

    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert bench.here("rm", run.name).code == 130
    assert run.is_dir()
    assert bench.here("rm", run.name).code == 0
    assert not run.exists()


def check_stays(bench: Bench, run: Path, *words: str, code: int = 2) -> None:
    bench.here("rm", run.name, "--yes").refused(*words, code=code)
    assert run.is_dir()


def test_a_run_that_is_alive_or_unknown_stays(bench: Bench, run: Path) -> None:
    parent = ProcessGroup.of(os.getppid())
    record = run / "controller.json"
    parent.record(record, extra={"provider": "emulated", "region": "us-east-1"})
    record.chmod(0o600)
    check_stays(bench, run, f"`cloudtune stop {run.name}` ends it")
    done = bench.here("rm", "nothing", "--yes")
    assert (done.code, "no run nothing" in done.err) == (2, True)
    (run.parent / f"{run.name}2").mkdir(mode=0o700)
    assert "write one out" in bench.here("rm", run.name[:-1], "--yes").err


@pytest.mark.parametrize("tag", ["", ".head"])
def test_bills_stay(bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch, tag: str) -> None:
    named: Any = ("i-1", run.name + tag, "", "", "g5.xlarge", "running", 0.0, None, "", {})

    def ours(name: str, *, ended: bool) -> list[Instance]:
        assert not ended
        return [Instance(*named)] if name == run.name + tag else []

    cloud = Cloud(Endpoint("eu-west-1"), {}, {})
    monkeypatch.setattr(cleanup, "open_clouds", lambda *_, **__: [cloud])
    monkeypatch.setattr(removal, "calls_to", lambda _: SimpleNamespace(ours=ours))
    check_stays(bench, run, "still has i-1 and nothing was removed; `cloudtune gc")


def test_an_unknown_cloud_stays(bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    record = run / "controller.json"
    where = {"provider": "aws", "region": "eu-west-1", "over": "yes"}
    ProcessGroup.of(os.getpid()).record(record, extra=where)
    record.chmod(0o600)
    unasked = "may still have instances and nothing was removed: eu-west-1 can't be asked"
    check_stays(bench, run, unasked)


def test_a_refusal_keeps_it(bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(removal, "_remove", refuse)
    check_stays(bench, run, "read-only", code=1)


def test_a_run_in_a_bucket_goes_alone(bench: Bench, run: Path, bucket: str) -> None:
    from cloudtune.train.storage import entries, filesystem

    ledger = run / "ledger.jsonl"
    text = ledger.read_text()
    ledger.write_text(text.replace('"~/.cloudtune/storage"', json.dumps(bucket)))
    fs, root = filesystem(bucket)
    for name in (f"{run.name}/t00/epoch-00001/a", f"{run.name}/logs/b", f"{run.name}2/c"):
        with fs.open_output_stream(f"{root}/{name}") as out:
            out.write(b"12345")
    done = bench.here("rm", run.name, "--yes")
    assert f"2 files, 10 B in {bucket}/{run.name}" in done.out
    assert [info.base_name for info in entries(fs, root)] == [f"{run.name}2"]


def test_a_damaged_ledger_says_that_checkpoints_stay(bench: Bench, run: Path) -> None:
    stored = bench.home / "storage" / run.name
    (run / "ledger.jsonl").write_text("{")
    bench.here("rm", run.name, "--yes").succeeded("they stay")
    assert (run.exists(), stored.is_dir()) == (False, True)


def test_a_measurement_goes_with_its_logs(bench: Bench, run: Path) -> None:
    stored = bench.home / "storage" / "small-profile-1"
    fill(stored)
    measuring._clear_storage(str(stored))
    assert [path.name for path in stored.iterdir()] == ["logs"]
    folder = run.parent / stored.name
    folder.mkdir(mode=0o700)
    header = json.dumps({"measure": {"storage": "~/.cloudtune/storage"}})
    (folder / removal.MEASURE).write_text(header + "\n")
    done = bench.here("rm", stored.name, "--yes")
    assert (done.code, folder.exists(), stored.exists()) == (0, False, False)


def test_a_run_that_was_resumed_meanwhile_stays(
    bench: Bench, at_home: None, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = removal.removable(run.name)
    monkeypatch.setattr(control, "is_driven", lambda _: True)
    with pytest.raises(UsageError, match="alive"):
        doomed.remove()
    assert run.is_dir()

"""`cloudtune logs`: what the workers of a run have printed, from its storage."""

import time
from pathlib import Path

import pytest

from cloudtune.api import run_logs
from cloudtune.api.run_logs import RunLogs
from cloudtune.infra.node.log_copies import LogCopies
from cloudtune.runs.job import Job
from tests.bench import Bench
from tests.builders.ledgers import drop_checksums


@pytest.fixture
def run(bench: Bench, at_home: None, simulated: list[Job]) -> Path:
    return bench.ran()


@pytest.fixture
def log_folder(bench: Bench, run: Path) -> Path:
    folder = bench.home / "storage" / run.name / "logs"
    (folder / "nodes").mkdir(parents=True)
    (folder / "t01.2.0.log").write_text("second session\n")
    (folder / "t01.1.1.log").write_text("first session, rank 1\n")
    (folder / "t01.1.0.log").write_text("first session\n")
    (folder / "t00.1.0.log").write_text("begins\nno end of line")
    (folder / "t00.1.0.log.part").write_text("half of it")
    (folder / "nodes" / "i-7.log").write_text("loads\n")
    return folder


def test_logs_stand_in_order_below_whose_they_are(bench: Bench, log_folder: Path) -> None:
    assert bench.here("logs").out.splitlines() == [
        "==> t00, session 1, rank 0 <==",
        "begins",
        "no end of line",
        "==> t01, session 1, rank 0 <==",
        "first session",
        "==> t01, session 1, rank 1 <==",
        "first session, rank 1",
        "==> t01, session 2, rank 0 <==",
        "second session",
    ]


def test_a_terminal_gets_no_escapes_of_a_script(bench: Bench, log_folder: Path) -> None:
    (log_folder / "t00.1.0.log").write_text("10 %\r100 %\n\x1b[2J\x1b]0;owned\x07red \u202ekcolb\n")
    shown = bench.here("logs", "--", log_folder.parent.name, "t00").out
    assert shown == "==> t00, session 1, rank 0 <==\n10 %\n100 %\nred kcolb\n"


def test_a_trial_s_own_are_reported_alone(bench: Bench, run: Path, log_folder: Path) -> None:
    result = bench.here("logs", run.name, "t01").out
    assert result.count("==>") == 3
    assert "begins" not in result
    assert bench.here("logs", "--nodes").out == "==> node i-7 <==\nloads\n"


def test_a_trial_without_logs_is_a_mistake(bench: Bench, run: Path, log_folder: Path) -> None:
    bench.here("logs", run.name, "t09").refused("no logs of trial 't09'; choose one of t00, t01")
    assert bench.here("logs", run.name, "t00", "--nodes").code == 2


def test_a_run_without_logs_says_where_it_looked(bench: Bench, run: Path) -> None:
    done = bench.here("logs")
    assert (done.code, done.out) == (0, "")
    assert f"storage/{run.name}/logs yet" in done.err


def test_followed_logs_end_with_the_run(bench: Bench, run: Path, log_folder: Path) -> None:
    done = bench.here("logs", run.name, "t00", "-f")
    assert (done.code, done.out) == (0, "==> t00, session 1, rank 0 <==\nbegins\nno end of line\n")


def test_followed_logs_grow(run: Path, log_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(seconds: float) -> None:
        assert seconds == run_logs.NEAR_SECONDS
        with (log_folder / "t00.1.0.log").open("a") as log:
            log.write(", now it ends\n")
        (log_folder / "t02.1.0.log").write_text("a new one\n")

    monkeypatch.setattr(time, "sleep", grow)
    looks = iter([True, False])
    logs = RunLogs(run)
    result = list(logs.follow(logs.list_logs, lambda: next(looks)))
    assert [text for _, text in result[4:]] == [", now it ends\n", "a new one\n"]


def test_log_additions_follow_a_cut_middle() -> None:
    before = b"begin\n" + b"".join(b"line %d\n" % n for n in range(900))
    after = b"begin\n[left out]\n" + before[-5000:] + b"new\n"
    assert run_logs._additions(before, after) == b"new\n"
    assert run_logs._additions(before, before + b"new\n") == b"new\n"
    assert run_logs._additions(before, b"another\n") == b"another\n"


def test_logs_on_s3_are_read(bench: Bench, run: Path, bucket: str, tmp_path: Path) -> None:
    ledger = run / "ledger.jsonl"
    text = drop_checksums(ledger)
    assert '"~/.cloudtune/storage"' in text
    ledger.write_text(text.replace('"~/.cloudtune/storage"', f'"{bucket}"'))
    node = tmp_path / "node"
    node.mkdir()
    (node / "t00.1.0.log").write_text("on an instance\n")
    assert " yet\n" in bench.here("logs").err
    copies = LogCopies(node, f"{bucket}/{run.name}/logs", "i-1")
    copies.copy()
    assert bench.here("logs").out == "==> t00, session 1, rank 0 <==\non an instance\n"

"""What workers print is kept beyond their instance, bounded, whatever the storage does."""

import time
from pathlib import Path

import pytest

from cloudtune.infra.node.log_copies import LogCopies, shorten


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "t00.1.0.log").write_text("one\n")
    (folder / "zygote.log").write_text("loads\n")
    return folder


def test_logs_are_copied_as_they_grow(logs: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    copies = LogCopies(logs, str(kept), "i-1")
    copies.copy()
    assert (kept / "t00.1.0.log").read_text() == "one\n"
    assert (kept / "nodes" / "i-1.log").read_text() == "loads\n"
    with (logs / "t00.1.0.log").open("a") as log:
        log.write("two\n")
    copies.copy(at_once=True)
    assert (kept / "t00.1.0.log").read_text() == "one\ntwo\n"
    assert sorted(path.name for path in kept.rglob("*.*")) == ["i-1.log", "t00.1.0.log"]


def test_s3_is_not_asked_often(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    kept = tmp_path / "kept"
    copies = LogCopies(logs, kept.as_uri(), "i-1")
    copies.copy()
    (logs / "t00.1.0.log").write_text("one\ntwo\n")
    now = 114.0
    copies.copy()
    assert (kept / "t00.1.0.log").read_text() == "one\n"
    now = 115.0
    copies.copy()
    assert (kept / "t00.1.0.log").read_text() == "one\ntwo\n"


def test_one_that_ends_brings_away_what_is_left(logs: Path, tmp_path: Path) -> None:
    copies = LogCopies(logs, str(tmp_path / "kept"), "i-1")
    copies.start()
    (logs / "t01.1.0.log").write_text("the last words\n")
    copies.close(30.0)
    assert (tmp_path / "kept" / "t01.1.0.log").read_text() == "the last words\n"


def test_storage_that_fails(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    kept.write_text("a file, and no folder")
    copies = LogCopies(logs, str(kept), "i-1")
    copies.copy(at_once=True)
    copies.copy(at_once=True)
    assert capsys.readouterr().err.count("logs are not copied to ") == 1
    kept.unlink()
    copies.copy(at_once=True)
    assert (kept / "t00.1.0.log").read_text() == "one\n"


def test_a_long_logs_begin_and_end_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("".join(f"line {number:04}\n" for number in range(1000)))
    result = shorten(path, most=1000, first=105).decode()
    lines = result.splitlines()
    assert lines[0] == "line 0000"
    assert lines[-1] == "line 0999"
    [marker] = [line for line in lines if "left out" in line]
    assert lines.index(marker) == 10
    assert len(result) - len(marker) - 1 <= 1000
    assert marker == f"[cloudtune: {10000 - 10 * (len(lines) - 1)} bytes are left out here]"
    assert shorten(path, most=10000) == path.read_bytes()

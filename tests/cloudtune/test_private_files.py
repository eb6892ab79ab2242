"""State is its user's alone, whatever the umask, and in a home of an earlier version too."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtune.private_files import UMASK_VARIABLE, be_as_our_user, close, for_others
from cloudtune.runs import home


@pytest.fixture(autouse=True)
def umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user whose files everybody may write."""
    monkeypatch.setenv(UMASK_VARIABLE, "")  # so that it is as before afterwards
    monkeypatch.delenv(UMASK_VARIABLE)
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def old_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home as an earlier version has left it: open."""
    folder = tmp_path / "home"
    (folder / "runs" / "r1").mkdir(parents=True)
    (folder / "runs" / "r1" / "ledger.jsonl").write_text("{}")
    (folder / "runs" / "r1" / "job.sh").touch(0o755)
    monkeypatch.setenv("CLOUDTUNE_HOME", str(folder))
    return folder


def test_a_home_that_is_open_is_closed(old_home: Path) -> None:
    home.close()
    run = old_home / "runs" / "r1"
    assert {mode(item) for item in (old_home, old_home / "runs", run)} == {0o700}
    assert mode(run / "ledger.jsonl") == 0o600
    assert mode(run / "job.sh") == 0o700, "what its user may do stays"


def test_new_records_are_private(old_home: Path) -> None:
    home.close()
    run = home.new_run("small")
    (run / "head.log").write_text("")
    assert (mode(run), mode(run / "head.log")) == (0o700, 0o600)
    assert mode(old_home / "storage") == 0o700


def test_requested_files_have_user_umask(old_home: Path, tmp_path: Path) -> None:
    os.umask(0o027)
    home.close()
    with for_others():
        (tmp_path / "plan.json").write_text("")
    (tmp_path / "ours").write_text("")
    assert mode(tmp_path / "plan.json") == 0o640
    assert mode(tmp_path / "ours") == 0o600
    be_as_our_user()  # as a training script's process does
    (tmp_path / "theirs").write_text("")
    assert mode(tmp_path / "theirs") == 0o640
    assert mode(old_home) == 0o700


def test_home_leaves_its_parent_alone(old_home: Path) -> None:
    """CLOUDTUNE_HOME may be somebody's whole home, or /tmp."""
    (old_home / "public_html").mkdir(0o755)
    home.close()
    assert mode(old_home) == 0o777
    assert mode(old_home / "public_html") == 0o755
    assert mode(old_home / "runs") == 0o700
    assert mode(old_home / "runs" / "r1" / "ledger.jsonl") == 0o600


def test_what_links_lead_to_is_left(old_home: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "model.pt").touch()
    (old_home / "storage").symlink_to(tmp_path / "shared")
    (old_home / "runs" / "data").symlink_to(tmp_path / "shared" / "model.pt")
    home.close()
    assert mode(tmp_path / "shared") == 0o777
    assert mode(tmp_path / "shared" / "model.pt") == 0o666


def test_where_no_home_is_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "none"))
    home.close()
    close(tmp_path / "none")
    assert not (tmp_path / "none").exists()

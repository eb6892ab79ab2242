"""What a head and those who look on tell each other through a run's storage."""

import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.heads.launch import Remote
from cloudtune.infra.heads.remote_runs import OVER, adopt, is_carried
from cloudtune.infra.heads.store import PARCEL, PIECE_BYTES, STATE, HeadStore, Mirror, State, fetch
from cloudtune.train.storage import StorageError
from tests.infra.heads.test_launch import REMOTE


@pytest.fixture
def store(tmp_path: Path) -> HeadStore:
    return HeadStore(f"{tmp_path}/storage/small-1")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of a run on the machine that asked for it."""
    folder = tmp_path / "ann" / "small-1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def brought(store: HeadStore, there: Path) -> str:
    """Bring what is on the head to who looks on, by a new mirror; return the ledger there."""
    here = there.with_name("here")
    Mirror(store, there, "run/").bring()
    fetch(store, here, "run/")
    return (here / "ledger.jsonl").read_text()


def test_what_grows_is_brought_once(store: HeadStore, tmp_path: Path, there: Path) -> None:
    here = tmp_path / "here"
    (there / "logs").mkdir()
    (there / "ledger.jsonl").write_text("one\n")
    (there / "logs" / "t00.log").write_text("epoch 1\n")
    mirror = Mirror(store, there, "run/")
    assert mirror.bring() == 2
    assert mirror.bring() == 0, "nothing has changed"
    assert fetch(store, here, "run/") == 2
    assert fetch(store, here, "run/") == 0
    with (there / "ledger.jsonl").open("a") as file:
        file.write("two\n")
    assert mirror.bring() == 1
    assert fetch(store, here, "run/") == 1
    assert (here / "ledger.jsonl").read_text() == "one\ntwo\n"
    assert (here / "logs" / "t00.log").read_text() == "epoch 1\n"


class _Counted:
    """A store whose traffic is counted: bytes written, bytes read."""

    def __init__(self, store: HeadStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = self.down = 0
        write, read, read_from = store.write, store.read, store.read_rest

        def counted_write(name: str, data: bytes) -> None:
            self.up += len(data)
            write(name, data)

        def counted_read(name: str) -> bytes | None:
            data = read(name)
            self.down += len(data or b"")
            return data

        def counted_read_from(name: str, begin: int) -> bytes:
            data = read_from(name, begin)
            self.down += len(data)
            return data

        monkeypatch.setattr(store, "write", counted_write)
        monkeypatch.setattr(store, "read", counted_read)
        monkeypatch.setattr(store, "read_rest", counted_read_from)


def test_following_copies_bytes_once(
    store: HeadStore, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    mirror, traffic = Mirror(store, there, "run/"), _Counted(store, monkeypatch)
    line = "x" * 999 + "\n"
    for _ in range(100):
        with (there / "ledger.jsonl").open("a") as file:
            file.write(line * 20)
        mirror.bring()
        fetch(store, here, "run/")
    size = 100 * 20 * 1000
    assert (here / "ledger.jsonl").read_text() == line * 2000
    assert traffic.down == size
    assert traffic.up < 100 * (PIECE_BYTES / 2 + 20_000) * 1.1, "half a piece each time"


def test_a_line_that_was_cut_off_is_replaced(store: HeadStore, there: Path) -> None:
    ledger = there / "ledger.jsonl"
    whole = "y" * (PIECE_BYTES - 10) + "\n"
    ledger.write_text(f"{whole}half a line that goes on in the next piece")
    brought(store, there)
    for text in (whole, f"{whole}another\n"):
        ledger.write_text(text)
        assert brought(store, there) == text


def test_record_of_0_2_0_continues(store: HeadStore, there: Path) -> None:
    store.write("record/run/ledger.jsonl", b"one\n")
    assert fetch(store, there.with_name("here"), "run/") == 1
    (there / "ledger.jsonl").write_text("one\ntwo\n")
    assert brought(store, there) == "one\ntwo\n"
    assert store.read("record/run/ledger.jsonl") is None


@pytest.mark.parametrize("name", ["controller.json", "ray-token", "head.json", "intents.json"])
def test_a_heads_secrets_stay(store: HeadStore, tmp_path: Path, there: Path, name: str) -> None:
    (there / name).write_text("its own")
    assert Mirror(store, there, "run/").bring() == 0
    store.write(f"record/run/{name}", b"put there by somebody else")
    assert fetch(store, tmp_path / "here", "run/") == 0


def test_a_record_writes_nowhere_but_into_its_folder(store: HeadStore, tmp_path: Path) -> None:
    store.write("record/run/ledger.jsonl", b"x")
    outside = tmp_path / "storage" / "small-1" / "head" / "record" / "run" / ".." / "up"
    assert not outside.exists()
    listed = {"run/../../up": (1, 1.0), "run//etc/up": (1, 1.0), "run/ledger.jsonl": (1, 1.0)}
    store.list_files = lambda: listed  # type: ignore[method-assign]
    assert fetch(store, tmp_path / "deep" / "here", "run/") == 1
    assert not (tmp_path / "up").exists()


def test_head_order_survives_storage(store: HeadStore) -> None:
    data = gzip.compress(b"code")
    store.write(PARCEL, data)
    assert store.read(PARCEL) == data


def test_a_head_is_alive_while_it_says_so(store: HeadStore, run_folder: Path) -> None:
    assert is_carried(run_folder) is None, "this machine's own, or none's"
    replace(REMOTE, storage=store.uri).keep(run_folder)
    state = State(beat=1000.0, instance="i-1", attempt=1)
    assert state.is_alive(1089.0)
    assert not state.is_alive(1091.0)
    assert not replace(state, code=0).is_alive(1000.0)
    assert not is_carried(run_folder), "no word yet"


def test_its_end_is_seen(
    store: HeadStore, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("cloudtune.infra.heads.remote_runs.time.time", lambda: now)
    monkeypatch.setattr("cloudtune.infra.heads.remote_runs._LOOK_SECONDS", -1.0)
    replace(REMOTE, storage=store.uri, attempt=2).keep(run_folder)
    store.write("record/run/ledger.jsonl", b"one\n")
    store.tell(State(now, "i-1", attempt=1, code=130))
    assert not is_carried(run_folder), "the head before this one has ended; this one is silent yet"
    assert not (run_folder / OVER).exists()
    store.tell(State(now, "i-2", attempt=2))
    assert is_carried(run_folder)
    assert (run_folder / "ledger.jsonl").read_text() == "one\n"
    store.tell(State(now, "i-2", attempt=2, code=0))
    assert not is_carried(run_folder)
    assert (run_folder / OVER).exists()
    store.write("record/run/ledger.jsonl", b"one\ntwo\n")
    assert not is_carried(run_folder)
    assert (run_folder / "ledger.jsonl").read_text() == "one\n", "all of it was here by then"


def test_another_machine_adopts_a_run_by_its_place(
    store: HeadStore, run_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no run that a head carries"):
        adopt(store.uri, tmp_path / "runs")
    remote = replace(REMOTE, storage=store.uri)
    remote.keep(run_folder)
    store.write("remote.json", (run_folder / "remote.json").read_bytes())
    store.write("record/run/ledger.jsonl", b"one\n")
    result = adopt(store.uri + "/", tmp_path / "bob")
    assert result == tmp_path / "bob" / "small-1"
    assert Remote.of(result) == remote
    assert (result / "ledger.jsonl").read_text() == "one\n"


def test_damage_and_a_refusing_storage_are_reported(store: HeadStore, tmp_path: Path) -> None:
    assert store.state() is None
    store.write(STATE, b"{}")
    with pytest.raises(StorageError, match=r"head/state\.json is damaged"):
        store.state()
    store.remove(STATE)
    store.remove(STATE)
    assert store.state() is None
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        HeadStore(f"{tmp_path}/file/small-1").write("x", b"")


def test_a_damaged_record_of_a_place_is_reported(tmp_path: Path) -> None:
    (tmp_path / "remote.json").write_text("{}")
    with pytest.raises(Exception, match=r"remote\.json is damaged"):
        Remote.of(tmp_path)
    assert os.listdir(tmp_path) == ["remote.json"]  # noqa: PTH208

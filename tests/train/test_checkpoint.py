"""A checkpoint is there whole or not at all, wherever a save breaks off."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import UsageError
from cloudtune.train import saved_files, storage
from cloudtune.train.best import keep_best
from cloudtune.train.checkpoint import (
    MANIFEST,
    Checkpoint,
    CheckpointStore,
    load,
    read_manifest,
    standing,
    usable,
)
from cloudtune.train.saved_files import is_unchanged
from cloudtune.train.storage import CheckpointError, StorageError, try_storage
from tests.builders.values import present


class BrokenError(RuntimeError):
    """The plug is pulled."""


class BreakingFileSystem:
    """A file system that fails at its `at`-th change, writes of a stream included."""

    CHANGES = frozenset({"create_dir", "move", "delete_file", "delete_dir"})

    def __init__(self, real: Any, at: int) -> None:
        self.real = real
        self.left = at

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise BrokenError

    def __getattr__(self, name: str) -> Any:
        if name in self.CHANGES:
            self.step()
        return getattr(self.real, name)

    def open_output_stream(self, path: str, **_: object) -> BreakingStream:
        self.step()
        return BreakingStream(self.real.open_output_stream(path), self)


class BreakingStream:
    """Fails after half of what it was given has reached the disk."""

    def __init__(self, real: Any, fs: BreakingFileSystem) -> None:
        self.real = real
        self.fs = fs

    def write(self, data: bytes) -> None:
        self.real.write(data[: len(data) // 2])
        self.fs.step()
        self.real.write(data[len(data) // 2 :])

    def __enter__(self) -> BreakingStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.real.close()


def make_folder(path: Path, text: str) -> Path:
    (path / "deep").mkdir(parents=True, exist_ok=True)
    (path / "state.pt").write_text(text)
    (path / "deep" / "more.bin").write_text(text * 3)
    return path


def content(path: str, scratch: Path) -> str:
    load(path, scratch)
    state = (scratch / "state.pt").read_text()
    assert (scratch / "deep" / "more.bin").read_text() == state * 3
    return state


def test_a_saved_checkpoint_is_loaded_as_it_was(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save("t1", 3, {"acc": 0.5, "loss": math.nan}, make_folder(tmp_path / "in", "one"))

    assert path == f"{tmp_path}/store/t1/epoch-00003"
    assert store.latest("t1") == path
    assert store.latest("t2") is None
    manifest = load(path, tmp_path / "out")
    assert (manifest.trial, manifest.epoch, manifest.metrics["acc"]) == ("t1", 3, 0.5)
    assert math.isnan(manifest.metrics["loss"])
    assert manifest.files["state.pt"].size == 3
    assert content(path, tmp_path / "out") == "one"


def test_the_manifest_is_strict_json(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save("t1", 1, {"loss": math.inf}, make_folder(tmp_path / "in", "one"))

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document = json.loads((Path(path) / MANIFEST).read_text(), parse_constant=refuse)
    assert document["version"] == 2
    assert document["metrics"] == {"loss": "inf"}
    assert read_manifest(path).metrics == {"loss": math.inf}


def broken_off(store: CheckpointStore, at: int, change: Callable[[], object]) -> bool:
    """Whether a change was broken off, with all that a storage is asked to do from `at` on."""
    real, store._fs = store._fs, BreakingFileSystem(store._fs, at)
    try:
        change()
    except BrokenError:
        return True
    finally:
        store._fs = real
    return False


@pytest.mark.parametrize("again", [False, True], ids=["next epoch", "the same epoch again"])
def test_a_save_broken_off_anywhere_leaves_the_previous_one(tmp_path: Path, again: bool) -> None:
    make_folder(tmp_path / "old", "old")
    make_folder(tmp_path / "new", "new")
    for at in range(1, 100):
        store = CheckpointStore(str(tmp_path / f"store{at}"))
        first = store.save("t", 1, {}, tmp_path / "old")
        epoch = 1 if again else 2
        if not broken_off(store, at, partial(store.save, "t", epoch, {}, tmp_path / "new")):
            break
        latest = present(store.latest("t"))
        result = content(latest, tmp_path / f"out{at}")
        assert result in {"old", "new"}
        assert result == "new" or latest == first
    assert at > 8, "too few steps were broken to prove anything"
    assert content(str(store.latest("t")), tmp_path / "last") == "new"


@pytest.fixture(params=[True, False], ids=["storage on this disk", "storage elsewhere"])
def near(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(CheckpointStore, "_is_on_local_disk", request.param)
    return bool(request.param)


def test_a_commit_makes_a_checkpoint(store: CheckpointStore, tmp_path: Path, near: bool) -> None:
    source = make_folder(tmp_path / "in", "one")
    staged = present(store.stage("t1", 3, source))
    make_folder(source, "two")  # the script goes on
    assert store.latest("t1") is None
    path = present(store.commit(staged, {"acc": 0.5}))
    assert path == store.latest("t1")
    assert content(path, tmp_path / "out") == "one"
    assert read_manifest(path).metrics == {"acc": 0.5}
    assert Path(staged.files).exists() == near, "what was elsewhere is gone"
    staged = present(store.stage("t1", 3, source))
    again = present(store.commit(staged, {}))
    assert content(again, tmp_path / "out") == "two"
    assert len(list(Path(again).iterdir())) == 2


def test_a_commit_broken_off_anywhere_leaves_the_previous_one(tmp_path: Path, near: bool) -> None:
    make_folder(tmp_path / "old", "old")
    make_folder(tmp_path / "new", "new")
    for at in range(1, 100):
        store = CheckpointStore(str(tmp_path / f"store{at}"))
        store.save("t", 1, {}, tmp_path / "old")
        staged = present(store.stage("t", 1, tmp_path / "new"))
        if not broken_off(store, at, partial(store.commit, staged, {})):
            break
        assert content(str(store.latest("t")), tmp_path / f"out{at}") in {"old", "new"}
    assert at > 4, "too few steps were broken to prove anything"


def test_a_name_that_is_not_utf8_costs_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save("t1", 1, {"loss": 1.0}, make_folder(tmp_path / "in", "one"))
    (Path(path).parent / os.fsdecode(b"n\xff")).touch()
    store.prune("t1", "loss", "min")
    assert standing(path) == path
    (Path(path) / MANIFEST).unlink()
    assert standing(path) is None


def test_debris_does_not_outlive_the_next_prune(store: CheckpointStore, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", "x")
    assert broken_off(store, 3, lambda: store.save("t", 1, {}, source))
    assert store.latest("t") is None
    store.save("t", 2, {"acc": 1.0}, source)
    store.prune("t", "acc", "max")
    assert [path.name for path in (tmp_path / "store" / "t").iterdir()] == ["epoch-00002"]


@pytest.mark.parametrize(
    ("mode", "values", "kept"),
    [
        ("max", [0.1, 0.9, 0.5, 0.4], [2, 4]),
        ("min", [0.1, 0.9, 0.5, 0.4], [1, 4]),
        ("max", [math.nan, 0.2, math.nan], [2, 3]),
        ("min", [0.2, math.nan], [1, 2]),
        ("max", [math.nan, math.nan], [2]),
        ("max", [0.5, 0.5, 0.5], [1, 3]),
        ("max", [0.5, math.inf, 0.5], [1, 3]),
        ("min", [0.5, -math.inf, 0.5], [1, 3]),
    ],
)
def test_prune_keeps_the_latest_and_the_best(
    store: CheckpointStore, tmp_path: Path, mode: str, values: list[float], kept: list[int]
) -> None:
    source = make_folder(tmp_path / "in", "x")
    for epoch, value in enumerate(values, start=1):
        store.save("t", epoch, {"acc": value}, source)
    store.save("other", 1, {"acc": 1.0}, source)
    store.prune("t", "acc", mode)
    folders = sorted(path.name for path in (tmp_path / "store" / "t").iterdir())
    assert folders == [f"epoch-{epoch:05d}" for epoch in kept]
    assert store.latest("other") is not None


def test_a_broken_prune_leaves_latest_and_best(store: CheckpointStore, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", "x")
    for epoch, value in enumerate([0.1, 0.9, 0.5, 0.4], start=1):
        store.save("t", epoch, {"acc": value}, source)
    for at in range(1, 7):  # two folders go, of three entries each
        broken_off(store, at, lambda: store.prune("t", "acc", "max"))
        assert {2, 4} <= set(store._list_checkpoints("t"))


def test_corruption_is_named(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save("t", 1, {}, make_folder(tmp_path / "in", "good"))
    (file,) = Path(path).rglob("state.pt")

    file.write_text("evil")
    with pytest.raises(CheckpointError, match=r"state\.pt of the checkpoint .* is corrupt"):
        load(path, tmp_path / "out")
    file.write_text("goo")
    with pytest.raises(CheckpointError, match=r"is corrupt: 3 bytes, .*; 4 bytes"):
        load(path, tmp_path / "out")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"state\.pt is missing"):
        load(path, tmp_path / "out")


def test_a_checkpoint_with_sha256_is_read_and_checked(
    store: CheckpointStore, tmp_path: Path
) -> None:
    path = store.save("t", 1, {}, make_folder(tmp_path / "in", "good"))
    manifest = Path(path, MANIFEST)
    document = json.loads(manifest.read_text())
    for name, file in document["files"].items():
        data = Path(path, document["folder"], name).read_bytes()
        document["files"][name] = {"size": file["size"], "sha256": hashlib.sha256(data).hexdigest()}
    manifest.write_text(json.dumps({**document, "version": 1}))

    assert content(path, tmp_path / "out") == "good"
    assert store.is_intact(path)
    next(Path(path).rglob("state.pt")).write_text("evil")
    assert not store.is_intact(path)
    with pytest.raises(CheckpointError, match="is corrupt"):
        load(path, tmp_path / "out")


@pytest.mark.parametrize("damage", ["written", "replaced"])
def test_a_change_after_the_checksum_is_noticed(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv(saved_files.AGENT_VARIABLE, "of this run")
    pending = store.stage("t", 1, make_folder(tmp_path / "in", "good"))
    assert pending is not None
    time.sleep(0.05)  # a file that has just been written has no stamp
    path = store.commit(pending, {})
    assert path is not None
    saved = read_manifest(path).files["state.pt"]
    (file,) = Path(path).rglob("state.pt")
    assert is_unchanged(file, saved)
    assert store.is_intact(path)
    for other in ("of a later run", ""):
        with monkeypatch.context() as patch:
            patch.setenv(saved_files.AGENT_VARIABLE, other)
            assert not is_unchanged(file, saved)

    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    if damage == "replaced":
        file.unlink()
    file.write_text("evil")
    os.utime(file, ns=times)
    assert not is_unchanged(file, saved)
    assert not store.is_intact(path)
    with pytest.raises(CheckpointError, match="is corrupt"):
        load(path, tmp_path / "out")


def test_a_compressed_file_is_kept_as_it_is(store: CheckpointStore, tmp_path: Path) -> None:
    packed = gzip.compress(b"state")
    source = make_folder(tmp_path / "in", "one")
    (source / "state.json.gz").write_bytes(packed)
    saved = store.save("t", 1, {}, source)
    committed = present(store.commit(present(store.stage("t", 2, source)), {}))
    for path in (saved, committed):
        assert store.is_whole(path)
        load(path, tmp_path / "out")
        assert (tmp_path / "out" / "state.json.gz").read_bytes() == packed
        keep_best(store.uri, path, {})
        assert Path(store.uri, "best", "state.json.gz").read_bytes() == packed


def test_no_checkpoint_without_a_whole_manifest(store: CheckpointStore, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", "x")
    first = store.save("t", 1, {}, source)
    second = Path(store.save("t", 2, {}, source))

    (second / MANIFEST).write_text((second / MANIFEST).read_text()[:20])
    assert store.latest("t") == first
    with pytest.raises(CheckpointError, match="isn't a checkpoint's manifest"):
        read_manifest(str(second))
    (second / MANIFEST).unlink()
    assert store.latest("t") == first
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        read_manifest(str(second))


def test_a_manifest_of_another_version_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    path = Path(store.save("t", 1, {}, make_folder(tmp_path / "in", "x")))
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"version": 2', '"version": 3'))
    with pytest.raises(CheckpointError, match="has version 3; this cloudtune reads 2"):
        read_manifest(str(path))


def test_a_users_folder_is_used_in_place(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", "x")
    with Checkpoint.from_directory(source).as_directory() as folder:
        assert folder == str(source)


def test_any_trial_may_read_what_another_has_saved(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save("t", 4, {}, make_folder(tmp_path / "in", "x"))
    result = Checkpoint.from_storage(path)
    assert result == Checkpoint(path, epoch=4)
    with result.as_directory() as folder:
        assert (Path(folder) / "state.pt").read_text() == "x"
        assert not Path(folder).is_relative_to(tmp_path / "store")
    assert not Path(folder).exists()
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        Checkpoint.from_storage(str(tmp_path / "none"))


def test_what_is_no_folder_or_empty_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        Checkpoint.from_directory(tmp_path / "none")
    with pytest.raises(UsageError, match="holds no files"):
        store.save("t", 1, {}, tmp_path)


def test_the_best_on_s3_is_whole_with_its_note(bucket: str, tmp_path: Path) -> None:
    import boto3

    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="case")
    uri = "s3://case/runs"
    store = CheckpointStore(uri)
    for epoch, name in ((1, "old.pt"), (2, "new.pt")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(name)
        path = keep_best(uri, store.save("t", epoch, {"acc": 0.5}, folder), {"run": "r"})
    assert path == "s3://case/runs/best"
    listed = client.list_objects_v2(Bucket="case", Prefix="runs/best/")["Contents"]
    keys = {item["Key"] for item in listed} - {"runs/best/"}  # what pyarrow takes for a folder
    assert keys == {"runs/best/new.pt", "runs/best/cloudtune.json"}
    note = client.get_object(Bucket="case", Key="runs/best/cloudtune.json")["Body"].read()
    assert json.loads(note)["epoch"] == 2


def test_s3_is_a_store_like_any_other(bucket: str, tmp_path: Path) -> None:
    import boto3

    store = CheckpointStore(bucket)
    assert store.latest("t") is None
    source = make_folder(tmp_path / "in", "one")
    for epoch, value in enumerate([0.3, 0.9, 0.1, 0.2], start=1):
        store.save("t", epoch, {"acc": value}, source)
    store.save("t", 4, {"acc": 0.2}, make_folder(tmp_path / "in", "again"))
    store.prune("t", "acc", "max")

    path = "s3://shelf/runs/t/epoch-00004"
    assert store.latest("t") == path
    assert content(path, tmp_path / "out") == "again"
    objects = boto3.client("s3", region_name="us-east-1").list_objects_v2(Bucket="shelf")
    epochs = {item["Key"].split("/")[2] for item in objects["Contents"]} - {""}
    assert epochs == {"epoch-00002", "epoch-00004"}
    with pytest.raises(CheckpointError, match="there is no checkpoint at s3://"):
        read_manifest("s3://shelf/runs/t/epoch-00001")


@pytest.mark.parametrize("size", [0, 1, 8, 9, 1000])
def test_a_large_file_is_read_by_several_requests(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(storage, "_REQUEST_BYTES", 8)
    data = random.Random(size).randbytes(size)
    source = make_folder(tmp_path / "in", "one")
    (source / "large").write_bytes(data)
    path = CheckpointStore(bucket).save("t", 1, {}, source)
    load(path, tmp_path / "out")
    assert (tmp_path / "out" / "large").read_bytes() == data


class FailingFileSystem:
    """A file system whose methods named here fail n times at such paths; the rest is real."""

    def __init__(self, real: Any, times: int, *failing: str, at: str = "") -> None:
        self.real = real
        self.times = times
        self.failing = failing
        self.at = at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)

        def fail(path: str, *more: object, **options: object) -> Any:
            if self.times > 0 and path.endswith(self.at):
                self.times -= 1
                raise OSError(28, "No space left on device")
            return method(path, *more, **options)

        return fail if name in self.failing else method


def test_failing_storage_is_retried(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", "one")
    store = CheckpointStore(str(tmp_path / "store"), waits=(0.0, 0.0))
    staged = present(store.stage("t1", 1, source))
    store._fs = FailingFileSystem(store._fs, 2, "open_output_stream")
    path = present(store.commit(staged, {}))
    assert content(path, tmp_path / "out") == "one"


def test_broken_storage_costs_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_folder(tmp_path / "in", "one")
    store = CheckpointStore(str(tmp_path / "store"), waits=(0.0, 0.0))
    first = store.save("t1", 1, {}, source)
    store._fs = broken = FailingFileSystem(store._fs, 4, "open_output_stream")
    for epoch, left in ((2, 1), (3, 0)):  # three tries, and then one each
        staged = present(store.stage("t1", epoch, source))
        assert store.commit(staged, {}) is None
        assert broken.times == left
    assert "epoch 3 is not saved: " in capsys.readouterr().err
    assert store.latest("t1") == first
    staged = present(store.stage("t1", 4, source))
    assert store.commit(staged, {}) == store.latest("t1") != first


def test_half_save_takes_no_room(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", "one")
    (source / "zz-later").write_text("two")
    store = CheckpointStore(str(tmp_path / "store"), waits=())
    store._fs = FailingFileSystem(store._fs, 100, "open_output_stream", at="later")
    with pytest.raises(StorageError, match="No space left"):
        store.save("t1", 1, {}, source)
    assert [item for item in (tmp_path / "store").rglob("*") if item.is_file()] == []


def test_undeletable_checkpoint_is_harmless(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", "one")
    store = CheckpointStore(str(tmp_path / "store"), waits=())
    paths = [store.save("t1", epoch, {}, source) for epoch in (1, 2, 3)]
    store._fs = FailingFileSystem(store._fs, 100, "delete_file", "delete_dir")
    store.prune("t1", "acc", "max")
    assert store.save("t1", 3, {}, source) == paths[-1]
    store._fs = store._fs.real
    store.prune("t1", "acc", "max")
    assert list(store.list_checkpoints("t1")) == paths[-1:] or list(
        store.list_checkpoints("t1")
    ) == [paths[0], paths[-1]]


def save_epochs(store: CheckpointStore, epochs: int) -> list[str]:
    source = make_folder(Path(store.uri).with_name("in"), "one")
    return [store.save("t1", epoch, {}, source) for epoch in range(1, epochs + 1)]


def test_an_older_checkpoint_replaces_a_missing_or_short_one(store: CheckpointStore) -> None:
    paths = save_epochs(store, 3)
    assert usable(paths[2]) == paths[2]
    (file,) = [path for path in Path(paths[2]).glob("*/*") if path.is_file()]
    file.write_text("o")
    assert usable(paths[2]) == paths[1]
    Path(paths[1], MANIFEST).unlink()
    assert usable(paths[2]) == paths[0]
    Path(paths[0], MANIFEST).unlink()
    assert usable(paths[2]) is None


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "a/../../../escaped", ""])
def test_files_elsewhere_are_no_checkpoint(
    store: CheckpointStore, tmp_path: Path, name: str
) -> None:
    paths = save_epochs(store, 2)
    manifest = Path(paths[1], MANIFEST)
    document = json.loads(manifest.read_text())
    entry = next(iter(document["files"].values()))
    manifest.write_text(json.dumps({**document, "files": {name: entry}}))
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        load(paths[1], tmp_path / "out" / "deep" / "folder")
    assert list(tmp_path.rglob("escaped")) == []
    assert usable(paths[1]) == paths[0]


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "pipe"])
def test_a_link_is_not_read(store: CheckpointStore, tmp_path: Path, kind: str) -> None:
    paths = save_epochs(store, 2)
    (file,) = [path for path in Path(paths[1]).glob("*/*") if path.is_file()]
    if kind == "link to a folder":
        file.parent.rename(tmp_path / "elsewhere")
        file.parent.symlink_to(tmp_path / "elsewhere")
    else:
        file.rename(tmp_path / "secret")
        file.symlink_to(tmp_path / "secret") if "link" in kind else os.mkfifo(file)
    with pytest.raises(CheckpointError, match="is no plain file"):
        load(paths[1], tmp_path / "out")
    assert usable(paths[1]) == paths[0]


def test_a_storage_is_tried_without_a_trace(tmp_path: Path) -> None:
    try_storage(str(tmp_path / "new" / "store"))
    assert list((tmp_path / "new" / "store").iterdir()) == []
    (tmp_path / "file").write_text("")
    for bad in ("/proc/nowhere", str(tmp_path / "file"), "s4://bucket/x"):
        with pytest.raises(StorageError, match="can't be used: "):
            try_storage(bad)


def test_a_report_names_a_checkpoint_that_is_there(store: CheckpointStore) -> None:
    first, second = save_epochs(store, 2)
    assert standing(first) == first
    Path(first, MANIFEST).unlink()
    assert standing(first) == second
    Path(second, MANIFEST).unlink()
    assert standing(first) is None
    assert standing("sim://t1/epoch-00001") == "sim://t1/epoch-00001"


DEEP = "[" * 20_000
BAD: tuple[Any, ...] = (
    *(None, True, -1, 1e308, float("nan"), 10**400, DEEP, "x", "\ud800", "a\0b", "x" * 5000, ""),
    *("..", "/etc/passwd", "a/../b", "./a", "a/", "a//b", ".", [], {}, [1], {"size": 1}),
)


def mutate(text: str, chance: random.Random) -> bytes:
    """Return a manifest with one value, name or byte changed."""
    if chance.random() < 0.2:
        data = bytearray(text.encode())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(data)
    document = json.loads(text)
    within = document
    while True:
        key = chance.choice(list(within))
        if not isinstance(within[key], dict) or not within[key] or chance.random() < 0.2:
            break
        within = within[key]
    bad = chance.choice(BAD)
    if isinstance(bad, str) and bad is not DEEP and chance.random() < 0.4:
        within[bad] = within.pop(key)
    else:
        within[key] = bad
    return json.dumps(document).replace(f'"{DEEP}"', DEEP + "]" * len(DEEP)).encode()


def test_a_mutated_manifest_is_a_checkpoint_error_or_read(
    store: CheckpointStore, tmp_path: Path
) -> None:
    path = store.save("t00", 1, {"loss": 0.5}, make_folder(tmp_path / "own", "abc"))
    manifest = Path(path, MANIFEST)
    text = manifest.read_text()
    refused = 0
    for seed in range(1000):
        manifest.write_bytes(mutate(text, random.Random(seed)))
        for read in (read_manifest, partial(load, to_directory=tmp_path / f"{seed}")):
            try:
                read(path)
            except CheckpointError:
                refused += 1
        assert usable(path, ()) in {path, None}
    assert refused > 1000

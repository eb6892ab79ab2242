"""Checkpoints, and the store that keeps them: a local folder or S3, safe to interrupt anywhere.

    <uri>/<trial>/epoch-00003/
        manifest.json     written last and in one step; without it the checkpoint doesn't exist
        4f1c09aa/…        the files of the save that the manifest names

Each save writes its files under a new name, so that saving an epoch again (repeated after a lost
node) never touches the files of the present manifest.

A save has two halves, and training waits only for the first: `stage` copies the files to the local
disk, `commit` uploads them to the storage and makes a checkpoint of them.
"""

import contextlib
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from cloudtune.errors import UsageError
from cloudtune.train import node_copies, storage
from cloudtune.train.progress_cursor import Trained
from cloudtune.train.saved_files import SavedFile, copy_file, examine, is_unchanged

MANIFEST: Final = "manifest.json"
# The version of the manifest's format. 1 had a SHA-256 of each file; others are refused.
VERSION: Final = 2
_READABLE: Final = (1, VERSION)
EPOCH_FOLDER: Final = re.compile(r"epoch-(\d{5,})")


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint; `folder` has its files, beside the manifest."""

    trial: str
    epoch: int
    metrics: Mapping[str, float]
    folder: str
    files: Mapping[str, SavedFile]
    saved_at: float
    trained: Trained = field(default_factory=Trained)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def to_json(self) -> bytes:
        """Return the manifest as strict JSON, with metrics that aren't finite as strings."""
        metrics = {k: v if math.isfinite(v) else str(v) for k, v in self.metrics.items()}
        document = {"version": VERSION, **asdict(self), "metrics": metrics}
        return json.dumps(document, indent=1, allow_nan=False).encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> "Manifest":
        """Read a manifest; `where` names it in the error."""
        try:
            document = json.loads(text)
            version = document.pop("version")
            if version not in _READABLE:
                raise storage.CheckpointError(
                    f"{where} has version {version}; this cloudtune reads {VERSION}"
                )
            document["files"] = {k: SavedFile.from_json(v) for k, v in document["files"].items()}
            document["metrics"] = {k: float(v) for k, v in document["metrics"].items()}
            document["trained"] = Trained(**document.get("trained", {}))
            manifest = cls(**document)
            _check_values(manifest)
        except (
            *(ValueError, KeyError, TypeError, AttributeError),
            *(ArithmeticError, RecursionError),
        ) as error:
            message = f"{where} isn't a checkpoint's manifest: {error}"
            raise storage.CheckpointError(message) from error
        return manifest


@dataclass(frozen=True)
class Checkpoint:
    """A folder of a user's files, to be saved or already stored.

    `epoch` is the epoch after which a stored checkpoint was saved; 0 for one not yet stored.
    """

    path: str
    epoch: int = 0

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> "Checkpoint":
        """Return a checkpoint of the local folder `path`; `report()` copies it before returning."""
        if not Path(path).is_dir():
            raise UsageError(f"Checkpoint.from_directory(): {os.fspath(path)} is not a folder")
        return cls(os.fspath(path))

    @classmethod
    def from_storage(cls, uri: str) -> "Checkpoint":
        """Return a checkpoint that a run has saved, by the folder or URI in its report.

        Raises:
            CheckpointError: there is no complete one.
        """
        return cls(uri, read_manifest(uri).epoch)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a local folder with the files; a stored checkpoint is copied and verified."""
        if not self.epoch:
            yield self.path
            return
        with tempfile.TemporaryDirectory(
            prefix="cloudtune-", dir=storage.staging_folder(read_manifest(self.path).size)
        ) as folder:
            load(self.path, Path(folder))
            yield folder

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to a local folder (by default a new temporary one); return its path."""
        target = Path(tempfile.mkdtemp(prefix="cloudtune-") if path is None else path)
        with self.as_directory() as folder:
            shutil.copytree(folder, target, dirs_exist_ok=True)
        return os.fspath(target)


@dataclass(frozen=True)
class PendingCheckpoint:
    """Files of an epoch on the local disk that have no manifest yet.

    `files` is their path; `folder` their name in the storage, None if they aren't there.
    """

    trial: str
    epoch: int
    files: str
    folder: str | None


class CheckpointStore:
    """Saves, finds, loads and prunes checkpoints under `uri`: a local path, file:// or s3://.

    A trial has one writer at a time. AWS_ENDPOINT_URL, if set, is where S3 is reached.

    Failed requests are retried after each of `waits` (seconds). A storage that has failed all
    retries is tried only once each time, until it works again.
    """

    def __init__(self, uri: str, waits: tuple[float, ...] = storage.WAITS) -> None:
        self.uri = uri if "://" in uri else os.fspath(Path(uri).absolute())
        self._fs, self._root = storage.filesystem(self.uri)
        self.trained = Trained()  # what manifests say about their epochs
        self.failure = ""  # why the last abandoned save failed
        self.held = ""  # the folder of that save's files on this node, until it is deleted
        self.no_room: Callable[[], object] | None = None  # called when the storage is full
        self._patience = storage.Patience(self.uri, waits)
        self._room = storage.Patience(self.uri, waits)

    def save(
        self, trial_id: str, epoch: int, metrics: Mapping[str, float], directory: str | Path
    ) -> str:
        """Save the files of `directory` as the trial's checkpoint of `epoch`; return its path.

        Interrupted at any point, it leaves every earlier checkpoint intact.

        Raises:
            StorageError: the storage failed repeatedly.
        """
        source = Path(directory)
        noted = dict(metrics)
        self._patience.insist(lambda: self._save(trial_id, epoch, noted, source), self.no_room)
        return self.path(trial_id, epoch)

    def _save(
        self, trial: str, epoch: int, metrics: Mapping[str, float], directory: Path
    ) -> Manifest:
        folder = uuid.uuid4().hex[:8]
        target = f"{self._folder(trial, epoch)}/{folder}"
        files = {}
        try:
            for path in _list_files(directory):
                name = path.relative_to(directory).as_posix()
                file = f"{target}/{name}"
                # S3 has no folders, and creating one would require rights on the bucket.
                if storage.is_local(self._fs):
                    self._fs.create_dir(file.rpartition("/")[0], recursive=True)
                with (
                    path.open("rb") as reader,
                    self._fs.open_output_stream(file, compression=None) as out,
                ):
                    files[name] = copy_file(reader, out)
        except OSError:
            with storage.best_effort():  # a full storage has no room for half a save
                self._fs.delete_dir(target)
            raise
        return self._finish(trial, epoch, metrics, folder, files)

    def stage(self, trial_id: str, epoch: int, directory: str | Path) -> PendingCheckpoint | None:
        """Copy the files of `directory` to the local disk; see `commit`.

        If the storage is on the same disk as temporary files, they go to their final place at once:
        then a `prune` of the trial must spare the epoch. None, which is logged, if there is no room
        or the disk fails repeatedly.
        """
        source = Path(directory)
        _list_files(source)
        try:
            no_room = self.no_room if self._is_on_local_disk else None
            return self._room.insist(lambda: self._stage(trial_id, epoch, source), no_room)
        except storage.StorageError as error:
            self.failure = str(error)
            storage.tell(f"epoch {epoch} is not saved: {error}")
            return None

    def _stage(self, trial_id: str, epoch: int, directory: Path) -> PendingCheckpoint:
        if self._is_on_local_disk:
            # Copied only once: the manifest makes a checkpoint of files at their final place.
            folder = uuid.uuid4().hex[:8]
            pending = PendingCheckpoint(
                trial_id, epoch, f"{self._folder(trial_id, epoch)}/{folder}", folder
            )
        else:
            size = sum(path.stat().st_size for path in _list_files(directory))
            node_copies.make_room(size)
            place = tempfile.mkdtemp(prefix="cloudtune-", dir=storage.staging_folder(size))
            pending = PendingCheckpoint(trial_id, epoch, place, None)
        try:
            for path in _list_files(directory):
                target = Path(pending.files, path.relative_to(directory))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        except OSError:
            shutil.rmtree(pending.files, ignore_errors=True)
            raise
        return pending

    def commit(self, pending: PendingCheckpoint, metrics: Mapping[str, float]) -> str | None:
        """Make a checkpoint of pending files; return its path. As safe to interrupt as `save`.

        None if the storage failed repeatedly, which is logged: earlier checkpoints are intact, and
        the next may be saved. Files outside the storage are `held` then.
        """
        try:
            self._patience.insist(lambda: self._commit(pending, metrics), self.no_room)
            return self.path(pending.trial, pending.epoch)
        except storage.StorageError as error:
            self.failure = str(error)
            # This is the only copy of the epoch: the controller may fetch it before the node goes.
            self.held = pending.files if pending.folder is None else ""
            storage.tell(f"epoch {pending.epoch} is not saved: {error}")
            return None
        finally:
            if pending.folder is None and self.held != pending.files:
                shutil.rmtree(pending.files, ignore_errors=True)

    def _commit(self, pending: PendingCheckpoint, metrics: Mapping[str, float]) -> None:
        trial = pending.trial
        epoch = pending.epoch
        source = Path(pending.files)
        if pending.folder is None:
            manifest = self._save(trial, epoch, dict(metrics), source)
            node_copies.keep(trial, manifest.folder, source)
            return
        files = {}
        for path in _list_files(source):
            files[path.relative_to(source).as_posix()] = examine(path)
        self._finish(trial, epoch, dict(metrics), pending.folder, files)

    def _finish(
        self,
        trial: str,
        epoch: int,
        metrics: Mapping[str, float],
        folder: str,
        files: Mapping[str, SavedFile],
    ) -> Manifest:
        """Write the manifest in one step: an object put on S3, a rename in a local folder."""
        manifest = Manifest(trial, epoch, metrics, folder, files, time.time(), self.trained)
        target = self._folder(trial, epoch)
        final = f"{target}/{MANIFEST}"
        written = f"{final}.part" if storage.is_local(self._fs) else final
        storage.write_file(self._fs, written, manifest.to_json())
        if written != final:
            self._fs.move(written, final)
        # Only now: until here the manifest named the files of the previous save.
        with storage.best_effort():
            for info in storage.entries(self._fs, target):
                if info.base_name not in {folder, MANIFEST}:
                    storage.delete(self._fs, info)
        return manifest

    def _folder(self, trial_id: str, epoch: int) -> str:
        return f"{self._root}/{trial_id}/epoch-{epoch:05d}"

    def latest(self, trial_id: str) -> str | None:
        """Return the path of the trial's checkpoint of the highest epoch, or None."""
        saved = self._list_checkpoints(trial_id)
        return self.path(trial_id, max(saved)) if saved else None

    def list_checkpoints(self, trial_id: str) -> dict[str, Manifest]:
        """Return the trial's complete checkpoints by path, earliest first."""
        manifests = sorted(self._list_checkpoints(trial_id).items())
        return {self.path(trial_id, epoch): manifest for epoch, manifest in manifests}

    def is_intact(self, path: str) -> bool:
        """Whether the checkpoint at `path` has its manifest and all files unchanged.

        Reads a file for its checksum, unless this worker knows that it is unchanged.

        Raises:
            StorageError: the storage can't be reached.
        """

        def look() -> bool:
            try:
                manifest = read_manifest(path)
                if self._is_on_local_disk or _copy_to_node(path, manifest) is None:
                    _copy(path, manifest, None)
            except (storage.CheckpointError, FileNotFoundError):
                return False
            return True

        return self._patience.insist(look)

    def is_whole(self, path: str) -> bool:
        """Whether the checkpoint at `path` has its manifest and all files, at their full size.

        Raises:
            StorageError: the storage can't be reached.
        """

        def look() -> bool:
            try:
                manifest = read_manifest(path)
            except storage.CheckpointError:
                return False
            fs, folder = storage.filesystem(path)
            names = list(manifest.files)
            # Sizes cost one request; reading all files would cost a download.
            infos = fs.get_file_info([f"{folder}/{manifest.folder}/{name}" for name in names])
            sizes = [info.size if info.is_file else None for info in infos]
            return sizes == [manifest.files[name].size for name in names]

        return self._patience.insist(look)

    def path(self, trial_id: str, epoch: int) -> str:
        """Return the path of the trial's checkpoint of an epoch, whether it exists or not."""
        return f"{self.uri.rstrip('/')}/{trial_id}/epoch-{epoch:05d}"

    @storage.best_effort()
    def prune(self, trial_id: str, metric: str, mode: str, spare: Collection[int] = ()) -> None:
        """Drop all but the latest checkpoint and the best one by `metric` ("max" or "min").

        Files left by interrupted saves are deleted too. Ties go to the earliest checkpoint, as for
        the best of a run; NaN, an infinity that would win, or a missing metric is the worst. The
        epochs of `spare` stay too. Failed deletions are retried the next time.
        """
        saved = self._list_checkpoints(trial_id)
        if not saved:
            return
        sign = 1.0 if mode == "max" else -1.0

        def merit(epoch: int) -> tuple[float, int]:
            value = sign * saved[epoch].metrics.get(metric, math.nan)
            diverged = math.isnan(value) or value == math.inf
            return (-math.inf, epoch) if diverged else (value, -epoch)

        # A resume continues from the latest; the best may be what the run returns.
        keep = {max(saved), max(saved, key=merit), *spare}
        for epoch, folder in self._epoch_folders(trial_id).items():
            if epoch not in keep:
                with storage.best_effort():
                    self._drop_epoch(folder)

    def drop(self, trial_id: str) -> bool:
        """Delete a trial's checkpoints as far as possible; return whether it had any."""
        folders: dict[int, str] = {}
        with storage.best_effort():
            folders = self._epoch_folders(trial_id)
            for folder in folders.values():
                self._drop_epoch(folder)
        return bool(folders)

    @property
    def _is_on_local_disk(self) -> bool:
        """Whether the storage is on the same disk as temporary files."""
        if not storage.is_local(self._fs):
            return False
        Path(self._root).mkdir(parents=True, exist_ok=True)
        return Path(self._root).stat().st_dev == Path(storage.staging_folder()).stat().st_dev

    def _drop_epoch(self, folder: str) -> None:
        """Delete a checkpoint, manifest first: half of one must not look complete."""
        infos = storage.entries(self._fs, folder)
        for info in sorted(infos, key=lambda info: info.base_name != MANIFEST):
            storage.delete(self._fs, info)
        self._fs.delete_dir(folder)

    def _epoch_folders(self, trial_id: str) -> dict[int, str]:
        matches = (
            (EPOCH_FOLDER.fullmatch(info.base_name), info.path)
            for info in storage.entries(self._fs, f"{self._root}/{trial_id}")
        )
        return {int(match.group(1)): path for match, path in matches if match}

    def _list_checkpoints(self, trial_id: str) -> dict[int, Manifest]:
        saved = {}
        for epoch, folder in self._epoch_folders(trial_id).items():
            # The remains of an interrupted write aren't a checkpoint either.
            with contextlib.suppress(FileNotFoundError, storage.CheckpointError):
                saved[epoch] = _read_manifest(self._fs, folder)
        return saved


def read_manifest(path: str) -> Manifest:
    """Return the manifest of the stored checkpoint at `path`.

    Raises:
        CheckpointError: there is no complete checkpoint at `path`.
    """
    fs, folder = storage.filesystem(path)
    try:
        return _read_manifest(fs, folder)
    except FileNotFoundError as error:
        raise storage.CheckpointError(f"there is no checkpoint at {path}") from error


def usable(path: str, waits: tuple[float, ...] = storage.WAITS) -> str | None:
    """Return the stored checkpoint at `path`, or the trial's latest intact one before it.

    None if the trial has none. So a damaged file costs a few epochs and not the trial; that is
    logged.

    Raises:
        StorageError: the storage can't be reached.
    """
    folder, _, name = path.rstrip("/").rpartition("/")
    root, _, trial = folder.rpartition("/")
    match = EPOCH_FOLDER.fullmatch(name)
    store = CheckpointStore(root, waits)
    if match is None or store.is_intact(path):
        return path
    saved = [
        other for other, it in store.list_checkpoints(trial).items() if it.epoch < int(match[1])
    ]
    earlier = next((other for other in reversed(saved) if store.is_intact(other)), None)
    source = earlier or "the beginning, as there is no earlier one"
    storage.tell(f"{path} is missing or damaged; the trial resumes from {source}")
    return earlier


def standing(path: str) -> str | None:
    """Return the stored checkpoint at `path`, or the trial's latest if that one is gone.

    None if nothing is left of the trial. A remote storage isn't asked: then return `path`.
    """
    folder, _, _ = path.rstrip("/").rpartition("/")
    root, _, trial = folder.rpartition("/")
    if "://" in path or not Path(root).is_dir():
        return path
    try:
        store = CheckpointStore(root, ())
        return path if store.is_whole(path) else store.latest(trial)
    except (OSError, storage.StorageError):
        return path


def load(path: str, to_directory: Path) -> Manifest:
    """Copy the stored checkpoint at `path` into a local folder, checking each file.

    Raises:
        CheckpointError: there is none, or one of its files is missing, short or altered.
    """
    manifest = read_manifest(path)
    files = _copy_to_node(path, manifest)
    if files is None or not node_copies.link(files, to_directory):
        _copy(path, manifest, to_directory)
    return manifest


def fetch(path: str) -> None:
    """Begin to copy the stored checkpoint at `path` to this node's disk, for the `load` to come."""

    def work() -> None:
        # `load` meets the same error, and raises it.
        with contextlib.suppress(OSError, storage.CheckpointError):
            _copy_to_node(path, read_manifest(path))

    if node_copies.are_kept():
        threading.Thread(target=work, name="fetch", daemon=True).start()


def _copy_to_node(path: str, manifest: Manifest) -> Path | None:
    """Return the folder of this node's copy of a checkpoint; make one, which checks the files.

    None if this process has no agent, or there is no room.

    Raises:
        CheckpointError: one of them is missing, short or altered.
    """
    save = manifest.trial, manifest.folder
    if not node_copies.are_kept():
        return None
    with node_copies.one_at_a_time(manifest.trial):
        files = node_copies.find(*save)
        if files is None and node_copies.has_room(manifest.size):
            with node_copies.new_folder() as folder:
                _copy(path, manifest, folder / "files")
                node_copies.keep(*save, folder / "files")
            files = node_copies.find(*save)
        return files


def _copy(path: str, manifest: Manifest, to_directory: Path | None) -> None:
    """Copy the files of a stored checkpoint, or only check them.

    Raises:
        CheckpointError: one of them is missing, short or altered.
    """
    for name, saved in manifest.files.items():
        target = Path(os.devnull)
        if to_directory is not None:
            target = to_directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # it may be a link to a copy that others read
        unchanged = _local_unchanged(path, manifest, name)
        if unchanged is not None:
            if to_directory is not None:
                shutil.copyfile(unchanged, target)  # by the kernel, at the memory's speed
            continue
        try:
            with open_file(path, manifest, name) as reader, target.open("wb") as out:
                copy = copy_file(reader, out, like=saved)
        except FileNotFoundError as error:
            message = f"{name} is missing from the checkpoint {path}"
            raise storage.CheckpointError(message) from error
        if copy != saved:
            raise storage.CheckpointError(
                f"{name} of the checkpoint {path} is corrupt: {copy.size} bytes, "
                f"{copy.checksum[:20]}; {saved.size} bytes, {saved.checksum[:20]} were saved"
            )


# Of a name on most file systems; and of a path, half of what Linux takes with the storage's.
_LONGEST_NAME: Final = 255
_LONGEST_PATH: Final = 2048


def _check_values(manifest: Manifest) -> None:
    """Refuse what no save writes: values of other types, and names that lead elsewhere.

    Raises:
        ValueError: it has some.
    """
    for name in (manifest.trial, manifest.folder, *manifest.files):
        _refuse_name(name)
    for folder in (manifest.trial, manifest.folder):
        if "/" in folder:
            raise ValueError(f"its folder {folder!r} is within another")
    for name, file in manifest.files.items():
        above = {str(folder) for folder in PurePosixPath(name).parents}
        if above & manifest.files.keys():
            raise ValueError(f"it names {name!r} in what is a file")
        if not file.is_valid:
            raise ValueError(f"the size or the checksum of {name!r} is none")
    if not _is_count(manifest.epoch):
        raise ValueError("its epoch is none")
    trained = manifest.trained
    for number in (manifest.saved_at, trained.gpus, trained.batch_size):
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{number!r} is no finite number")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _refuse_name(name: str) -> None:
    if leads_out(name):
        raise ValueError(f"it names {name!r}, which leads out of its folder")
    too_long = len(name.encode()) > _LONGEST_PATH
    parts = name.split("/")
    if too_long or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise ValueError(f"it names a file by {len(name)} letters")
    if "\0" in name or "" in parts or "." in parts:
        raise ValueError(f"it names {name!r}, which is no file's name")


def leads_out(name: str) -> bool:
    """Whether a relative path, with slashes, leads out of the folder that it is relative to."""
    return not name or name.startswith("/") or ".." in name.split("/")


def open_file(path: str, manifest: Manifest, name: str) -> Any:
    """Open a file of the stored checkpoint at `path` for reading.

    Raises:
        CheckpointError: it is a link or a device: someone who can write to the storage must not
            make a trial read other files.
        FileNotFoundError: it doesn't exist.
    """
    fs, folder = storage.filesystem(path)
    file = f"{folder}/{manifest.folder}/{name}"
    if storage.is_local(fs) and Path(file).exists() and not _is_plain(folder, manifest, name):
        raise storage.CheckpointError(f"{name} of the checkpoint {path} is no plain file")
    return storage.open_file(fs, file)


def _local_unchanged(path: str, manifest: Manifest, name: str) -> Path | None:
    """Return a file of a checkpoint on this machine that needn't be read for a check, or None."""
    fs, folder = storage.filesystem(path)
    if not storage.is_local(fs):
        return None
    file = Path(folder, manifest.folder, name)
    unchanged = is_unchanged(file, manifest.files[name]) and _is_plain(folder, manifest, name)
    return file if unchanged else None


def _is_plain(folder: str, manifest: Manifest, name: str) -> bool:
    """Whether a file is one, and isn't behind a link.

    The storage itself may be behind a link, but nothing below it may be one.
    """
    real = Path(os.path.realpath(folder), manifest.folder, name)
    file = f"{folder}/{manifest.folder}/{name}"
    return Path(os.path.realpath(file)) == real and real.is_file()


def _read_manifest(filesystem: Any, folder: str) -> Manifest:
    where = f"{folder}/{MANIFEST}"
    with filesystem.open_input_stream(where) as reader:
        return Manifest.from_json(reader.read(), where)


def _list_files(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise UsageError(f"the checkpoint folder {folder} holds no files")
    return paths

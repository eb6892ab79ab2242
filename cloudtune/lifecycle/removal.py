"""Removing runs: their folder on this machine, and their checkpoints and logs in the storage."""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from cloudtune.engine.ledger import DAMAGED
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.infra.heads.launch import Remote, head_tag
from cloudtune.infra.provider import calls_to, find_provider, list_errors
from cloudtune.lifecycle import cleanup
from cloudtune.runs import control, home
from cloudtune.train.storage import delete, entries, filesystem, is_local, storage_errors

# The ledger of a measurement.
MEASURE = "measure.jsonl"


@dataclass(frozen=True)
class RemovedFolder:
    """A folder to remove with a run: its number of files, and their bytes.

    If the folder is a link, `stays` is what it points to, and only the link goes.
    """

    place: str
    files: int
    size: int
    stays: str = ""


@dataclass(frozen=True)
class Removable:
    """A run that may be removed; `stored` is None if its storage is unknown."""

    folder: Path
    kept: RemovedFolder
    stored: RemovedFolder | None

    @property
    def parts(self) -> tuple[RemovedFolder, ...]:
        """The folders to remove."""
        return (self.kept,) if self.stored is None else (self.stored, self.kept)

    def remove(self) -> None:
        """Remove the run, its local record last, so that an interrupted removal can be repeated.

        Raises:
            UsageError: it has been resumed since.
            StorageError: its storage can't be reached, or refuses.
        """
        _refuse_alive(self.folder)
        if self.stored is not None:
            clear(self.stored.place)
        _remove(self.folder)


def removable(name: str) -> Removable:
    """Return a run, or the measurement of a script, by its name or an unambiguous prefix.

    Raises:
        UsageError: there is no such run, or several; or it is alive, or may bill.
        StorageError: its storage can't be reached.
    """
    # Measurements have a folder there too, without a run's ledger.
    folders = sorted(folder for folder in home.runs().glob("*") if folder.is_dir())
    folder = home.the_one(name, folders)
    _refuse_alive(folder)
    _refuse_billing(folder)
    kept = _found_in(folder)
    uri = _find_storage(folder)
    return Removable(folder, kept, None if uri is None else _find_folder(uri))


def clear(uri: str, keep: str = "") -> None:
    """Delete a run's folder in a storage; with `keep`, all but the folder of that name.

    Links on this machine are removed, and never followed.

    Raises:
        StorageError: the storage can't be reached, or refuses.
    """
    with storage_errors(uri), contextlib.suppress(FileNotFoundError):
        fs, root = filesystem(uri)
        if is_local(fs):
            _clear_here(Path(root), keep)
            return
        infos = entries(fs, root)
        for info in infos:
            if info.base_name != keep:
                delete(fs, info)
        if infos and not keep:
            fs.delete_dir(root)  # an object store's folder disappears with its last file


def _clear_here(folder: Path, keep: str) -> None:
    if not keep:
        _remove(folder)
    elif not folder.is_symlink():
        for path in folder.iterdir():
            if path.name != keep:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all in it; what links point to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _found_in(folder: Path) -> RemovedFolder:
    """Return what is to be removed with a folder on this machine, where links count as files."""
    if folder.is_symlink():
        return RemovedFolder(str(folder), 0, 0, stays=str(folder.resolve()))
    files = 0
    size = 0
    for top, folders, names in os.walk(folder):
        links = [name for name in folders if Path(top, name).is_symlink()]
        for name in (*names, *links):
            files += 1
            size += Path(top, name).lstat().st_size
    return RemovedFolder(str(folder), files, size)


def _refuse_alive(folder: Path) -> None:
    if control.is_driven(folder):
        raise UsageError(
            f"run {folder.name} is alive and nothing was removed; `cloudtune stop {folder.name}` "
            "ends it"
        )
    left = sum(head.processes for head in cleanup.dead_heads() if head.folder == folder)
    if left:
        raise UsageError(
            f"run {folder.name} has left {left} processes here and nothing was removed; "
            f"`cloudtune gc {folder.name}` ends them"
        )


def _refuse_billing(folder: Path) -> None:
    provider, region = control.read_place(folder)
    if provider and region:
        clouds = find_provider(provider).clouds_in_use(home.home(), {region}, None)
    else:  # it is unknown where the run rented
        clouds = cleanup.open_clouds(None)
    for cloud in clouds:
        try:
            calls = calls_to(cloud.endpoint)
            alive = [*calls.ours(folder.name, ended=False)]
            alive += calls.ours(head_tag(folder.name), ended=False)
        except list_errors(cloud.endpoint) as error:
            raise UsageError(
                f"run {folder.name} may still have instances and nothing was removed: "
                f"{cloud.endpoint.region} can't be asked: {error}"
            ) from None
        billing = [instance.id for instance in alive if instance.billing]
        if billing:
            raise UsageError(
                f"run {folder.name} still has {', '.join(billing)} and nothing was removed; "
                f"`cloudtune gc {folder.name}` gives them back"
            )


def _find_storage(folder: Path) -> str | None:
    """Return STORAGE/RUN of a run or a measurement; None if its records don't say."""
    with contextlib.suppress(CloudtuneError):
        if (remote := Remote.of(folder)) is not None:
            return remote.storage
    # The experiment is in the first line of each ledger, whatever its version.
    for name, key in ((home.LEDGER, "experiment"), (MEASURE, "measure")):
        with contextlib.suppress(OSError, *DAMAGED):
            with (folder / name).open(encoding="utf-8", errors="replace") as lines:
                storage = dict(json.loads(lines.readline())[key]).get("storage")
            if isinstance(storage, str) and storage:
                return home.run_storage(storage, folder.name)
    return None


def _find_folder(uri: str) -> RemovedFolder:
    from pyarrow import fs as pyarrow_fs  # noqa: PLC0415  takes a while

    with storage_errors(uri):
        fs, root = filesystem(uri)
        if is_local(fs):
            return replace(_found_in(Path(root)), place=uri)
        selector = pyarrow_fs.FileSelector(root, recursive=True, allow_not_found=True)
        infos = [info for info in fs.get_file_info(selector) if info.is_file]
    return RemovedFolder(uri, len(infos), sum(info.size for info in infos))

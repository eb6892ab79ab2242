"""The data of a run before it starts: folders of this machine go where instances reach them."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.data import is_in_s3
from cloudtune.infra.provider import find_provider
from cloudtune.infra.sent_files import IGNORE_FILE, sent_files
from cloudtune.model.units import format_seconds
from cloudtune.runs import home
from cloudtune.runs.control import to_stderr
from cloudtune.train import storage

# The folder of a storage with the data of all its runs, by content:
#     STORAGE/data/HASH/…        the files
#     STORAGE/data/HASH.json     written last
FOLDER: Final = "data"
_FILES_AT_ONCE: Final = 8
_PIECE: Final = 8 << 20
_READ_ONLY: Final = 0o444


def with_data(experiment: Experiment) -> Experiment:
    """Return an experiment whose data every instance can reach.

    Folders of this machine are uploaded to its storage, each content once. Where trials train
    beside the user's own files, they stay where they are.

    Raises:
        UsageError: a folder is missing, in the way of another, or would be sent with the script.
        StorageError: the storage can't be reached.
    """
    check_data(experiment)
    if not find_provider(experiment.cloud.provider).sends_files:
        return experiment
    shared = f"{home.storage(experiment.storage).rstrip('/')}/{FOLDER}"
    sources = dict(experiment.data_sources)
    for name, source in sources.items():
        if not is_in_s3(source) and Path(source).parent != Path(shared):
            sources[name] = _upload_folder(name, Path(source), shared)
    return experiment.model_copy(update={"data": sources})


def check_data(experiment: Experiment) -> None:
    """Check that folders of data exist, and that each has its place beside the script.

    Raises:
        UsageError: one doesn't, or its place is taken; the message names it.
    """
    folder = experiment.train_folder
    sends = find_provider(experiment.cloud.provider).sends_files
    for name, source in experiment.data_sources.items():
        if not is_in_s3(source) and not Path(source).is_dir():
            raise UsageError(f"data.{name}: {source} is no folder; nothing was launched")
        place = folder / name
        if not os.path.lexists(place):
            continue
        if is_in_s3(source) or os.path.realpath(place) != os.path.realpath(source):
            raise UsageError(
                f"data.{name}: {place} is there already, and the data would be in its place: "
                "choose another name; nothing was launched"
            )
        if sends and any(path.is_relative_to(place) for path in sent_files(folder)):
            raise UsageError(
                f"data.{name}: {place} would be sent with the script too: name {name}/ in "
                f"{IGNORE_FILE}; nothing was launched"
            )


def _upload_folder(name: str, folder: Path, shared: str) -> str:
    """Return the address of a folder's content in the storage, uploaded unless it is there."""
    began = time.monotonic()
    paths = list(_files(name, folder))
    hashed = hashlib.sha256()
    size = 0
    for path in paths:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        hashed.update(f"{path.relative_to(folder)}\0{content}\n".encode())
        size += path.stat().st_size
    address = f"{shared}/{hashed.hexdigest()[:32]}"
    with storage.storage_errors(address):
        files, root = storage.filesystem(address)
        if storage.read_file(files, f"{root}.json") is not None:
            return address
        targets = [f"{root}/{path.relative_to(folder)}" for path in paths]
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            for _ in pool.map(partial(_upload, files), paths, targets):
                pass  # raises what failed
        written = json.dumps({"files": len(paths), "bytes": size})
        storage.write_file(files, f"{root}.json", written.encode())
    took = format_seconds(time.monotonic() - began)
    to_stderr(f"data.{name}: {size / 1e6:,.0f} MB uploaded to {address} in {took}")
    return address


def _files(name: str, folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, in order."""
    found = False
    for where, folders, names in os.walk(folder):
        folders.sort()
        for below in folders:
            if (link := Path(where) / below).is_symlink():
                raise UsageError(
                    f"data.{name}: {link} is a link to a folder, which isn't followed: name that "
                    "folder as data of its own; nothing was launched"
                )
        for each in sorted(names):
            found = True
            yield Path(where) / each
    if not found:
        raise UsageError(f"data.{name}: {folder} has no files; nothing was launched")


def _upload(files: Any, path: Path, target: str) -> None:
    if storage.is_local(files):  # S3 has no folders
        files.create_dir(target.rpartition("/")[0], recursive=True)
    with path.open("rb") as file, files.open_output_stream(target, compression=None) as out:
        shutil.copyfileobj(file, out, _PIECE)
    if storage.is_local(files):
        Path(target).chmod(_READ_ONLY)

"""The data of a run on a node: a folder for each source, beside the script.

A source in S3 is copied to the node's own disk before anything of the script is imported. Agents of
one run on one machine, as on a Ray cluster, share a copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError
from cloudtune.experiment.data import is_in_s3
from cloudtune.file_locks import lock_file, share_lock, try_lock
from cloudtune.train.storage import Patience, StorageError, filesystem, open_file, staging_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

_FILES_AT_ONCE: Final = 8
_READ_ONLY: Final = 0o444
_COPY: Final = "cloudtune-data-"


class DataError(UsageError):
    """Data can't be had; the message names its folder and says why."""


class NodeData:
    """The folders of a run's data on this node.

    Args:
        sources: where each is: an address in S3, or a path that this node has.
        run: the address of the run in its storage: other runs have other copies.
    """

    def __init__(self, sources: Mapping[str, str], run: str) -> None:
        self._sources = sources
        self._run = run
        self._copies: list[tuple[TextIO, Path]] = []
        self.seconds = 0.0
        """How long the copies took."""

    def provide(self, beside: Path) -> None:
        """Put a link to each folder beside the script, once it is complete.

        Raises:
            DataError: a source can't be read, or there is no room for it.
        """
        for name, source in self._sources.items():
            folder = Path(source)
            if is_in_s3(source):
                folder = self._copy_source(name, source)
            elif not folder.is_dir():
                raise DataError(f"data.{name}: this machine has no folder {source}")
            _link(beside / name, folder)

    def problem(self, beside: Path) -> str:
        """Put a link to each folder beside the script; return why that failed, "" if it hasn't."""
        began = time.monotonic()
        try:
            self.provide(beside)
        except DataError as error:
            return str(error)
        self.seconds = time.monotonic() - began
        return ""

    def close(self) -> None:
        """Delete the copies that no other agent uses."""
        for users, folder in self._copies:
            with users, lock_file(_beside(folder.name, "lock")):
                if not try_lock(users):
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                for tail in ("users", "lock"):
                    _beside(folder.name, tail).unlink(missing_ok=True)
        self._copies.clear()

    def _copy_source(self, name: str, source: str) -> Path:
        """Return the complete copy of a source in S3."""
        digest = hashlib.sha256(f"{self._run}\n{source}".encode()).hexdigest()
        copy = f"{_COPY}{digest[:16]}"
        with lock_file(_beside(copy, "lock")):
            try:
                place = _copy_once(name, source, copy)
                users = _beside(copy, "users").open("a", encoding="utf-8")
            except (OSError, StorageError) as error:
                raise DataError(f"data.{name}: {source} can't be copied: {error}") from None
            share_lock(users)
        self._copies.append((users, place))
        return place


def _beside(name: str, tail: str) -> Path:
    """Return a file of a copy that all agents of this machine find: its lock or its users."""
    return Path(tempfile.gettempdir()) / f"{name}.{tail}"


def _copy_once(name: str, source: str, folder: str) -> Path:
    """Return a complete copy of a source, made unless there is one."""
    files, root, infos = list_files(name, source)
    size = sum(info.size for info in infos)
    place = Path(staging_folder(size, f"data.{name}")) / folder
    if place.exists() and place.stat().st_uid != os.getuid():
        raise DataError(f"data.{name}: {place} is another user's")
    if not place.exists():
        part = place.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        copy_files(source, files, root, infos, part)
        part.rename(place)
    return place


def list_files(name: str, source: str) -> tuple[Any, str, Sequence[Any]]:
    """Return the file system of a source in S3, the path there, and its files.

    Raises:
        DataError: it can't be listed, or there is nothing.
    """
    from pyarrow import fs  # noqa: PLC0415  takes a while

    try:
        files, root = filesystem(source)
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
        found = files.get_file_info(selector)
    except (OSError, ValueError) as error:  # pyarrow's own are either
        raise DataError(f"data.{name}: {source} can't be listed: {error}") from None
    infos = [info for info in found if info.is_file]
    if not infos:
        raise DataError(f"data.{name}: nothing is below {source}/")
    return files, root, infos


def copy_files(source: str, files: Any, root: str, infos: Iterable[Any], target: Path) -> None:
    """Copy files below `root` into a new folder, where nobody may write to them.

    Raises:
        StorageError: one can't be read, even after retries.
        OSError: the disk is full, or a name leads out of the folder.
    """
    patience = Patience(source)
    target.mkdir(mode=0o700, parents=True)  # other users of the machine may not read it

    def copy(info: Any) -> None:
        path = PurePosixPath(info.path).relative_to(root)
        if ".." in path.parts:
            raise OSError(f"{info.path} leads out of its folder")
        copied = target / path
        copied.parent.mkdir(parents=True, exist_ok=True)
        patience.insist(lambda: _copy(files, info.path, copied))

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        for _ in pool.map(copy, infos):
            pass  # raises what failed


def _copy(files: Any, path: str, copied: Path) -> None:
    with open_file(files, path) as file, copied.open("wb") as out:
        shutil.copyfileobj(file, out, 8 << 20)
    copied.chmod(_READ_ONLY)


def _link(link: Path, folder: Path) -> None:
    """Link to a folder, in place of a link that an agent before this one has made."""
    if os.path.realpath(link) == os.path.realpath(folder):
        return
    if link.exists() and not link.is_symlink():
        raise DataError(f"data.{link.name}: {link.name} is in the script's folder already")
    made = Path(f"{link}.{os.getpid()}")
    made.symlink_to(folder)
    made.replace(link)

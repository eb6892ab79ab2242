"""The part of a run's storage in which its head is spoken to, and speaks.

    STORAGE/RUN/head/parcel.tar.gz   what the head is given: the script's folder, profiles, files
    STORAGE/RUN/head/order.json      what it is to run
    STORAGE/RUN/head/remote.json     where it is, and until when
    STORAGE/RUN/head/record/…        what it knows of the run, brought away as it changes
    STORAGE/RUN/head/state.json      its own word: alive at this time, or how its command ended
    STORAGE/RUN/head/stop            there once somebody has asked it to end the run

What stands there, and in the tags of instances, is all that another machine needs to look on, to
end the run, or to go on with it.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cloudtune.train.checkpoint import leads_out
from cloudtune.train.storage import StorageError, filesystem, is_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FOLDER = "head"
PARCEL = "parcel.tar.gz"
ORDER = "order.json"
STATE = "state.json"
STOP = "stop"
RECORD = "record"
STALE_SECONDS = 90.0
"""A head that has said nothing for so long is not there any more, or can't reach the storage."""


@dataclass(frozen=True)
class State:
    """What a head says of itself: that it is alive at `beat` (Unix time), or how it ended.

    `code` is the exit code of its command, None while that runs. `attempt` counts the heads that a
    run has had, from 1.
    """

    beat: float
    instance: str
    attempt: int
    code: int | None = None

    @property
    def over(self) -> bool:
        """Whether its command has ended."""
        return self.code is not None

    def is_alive(self, now: float) -> bool:
        """Whether its command runs, as far as can be told at `now` (Unix time)."""
        return self.code is None and now - self.beat < STALE_SECONDS


class HeadStore:
    """Files of a run's head in its storage, `uri` being STORAGE/RUN.

    Raises:
        StorageError: the storage can't be reached; any method may.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        with self._told():
            self._fs, root = filesystem(f"{self.uri}/{FOLDER}")
        self._root = root

    def write(self, name: str, data: bytes) -> None:
        """Write a file: whoever reads it sees all of it, or what was there before."""
        path = f"{self._root}/{name}"
        with self._told():
            if is_local(self._fs):  # S3 has no folders
                self._fs.create_dir(path.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(path) as out:
                out.write(data)

    def read(self, name: str) -> bytes | None:
        """Return what is in a file; None where there is none."""
        with self._told():
            try:
                with self._fs.open_input_stream(f"{self._root}/{name}") as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        """Remove a file that may not be there."""
        with self._told(), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._root}/{name}")

    def listed(self) -> Mapping[str, tuple[int, float]]:
        """Return the files of the record, by name: how long each is, and when it was written."""
        from pyarrow import fs  # noqa: PLC0415  takes a while

        top = f"{self._root}/{RECORD}"
        selector = fs.FileSelector(top, recursive=True, allow_not_found=True)
        with self._told():
            found = self._fs.get_file_info(selector)
        return {
            info.path.removeprefix(f"{top}/"): (info.size, _seconds(info.mtime))
            for info in found
            if info.is_file
        }

    def state(self) -> State | None:
        """Return what the head last said of itself; None before its first word."""
        data = self.read(STATE)
        if data is None:
            return None
        try:
            return State(**json.loads(data))
        except (TypeError, ValueError):
            raise StorageError(f"{self.uri}/{FOLDER}/{STATE} is damaged") from None

    def tell(self, state: State) -> None:
        """Say how the head is."""
        self.write(STATE, json.dumps(asdict(state)).encode())

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except (OSError, ValueError) as error:  # pyarrow's own are of these two
            if isinstance(error, FileNotFoundError):
                raise
            raise StorageError(f"storage {self.uri}: {error}") from None


class Mirror:
    """A folder whose files are brought to a store's record as they change; times are Unix seconds.

    What belongs to the machine alone, as its processes and its secrets, stays (`kept_back`).
    """

    def __init__(self, store: HeadStore, folder: Path, prefix: str = "") -> None:
        self._store, self._folder, self._prefix = store, folder, prefix
        self._brought: dict[str, tuple[int, int]] = {}

    def bring(self) -> int:
        """Bring what has changed since the last time; returns how many files that were."""
        count = 0
        for path in sorted(self._folder.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                name, seen = path.relative_to(self._folder).as_posix(), path.stat()
                known = (seen.st_size, seen.st_mtime_ns)
                if not path.is_file() or kept_back(name) or self._brought.get(name) == known:
                    continue
                self._store.write(f"{RECORD}/{self._prefix}{name}", path.read_bytes())
                self._brought[name] = known
                count += 1
        return count


_OWN = ("controller.", "head.json", "intents.json", "autoscaler.json", "ray-token", "provider.lock")


def kept_back(name: str) -> bool:
    """Whether a file of a run's folder is of no use, or no business, to another machine."""
    return name.startswith(_OWN) or ".part" in name


def fetch(store: HeadStore, folder: Path, prefix: str = "") -> int:
    """Bring what of a record is newer than what is in a folder; returns how many files that were.

    With `prefix` only what is below it. A file is fetched anew where its length differs or it was
    written later.
    """
    count = 0
    for listed, (size, written) in store.listed().items():
        name = listed.removeprefix(prefix)
        if not listed.startswith(prefix) or leads_out(name) or kept_back(name):
            continue
        path = folder / name
        if _is_there(path, size, written):
            continue
        data = store.read(f"{RECORD}/{listed}")
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            part.write_bytes(data)
            part.replace(path)
            count += 1
    return count


def _is_there(path: Path, size: int, written: float) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    return there.st_size == size and there.st_mtime >= written


def _seconds(mtime: Any) -> float:
    if isinstance(mtime, datetime):
        return mtime.replace(tzinfo=mtime.tzinfo or UTC).timestamp()
    return time.time() if mtime is None else float(mtime)

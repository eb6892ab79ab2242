"""The part of a run's storage for communication with its head.

    STORAGE/RUN/head/parcel.tar.gz   the head's bundle: the script's folder, profiles, files
    STORAGE/RUN/head/boot.log        its boot output
    STORAGE/RUN/head/order.json      its order
    STORAGE/RUN/head/variables       variables of its trials, sealed; gone once it has read them
    STORAGE/RUN/head/remote.json     where it is, and until when
    STORAGE/RUN/head/record/…        its record of the run, copied as it changes
    STORAGE/RUN/head/record/…@0…     a piece of a growing file, from that byte on
    STORAGE/RUN/head/state.json      its state: alive at this time, or how its command ended
    STORAGE/RUN/head/stop            exists once the run was asked to stop

These files and the tags of instances are all that another machine needs to watch the run, to end
it, or to continue it.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cloudtune.infra.processes import replace_file
from cloudtune.train import storage
from cloudtune.train.checkpoint import leads_out

FOLDER = "head"
PARCEL = "parcel.tar.gz"
ORDER = "order.json"
BOOT = "boot.log"
STATE = "state.json"
STOP = "stop"
VARIABLES = "variables"
RECORD = "record"
# Length of a piece of a growing file: 12 hours of a run can make a ledger of 25 MB, which neither
# its head nor a watcher should copy every two seconds.
PIECE_BYTES = 1 << 18
# Files of a run that only grow; a crash may cut off their last line.
_GROWING = (".jsonl", ".log")
# A head that is silent for this many seconds is gone, or can't reach the storage.
STALE_SECONDS = 90.0


@dataclass(frozen=True)
class State:
    """A head's report of itself: alive at `beat` (Unix time), or how it ended.

    `code` is the exit code of its command, None while it runs. `attempt` counts the heads of a run,
    from 1.
    """

    beat: float
    instance: str
    attempt: int
    code: int | None = None

    def is_alive(self, now: float) -> bool:
        """Whether its command runs at `now` (Unix time), as far as recorded."""
        return self.code is None and now - self.beat < STALE_SECONDS


class HeadStore:
    """Files of a run's head in its storage, `uri` being STORAGE/RUN.

    Raises:
        StorageError: the storage can't be reached; any method may.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        with storage.storage_errors(self.uri):
            self._fs, self._root = storage.filesystem(f"{self.uri}/{FOLDER}")

    def make_uri(self, name: str) -> str:
        return f"{self.uri}/{FOLDER}/{name}"

    def write(self, name: str, data: bytes) -> None:
        """Write a file: readers see all of it, or the previous version."""
        with storage.storage_errors(self.uri):
            storage.write_file(self._fs, f"{self._root}/{name}", data)

    def read(self, name: str) -> bytes | None:
        with storage.storage_errors(self.uri):
            return storage.read_file(self._fs, f"{self._root}/{name}")

    def read_rest(self, name: str, begin: int) -> bytes:
        """Return the contents of a file from a byte on; b"" if there is no such file."""
        with storage.storage_errors(self.uri):
            try:
                with self._fs.open_input_file(f"{self._root}/{name}") as file:
                    file.seek(min(begin, file.size()))
                    return bytes(file.read())
            except FileNotFoundError:
                return b""

    def remove(self, name: str) -> None:
        with storage.storage_errors(self.uri), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._root}/{name}")

    def list_files(self) -> Mapping[str, tuple[int, float]]:
        """Return the files of the record by name: size, and time of the last write."""
        from pyarrow import fs  # noqa: PLC0415  takes a while

        top = f"{self._root}/{RECORD}"
        selector = fs.FileSelector(top, recursive=True, allow_not_found=True)
        with storage.storage_errors(self.uri):
            files = self._fs.get_file_info(selector)
        return {
            info.path.removeprefix(f"{top}/"): (info.size, (info.mtime_ns or time.time_ns()) / 1e9)
            for info in files
            if info.is_file
        }

    def state(self) -> State | None:
        """Return the head's last state; None before the first."""
        data = self.read(STATE)
        if data is None:
            return None
        try:
            return State(**json.loads(data))
        except (TypeError, ValueError):
            raise storage.StorageError(f"{self.uri}/{FOLDER}/{STATE} is damaged") from None

    def tell(self, state: State) -> None:
        self.write(STATE, json.dumps(asdict(state)).encode())


class Mirror:
    """Uploads the files of a folder to a store's record as they change; times are Unix seconds.

    Files that only concern this machine, such as its processes and secrets, stay (`kept_back`).
    """

    def __init__(self, store: HeadStore, folder: Path, prefix: str = "") -> None:
        self._store = store
        self._folder = folder
        self._prefix = prefix
        self._brought: dict[str, tuple[int, int]] = {}
        self._last_piece: dict[str, int] = {}  # where it begins

    def bring(self) -> int:
        """Upload the files that have changed since the last call; return their number."""
        count = 0
        for path in sorted(self._folder.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                name = path.relative_to(self._folder).as_posix()
                seen = path.stat()
                version = (seen.st_size, seen.st_mtime_ns)
                if not path.is_file() or kept_back(name) or self._brought.get(name) == version:
                    continue
                if name.endswith(_GROWING):
                    self._bring_pieces(path, f"{RECORD}/{self._prefix}{name}")
                else:
                    self._store.write(f"{RECORD}/{self._prefix}{name}", path.read_bytes())
                self._brought[name] = version
                count += 1
        return count

    def _bring_pieces(self, path: Path, name: str) -> None:
        """Write the last piece of a file again, and those after it.

        A new mirror writes all pieces, because lines may have been cut off since.
        """
        with path.open("rb") as file:
            last = os.fstat(file.fileno()).st_size // PIECE_BYTES * PIECE_BYTES
            begin = min(self._last_piece.get(name, 0), last)
            file.seek(begin)
            while begin <= last:
                self._store.write(_piece(name, begin), file.read(PIECE_BYTES))
                begin += PIECE_BYTES
        if name not in self._last_piece:
            self._store.remove(name)  # cloudtune 0.2.0 wrote it in one piece
        self._last_piece[name] = last


_OWN = ("controller.", "head.json", "intents.json", "autoscaler.json", "ray-token", "provider.lock")


def kept_back(name: str) -> bool:
    """Whether a file of a run's folder is useless for, or must not reach, another machine."""
    return name.startswith(_OWN) or ".part" in name


def fetch(store: HeadStore, folder: Path, prefix: str = "") -> int:
    """Fetch the files of a record that are newer than those in a folder; return their number.

    With `prefix`, only those below it. Of a growing file only new bytes are fetched; others if
    their length differs or they were written later.
    """
    count = 0
    growing: dict[str, dict[int, int]] = {}
    files: dict[str, tuple[int, float]] = {}
    for listed, (size, written) in store.list_files().items():
        name, _, begin = listed.removeprefix(prefix).partition("@")
        if not listed.startswith(prefix) or leads_out(name) or kept_back(name):
            continue
        if begin.isdecimal():
            growing.setdefault(name, {})[int(begin)] = size
        else:
            files[listed.removeprefix(prefix)] = (size, written)
    for name, (size, written) in files.items():
        if name in growing:
            continue
        with contextlib.suppress(OSError):
            stat = (folder / name).stat()
            if stat.st_size == size and stat.st_mtime >= written:
                continue
        data = store.read(f"{RECORD}/{prefix}{name}")
        if data is not None:
            replace_file(folder / name, data)
            count += 1
    for name, pieces in growing.items():
        count += _fetch_pieces(store, f"{RECORD}/{prefix}{name}", folder / name, pieces)
    return count


def _fetch_pieces(store: HeadStore, name: str, path: Path, pieces: Mapping[int, int]) -> bool:
    """Append the new parts of a file's pieces (lengths by their first byte) to a local file.

    Returns whether there were any. Several processes may do so at once: they write the same bytes
    at the same places.
    """
    end = 0
    while pieces.get(end) == PIECE_BYTES:
        end += PIECE_BYTES
    end += pieces.get(end, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        at = os.fstat(file.fileno()).st_size
        if at > end:
            at = end
            file.truncate(at)
        before = at
        while at < end:
            begin = at // PIECE_BYTES * PIECE_BYTES
            data = store.read_rest(_piece(name, begin), at - begin)
            is_last = begin + pieces[begin] == end
            if is_last and name.endswith(".jsonl"):  # half a line may be cut off there
                data = data[: data.rfind(b"\n") + 1]
            os.pwrite(file.fileno(), data, at)
            at += len(data)
            if is_last or at < begin + PIECE_BYTES:
                break
    return at > before


def _piece(name: str, begin: int) -> str:
    return f"{name}@{begin:012}"

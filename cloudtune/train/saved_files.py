"""The files of a checkpoint: their checksums, and whether they have changed since."""

import hashlib
import os
import re
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

# Files are read in chunks of this size: a checkpoint may be larger than the memory.
CHUNK_BYTES: Final = 1 << 20
_CRC32: Final = "crc32"
# Checkpoints of cloudtune 0.3 have it.
_SHA256: Final = "sha256"
_CHECKSUM: Final = re.compile(rf"{_CRC32}:[0-9a-f]{{8}}|{_SHA256}:[0-9a-f]{{64}}")
# Names the agent of this node to its workers.
AGENT_VARIABLE: Final = "CLOUDTUNE_AGENT"
# Two ticks of a slow kernel's clock: a change in the tick of the previous one has the same time.
TICK_SECONDS: Final = 0.02


@dataclass(frozen=True)
class SavedFile:
    """The size in bytes of one file of a checkpoint, and its checksum, as "crc32:…".

    A checksum finds torn and damaged files. It is no protection against someone who can write to
    the storage: they can write the manifest, too.

    `stamp` is the state of the stored file on a machine's own disk when the checksum was taken, and
    the agent there; or "".
    """

    size: int
    checksum: str
    stamp: str = field(default="", compare=False)

    @property
    def is_valid(self) -> bool:
        """Whether these values are ones that a save writes."""
        is_count = isinstance(self.size, int) and not isinstance(self.size, bool)
        if not (is_count and 0 <= self.size < 2**63 and isinstance(self.stamp, str)):
            return False
        return _CHECKSUM.fullmatch(str(self.checksum)) is not None

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "SavedFile":
        """Read the values of a manifest."""
        if _SHA256 in values:
            return cls(values["size"], f"{_SHA256}:{values[_SHA256]}")
        return cls(**values)


class _Digest(Protocol):
    def update(self, data: bytes, /) -> object: ...

    def hexdigest(self) -> str: ...


class _Crc32:
    """Zip's checksum: three times as fast as SHA-256 where the processor has that built in."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def copy_file(
    reader: BinaryIO, out: BinaryIO | None = None, *, like: SavedFile | None = None
) -> SavedFile:
    """Copy a file, if `out` is given, and return its size and its checksum, of the kind of `like`.

    They equal `like` if the files are the same.
    """
    is_old = like is not None and like.checksum.startswith(_SHA256)
    digest: _Digest = hashlib.sha256() if is_old else _Crc32()
    size = 0
    while chunk := reader.read(CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
        if out is not None:
            out.write(chunk)
    return SavedFile(size, f"{_SHA256 if is_old else _CRC32}:{digest.hexdigest()}")


def examine(path: Path) -> SavedFile:
    """Return the size, the checksum and the stamp of a file on a disk of this machine."""
    before = file_stamp(path)
    with path.open("rb") as reader:
        copy = copy_file(reader)
    changed_at = path.stat().st_ctime
    # A later change must show in the stamp.
    settled = changed_at + TICK_SECONDS < time.time() and before == file_stamp(path)
    return SavedFile(copy.size, copy.checksum, before if settled else "")


def is_unchanged(path: Path, saved: SavedFile) -> bool:
    """Whether a worker can tell without reading it that a file is still as it was saved.

    True only for workers of the agent whose worker took its checksum. An agent ends with its run,
    so a resumed run reads everything; and with its machine, which may lose what it had not yet
    written to the disk.
    """
    try:
        return saved.stamp != "" and saved.stamp == file_stamp(path)
    except OSError:
        return False


def file_stamp(path: Path) -> str:
    """Return what differs once a file has been written, cut or replaced; "" without an agent."""
    agent = os.environ.get(AGENT_VARIABLE)
    if not agent:
        return ""
    state = path.lstat()
    times = f"{state.st_mtime_ns}/{state.st_ctime_ns}"
    return f"{agent}/{state.st_dev}/{state.st_ino}/{state.st_size}/{times}"

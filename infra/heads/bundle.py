"""What a head is given: what to run, and the files that it needs, each at the place it has here.

The script's folder stands on the head where it stands on its user's machine: plans, profiles and
ledgers name it, and are then right in both places.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_BYTES = 200 * 2**20
_HERE, _HOME = "here", "home"
_LEFT_OUT = {".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


@dataclass(frozen=True)
class Order:
    """What a head is to run: the arguments of `cloudtune`, and in which folder.

    `began` is when the run's clock began, `until` when the head ends in any case (both Unix time).
    `environment` is added to its own.
    """

    run: str
    arguments: tuple[str, ...]
    folder: str
    began: float
    until: float
    environment: Mapping[str, str]
    attempt: int = 1

    def to_bytes(self) -> bytes:
        """Return it as a file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, data: bytes) -> Order:
        """Return what `to_bytes` gave."""
        told = json.loads(data)
        return cls(**{**told, "arguments": tuple(told["arguments"])})


def packed(code: Path, files: Mapping[Path, bytes], home: Path) -> bytes:
    """Return the folder `code`, `files` at their places, and what `home` has of earlier runs.

    Raises:
        UsageError: it is too much to send.
    """
    buffer, total = io.BytesIO(), 0
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for path in _below(code):
            total += path.stat().st_size
            if total > MOST_BYTES:
                raise UsageError(
                    f"{code} holds more than {MOST_BYTES >> 20} MiB, which all would be sent to "
                    "the head; keep data and checkpoints elsewhere (storage, or your own bucket)"
                )
            tar.add(path, f"{_HERE}{path}", recursive=False)
        for path, data in files.items():
            _add(tar, f"{_HERE}{path}", data)
        for name in ("profiles", "knowledge"):
            for path in _below(home / name):
                tar.add(path, f"{_HOME}/{path.relative_to(home)}", recursive=False)
    return buffer.getvalue()


def unpack(data: bytes, home: Path, root: Path = Path("/")) -> None:
    """Lay out what was packed, `home` being cloudtune's home here."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        for prefix, where in ((_HERE, root), (_HOME, home)):
            for member in tar.getmembers():
                if member.name.startswith(f"{prefix}/") and member.isfile():
                    member.name = member.name.removeprefix(f"{prefix}/")
                    where.mkdir(parents=True, exist_ok=True)
                    tar.extract(member, where, filter="data")


def _below(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            path = Path(top, name)
            if path.is_file() and not path.name.endswith(".pyc"):
                yield path


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))

"""What a head is given: what to run, and the files that it needs, each at the place it has here.

The script's folder stands on the head where it stands on its user's machine: plans, profiles and
ledgers name it, and are then right in both places.
"""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.infra.sent_files import IGNORE_FILE, sent_files

MOST_BYTES = 200 * 2**20
_HERE = "here"
_HOME = "home"


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


def packed(code: Path, files: Mapping[Path, bytes], home: Path) -> bytes:
    """Return the folder `code`, `files` at their places, and what `home` has of earlier runs.

    Raises:
        UsageError: it is too much to send.
    """
    buffer = io.BytesIO()
    total = 0
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for path in sent_files(code):
            total += path.stat().st_size
            if total > MOST_BYTES:
                raise UsageError(
                    f"{code} holds more than {MOST_BYTES >> 20} MiB, which all would be sent to "
                    f"the head; name data and checkpoints in {IGNORE_FILE} or .gitignore, and keep "
                    "them in storage, or your own bucket"
                )
            tar.add(path, f"{_HERE}{path}", recursive=False)
        for path, data in files.items():
            info = tarfile.TarInfo(f"{_HERE}{path}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name in ("profiles", "knowledge"):
            for path in sorted(filter(Path.is_file, (home / name).rglob("*"))):
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

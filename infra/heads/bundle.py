"""The bundle for a head: what to run, and its files, at the same paths as here.

The script's folder has the same path on the head as on the user's machine: plans, profiles and
ledgers contain it, and so are valid in both places.
"""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudtune.infra.sent_files import refuse_unsendable, sent_files

MOST_BYTES = 200 * 2**20
_HERE = "here"
_HOME = "home"


@dataclass(frozen=True)
class Order:
    """What a head runs: the arguments of `cloudtune`, and the folder.

    `began` is the start of the run's clock, `until` the hard end of the head (both Unix time).
    `environment` is added to its own.
    """

    run: str
    arguments: tuple[str, ...]
    folder: str
    began: float
    until: float
    environment: Mapping[str, str]
    attempt: int = 1


def pack(code: Path, files: Mapping[Path, bytes], home: Path) -> bytes:
    """Return an archive of the folder `code`, `files` at their paths, and `home`'s earlier runs.

    Raises:
        UsageError: it is too large to send, or can't be read.
    """
    refuse_unsendable(code, MOST_BYTES)
    buffer = io.BytesIO()
    # Links stand for what they point to: the head has no other files.
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1, dereference=True) as tar:
        for path in sent_files(code):
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
    """Unpack an archive; `home` is cloudtune's home here."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        for prefix, where in ((_HERE, root), (_HOME, home)):
            for member in tar.getmembers():
                if member.name.startswith(f"{prefix}/") and member.isfile():
                    member.name = member.name.removeprefix(f"{prefix}/")
                    where.mkdir(parents=True, exist_ok=True)
                    tar.extract(member, where, filter="data")

"""cloudtune itself as a wheel: the code that runs here, installed or not, in any layout."""

import base64
import hashlib
import os
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, version
from pathlib import Path

_TIME = (1980, 1, 1, 0, 0, 0)


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield the files of the package, in order: their names in a wheel, and where they are."""
    top = Path(__file__).parents[2]
    for folder, below, names in os.walk(top, followlinks=True):
        below[:] = sorted(set(below) - {"__pycache__"})
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix != ".pyc":
                yield f"cloudtune/{path.relative_to(top).as_posix()}", path


@cache
def code_hash() -> str:
    """Return the hash of cloudtune's code, its requirements and its entry points."""
    digest = hashlib.sha256(_metadata().encode() + _entry_points().encode())
    for name, path in _sources():
        digest.update(f"\n{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def write_wheel(folder: Path) -> Path:
    """Write the wheel into a folder, and return its path; equal code gives equal bytes."""
    number = version("cloudtune")
    info = f"cloudtune-{number}.dist-info"
    files = {name: path.read_bytes() for name, path in _sources()}
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: cloudtune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{info}/entry_points.txt"] = _entry_points().encode()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(data)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"cloudtune-{number}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
    return path


def _metadata() -> str:
    about = distribution("cloudtune")
    # What `make metadata` writes beside a checkout has the older name.
    return about.read_text("METADATA") or about.read_text("PKG-INFO") or ""


def _entry_points() -> str:
    """Return the command, and the names that cloudtune's own packages add (`plugins`)."""
    return distribution("cloudtune").read_text("entry_points.txt") or ""

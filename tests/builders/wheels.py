"""Tiny wheels in place of what is to be installed: environments are built without the network."""

import zipfile
from collections.abc import Mapping
from importlib.metadata import requires, version
from pathlib import Path

import psutil
from packaging.requirements import Requirement


def wheel(folder: Path, name: str, number: str, files: Mapping[str, str] | None = None) -> Path:
    plain = name.replace("-", "_").replace(".", "_")
    about = f"{plain}-{number}.dist-info"
    path = folder / f"{plain}-{number}-py3-none-any.whl"
    result = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\nProvides-Extra: default\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    written = {**(files or {}), f"{about}/METADATA": result, f"{about}/WHEEL": tag}
    record = "".join(f"{item},,\n" for item in [*written, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as made:
        for item, text in {**written, f"{about}/RECORD": record}.items():
            info = zipfile.ZipInfo(item)
            info.external_attr = 0o100755 << 16  # so that programs can be started
            made.writestr(info, text)
    return path


def stand_ins(folder: Path) -> None:
    """Write wheels of all that cloudtune needs: empty, but for a way to what is installed here."""
    folder.mkdir(parents=True, exist_ok=True)
    here = Path(psutil.__file__).parents[1]
    for line in requires("cloudtune") or ():
        needed = Requirement(line)
        if needed.marker is None:
            number = version(needed.name).partition("+")[0]
            files = {"zz_really.pth": f"{here}\n"} if needed.name == "numpy" else {}
            wheel(folder, needed.name, number, files)
    for name in ("packaging", "uv"):
        wheel(folder, name, version(name))

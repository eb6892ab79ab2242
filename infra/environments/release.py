"""The packages of a head: the versions that this release was tested with, and their hashes.

`constraints.txt` pins all packages of this repository, including those of its tests. `hashes.txt`
has those that a head installs, with the SHA-256 of each allowed file.
"""

import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cloudtune.infra.environments.spec import pins

# Written by `python -m tests.architecture.hashes`.
HASHES = Path(__file__).with_name("hashes.txt")
# The minor versions of Python 3 with files in it.
HASHED_PYTHONS = (11, 12, 13, 14)
# The dependencies of PyPI's torch on Linux, some of them indirect.
CUDA_PREFIXES = ("cuda-", "nvidia-", "triton")


def release_pins() -> tuple[list[str], str]:
    """Return the packages of a head: this release's, and the torch of this machine.

    A line for each: its version, with its hashes if there are any; and which packages have none,
    and why ("" if all have some).

    Scripts are tried with that torch. If it isn't the release's, it has other dependencies, whose
    hashes are unknown.
    """
    text = HASHES.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    unhashed = ""
    own = next(line.partition(" ")[0] for line in lines if line.startswith("torch=="))
    torch = next((pin for pin in pins(()) if pin.startswith("torch==")), own)
    if torch != own:
        needed = [Requirement(line).name for line in requires("torch") or ()]
        free = *(f"{canonicalize_name(name)}==" for name in ("torch", *needed)), *CUDA_PREFIXES
        lines = [torch, *(line for line in lines if not line.startswith(free))]
        unhashed = f"{torch} and what it needs, as this release was tested with {own}"
    if sys.version_info.minor not in HASHED_PYTHONS:
        lines = [line if line.startswith("uv==") else line.partition(" ")[0] for line in lines]
        unhashed = f"all, as this release was not tested with Python 3.{sys.version_info.minor}"
    return lines, unhashed

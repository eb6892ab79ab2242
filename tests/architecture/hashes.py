"""Write infra/environments/hashes.txt, from constraints.txt and the index that uv uses.

    .venv/bin/python -m tests.architecture.hashes

uv resolves what cloudtune and uv need for each Python and each kind of machine that a head may be,
and says which wheels of each package fit there. Heads build nothing, so each needs one.
"""

import subprocess
import tempfile
import tomllib
from collections import defaultdict
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from cloudtune.infra.environments.build import uv_program
from cloudtune.infra.environments.release import HASHED_PYTHONS, HASHES

ROOT = Path(__file__).parents[2]
MACHINES = ("x86_64", "aarch64")
# A later glibc than any image has, 2026-11: its wheels are those of the earlier ones too.
GLIBC = "manylinux_2_40"
HEADER = f"""\
# What a head installs, at the versions of constraints.txt, with the SHA-256 of each wheel for Linux
# on {" and ".join(MACHINES)}, Python 3.{HASHED_PYTHONS[0]} to 3.{HASHED_PYTHONS[-1]}.
# Written by: python -m tests.architecture.hashes
"""


def needed_by_heads() -> list[Requirement]:
    """Return what a head installs itself: what cloudtune asks for without extras, and uv."""
    lines = map(Requirement, requires("cloudtune") or ())
    return [*(line for line in lines if line.marker is None), Requirement("uv")]


def packages(python: str, platform: str) -> list[dict[str, Any]]:
    """Return the packages of a head, with the wheels that fit, as in a pylock.toml (PEP 751)."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text("\n".join(map(str, needed_by_heads())))
        command = (
            *(uv_program(), "pip", "compile", str(wanted), "-c", str(ROOT / "constraints.txt")),
            *("--python-version", python, "--python-platform", platform, "--no-build"),
            *("--format", "pylock.toml", "--quiet"),
        )
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return list(tomllib.loads(done.stdout)["packages"])


def main() -> None:
    """Write the file.

    Raises:
        SystemExit: a package has no wheel for one of the machines.
    """
    hashes: dict[str, set[str]] = defaultdict(set)
    for minor in HASHED_PYTHONS:
        for machine in MACHINES:
            platform = f"{machine}-{GLIBC}"
            for package in packages(f"3.{minor}", platform):
                pin = f"{package['name']}=={package['version']}"
                if not package.get("wheels"):
                    raise SystemExit(f"{pin} has no wheel for Python 3.{minor} on {platform}")
                hashes[pin] |= {wheel["hashes"]["sha256"] for wheel in package["wheels"]}
    lines = [
        " ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[pin]))])
        for pin in sorted(hashes)
    ]
    HASHES.write_text(HEADER + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""constraints.txt pins all that cloudtune, its examples and its tests need, and nothing more.

hashes.txt has the hashes of those that a head installs.
"""

import re
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cloudtune.infra.environments.release import CUDA_PREFIXES, HASHES
from tests.architecture.hashes import needed_by_heads

ROOT = Path(__file__).parents[2]


def read_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]


def find_dependencies(todo: list[Requirement]) -> set[str]:
    needed: set[str] = set()
    seen = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name.startswith(CUDA_PREFIXES) or (key := (name, *sorted(requirement.extras))) in seen:
            continue
        seen.add(key)
        needed.add(name)
        for below in map(Requirement, requires(name) or ()):
            wanted = [{"extra": extra} for extra in ("", *requirement.extras)]
            if below.marker is None or any(map(below.marker.evaluate, wanted)):
                todo.append(below)
    return needed - {"cloudtune"}  # its own extras are among them


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): number for name, number in pairs}


def test_the_pins_are_what_is_needed_and_installed() -> None:
    needed = find_dependencies(read_requirements())
    assert pins() == {name: version(name).partition("+")[0] for name in needed}


def test_all_that_a_head_installs_has_hashes() -> None:
    hashed = {}
    for line in HASHES.read_text().splitlines():
        if not line.startswith(("#", *CUDA_PREFIXES)):
            matched = re.fullmatch(r"([a-z0-9-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)", line)
            assert matched, line
            hashed[matched[1]] = matched[2]
    needed = find_dependencies(needed_by_heads())
    assert hashed == {name: pins()[name] for name in needed}, "python -m tests.architecture.hashes"


NEIGHBOURS = {
    "skypilot 0.14.1": (
        "click<8.2.0,>=7.0",
        "pandas>=1.3.0",
        "pydantic!=2.0.*,!=2.1.*,!=2.2.*,!=2.3.*,!=2.4.*,<3,>2",
    ),
    "mlflow 3.17.2": (
        *("Flask-CORS<7", "Flask<4", "numpy<3", "pandas<4"),
        *("pyarrow<26,>=4.0.0", "scipy<2"),
    ),
}
"""What they ask for of what we ask for too, by their packages' metadata on PyPI, 2026-11-23."""


@pytest.mark.parametrize("who", NEIGHBOURS)
def test_it_can_live_beside(who: str) -> None:
    """Of each package that both need, some version suits both: the lowest of ours, or the pin.

    Resolved against PyPI on that day, by uv for Python 3.11 to 3.13, both fit with Ray 2.60.
    """
    ours = {canonicalize_name(item.name): item.specifier for item in read_requirements()}
    for theirs in map(Requirement, NEIGHBOURS[who]):
        name = canonicalize_name(theirs.name)
        lowest = [item.version for item in ours[name] if item.operator == ">="]
        for candidate in (*lowest, version(name)):
            if candidate in ours[name] and candidate in theirs.specifier:
                break
        else:
            pytest.fail(f"{who} asks for {theirs}, we for {name}{ours[name]}")

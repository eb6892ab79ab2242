"""constraints.txt pins all that cloudtune, its examples and its tests need, and nothing more."""

from __future__ import annotations

import tomllib
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OF_TORCH = ("cuda-", "nvidia-", "triton")
"""What PyPI's torch brings on Linux: torch itself names their exact versions."""


def asked_for() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]


def all_that_they_need() -> set[str]:
    needed: set[str] = set()
    todo, seen = asked_for(), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name.startswith(OF_TORCH) or (key := (name, *sorted(requirement.extras))) in seen:
            continue
        seen.add(key)
        needed.add(name)
        for below in map(Requirement, requires(name) or ()):
            wanted = [{"extra": extra} for extra in ("", *requirement.extras)]
            if below.marker is None or any(map(below.marker.evaluate, wanted)):
                todo.append(below)
    return needed - {"cloudtune"}  # its own extras are among them


def test_what_is_needed_is_pinned_to_what_is_installed_and_nothing_else_is() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    installed = {name: version(name).partition("+")[0] for name in all_that_they_need()}
    assert {canonicalize_name(name): pin for name, pin in pins.items()} == installed

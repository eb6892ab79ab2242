"""Modules that a script imports and its environment won't have."""

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cloudtune.errors import ExperimentError
from cloudtune.experiment.schema import Experiment
from cloudtune.infra.environments.spec import requirement_names

OWN = "cloudtune"


def missing_imports(experiment: Experiment) -> list[str]:
    """Return a line for each package that a script imports and no requirement provides.

    Only packages that are installed here are known, with their requirements: others are left to the
    environment's build.
    """
    try:
        script = experiment.train_file
    except ExperimentError:
        return []  # a command without a script
    provided = set(_with_dependencies([OWN, *requirement_names(experiment)]))
    distributions = packages_distributions()
    lines = []
    for module, path, number in sorted(_imports(script), key=lambda entry: entry[1:]):
        names = {canonicalize_name(name) for name in distributions.get(module, ())}
        if names and not names & provided:
            package = min(names)
            lines.append(
                f"{path}:{number}: imports {module}, which the environment won't have; add "
                f"{package} to setup.pip"
            )
    return lines


def _imports(script: Path) -> Iterator[tuple[str, Path, int]]:
    """Yield the modules that a script and the modules beside it import: name, file and line.

    Imports within `try` are left out: the script may work without them.
    """
    folder = script.parent
    seen = set()
    files = [script]
    while files:
        path = files.pop()
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # its run reports the error
        for name, number in _find_imports(tree):
            if name in seen or name in sys.stdlib_module_names:
                continue
            seen.add(name)
            beside = folder / f"{name}.py"
            if beside.is_file():
                files.append(beside)
            elif (folder / name).is_dir():
                files += sorted((folder / name).rglob("*.py"))
            else:
                yield name, path, number


def _find_imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0], node.lineno
        elif not isinstance(node, ast.Try):
            yield from _find_imports(node)


def _with_dependencies(names: Iterable[str]) -> Iterator[str]:
    """Yield packages and their requirements, as far as they are installed here."""
    open_names = [canonicalize_name(name) for name in names]
    seen = set[str]()
    while open_names:
        name = open_names.pop()
        if name in seen:
            continue
        seen.add(name)
        yield name
        try:
            lines = requires(name) or ()
        except PackageNotFoundError:
            continue
        for line in lines:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                open_names.append(canonicalize_name(requirement.name))

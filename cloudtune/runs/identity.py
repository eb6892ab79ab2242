"""The identity of what an experiment runs, as far as its speed depends on it, without running it.

Its files are the script, the modules of the training folder that it imports anywhere in its code,
and the files that a command names. Imports by a computed name aren't found.
"""

import ast
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from cloudtune.errors import ExperimentError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.search_space import Constant
from cloudtune.infra.environments.spec import requirement_files
from cloudtune.model.scaling import Identity
from cloudtune.script.command import split_words
from cloudtune.script.functions import parse_file

# Larger files that a command names are data.
_MAX_BYTES: Final = 4 * 2**20
_SCRIPT_NAME: Final = re.compile(r"[\w./-]+\.(?:py|sh)\b")


def identify(experiment: Experiment) -> Identity:
    """Return the identity of what an experiment runs now."""
    script = experiment.train_file
    folder = experiment.train_folder
    files = [script]
    if experiment.runs_command:
        plain = [part for word in split_words(experiment.train) for part in word]
        texts = [part for part in plain if isinstance(part, str) and part]
        named = [name for text in texts for name in (text, *_SCRIPT_NAME.findall(text))]
        files += [Path(os.path.normpath(folder / name)) for name in named]
    constants = {
        name: json.dumps(domain.value)
        for name, domain in experiment.space.items()
        if isinstance(domain, Constant)
    }
    setup = experiment.setup
    torch = ""
    if setup.builds:
        files += requirement_files(experiment)
        constants |= {"setup.pip": json.dumps(setup.pip), "setup.python": json.dumps(setup.python)}
    elif setup.python_path is None:
        torch = _version("torch")
    return Identity(
        script=str(script),
        train=experiment.train_function,
        files=dict(_files(files, folder, (folder, script.parent))),
        constants=constants,
        torch=torch,
        cloudtune=_version("cloudtune"),
    )


def refuse_changed_files(run: str, before: Identity | None, experiment: Experiment) -> None:
    """Check that the files that a run trains with haven't changed since it began.

    Raises:
        UsageError: some have; the message names them.
    """
    if before is None:
        return
    changed = list(before.file_changes(identify(experiment)))
    if changed:
        raise UsageError(
            f"run {run}: in {experiment.train_folder}, {'; '.join(changed)} since it began, and "
            "its trials would go on with other code. Put the files back, or write "
            f"`cloudtune resume {run} --changed-script`; nothing was launched"
        )


def _version(package: str) -> str:
    """Return a version without its local part; "" if the package isn't installed."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def _files(begun: list[Path], folder: Path, roots: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Yield the SHA-256 of these files and of their imports below the folder, by path."""
    waiting = begun
    seen = set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file() or not path.is_relative_to(folder):
            continue
        seen.add(path)
        stat = path.stat()
        if stat.st_size > _MAX_BYTES:
            continue
        digest, leads = _scan_file(path, stat.st_mtime_ns, stat.st_size)
        yield path.relative_to(folder).as_posix(), digest
        for level, name in leads:
            above = (path.parents[level - 1],) if level else roots
            for root in above if level <= len(path.parents) else ():
                if name.endswith((".py", ".sh")):
                    waiting.append(root / name)
                else:
                    waiting += _modules(root, name.split("."))


def _modules(root: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the possible paths of the modules of a dotted name, including its packages."""
    here = root
    yield here / "__init__.py"
    for part in filter(None, parts):
        yield (here / part).with_suffix(".py")
        here /= part
        yield here / "__init__.py"


@lru_cache(maxsize=1024)
def _scan_file(path: Path, changed_at: int, size: int) -> tuple[str, tuple[tuple[int, str], ...]]:  # noqa: ARG001
    """Return a file's SHA-256, and the level and name of each of its imports."""
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if path.suffix != ".py":
        names = _SCRIPT_NAME.findall(data.decode(errors="replace")) if path.suffix == ".sh" else ()
        return digest, tuple((0, name) for name in names)
    try:
        return digest, tuple(_imports(parse_file(path)))
    except ExperimentError:
        return digest, ()


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = f"{node.module}." if node.module else ""
            yield from ((node.level, f"{above}{alias.name}") for alias in node.names)

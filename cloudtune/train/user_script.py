"""The user's Python file: found, loaded, and its function given."""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, cast

from cloudtune.errors import UsageError

TrainFunction: TypeAlias = Callable[[dict[str, Any]], object]

# The files that are being loaded now: what stands at their top level runs.
_loading: list[Path] = []


def loading() -> Path | None:
    """Return the user's file whose top level runs just now, as a worker or a check loads it."""
    return _loading[-1] if _loading else None


def load_function(directory: Path, spec: str) -> TrainFunction:
    """Give the function that "train.py:train" names, of the user's file in `directory`.

    The folder comes first on sys.path, so that the file can import its neighbours.
    """
    file, _, name = spec.partition(":")
    path = (directory / file).absolute()
    if not name:
        raise UsageError(f"{spec!r} names no function; write it as train.py:train")
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"there is no Python file {path}, which {spec!r} names")
    function = getattr(load_file(path), name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {name!r}, which {spec!r} names")
    return cast("TrainFunction", function)


def load_file(path: Path) -> ModuleType:
    """Import the user's file, and return it as a module; its folder comes first on sys.path.

    It has its own name as a module, so that processes that it spawns (a DataLoader's, a Pool's) can
    import it too.
    """
    folder = os.fspath(path.parent)
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickles and dataclasses of the script look for it there
    sys.modules[_private_name(path)] = module  # as do pickles of earlier versions
    _loading.append(path)
    try:
        spec.loader.exec_module(module)
    finally:
        _loading.pop()
    return module


def _module_name(path: Path) -> str:
    """Return the name under which other processes import a file; a private one if that is taken."""
    name = path.stem
    present = sys.modules.get(name)
    is_taken = present is not None and present is not sys.modules.get(_find_private_name(present))
    if name.isidentifier() and not is_taken and name not in sys.builtin_module_names:
        return name
    return _private_name(path)


def _find_private_name(module: ModuleType) -> str:
    """Return the private name of the file of a module; "" if it has none."""
    file = getattr(module, "__file__", None)
    return _private_name(Path(file)) if file else ""


def _private_name(path: Path) -> str:
    return f"_cloudtune_user_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"

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
    """Import the user's file, and return it as a module; its folder comes first on sys.path."""
    folder = os.fspath(path.parent)
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    name = f"_cloudtune_user_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickles and dataclasses of the script look for it there
    _loading.append(path)
    try:
        spec.loader.exec_module(module)
    finally:
        _loading.pop()
    return module

"""Send a training function without a file, such as a notebook's, to workers by value."""

import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from cloudtune.errors import UsageError
from cloudtune.runs import home
from cloudtune.train.shared_input.by_value import Fingerprint, pickle_by_value, uses

# Maximum size of a pickled function; a larger one contains data that every worker would load.
MOST_BYTES: Final = 16 * 2**20
_NAME: Final = "train"
_FILE: Final = '''"""{name}, which stands in no file: written by cloudtune, for workers.

Beside this are the function's code, and what it uses of the program that it was defined in. Both
are removed when the run ends, and put back to go on with it. All of it:
{digest}
"""

import pickle
from pathlib import Path

{as_name} = pickle.loads(Path(__file__).with_suffix(".pkl").read_bytes())
'''


def written(function: Callable[..., object], folder: Path) -> str:
    """Write a function to a module in a folder, and return "file.py:function".

    Code and captured values determine the file name, so that an unchanged function keeps its
    measured speed and its history.

    Raises:
        UsageError: it isn't a training function, or something that it uses can't be sent or is too
            large; the message names it.
    """
    if inspect.isbuiltin(function) or inspect.isclass(function):
        raise UsageError(f"train: {_function_name(function)} isn't a training function")
    data = pickle_by_value(function)
    if data is None or len(data) > MOST_BYTES:
        raise UsageError(f"train: {_function_name(function)} {_why(function, data)}")
    digest = Fingerprint().of(function)
    text = _FILE.format(name=_function_name(function), as_name=_NAME, digest=digest)
    path = folder / f"cloudtune_{_NAME}_{digest[:10]}.py"
    kept = home.functions() / path.name
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept.with_suffix(".pkl").write_bytes(data)
        kept.write_text(text, encoding="utf-8")
        home.put_back(path)
    except OSError as error:
        raise UsageError(
            f"train: {_function_name(function)} isn't defined in a file, and cloudtune can't write "
            f"one for it: {error}"
        ) from None
    return f"{path.name}:{_NAME}"


def _function_name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]


def _why(function: Callable[..., object], data: bytes | None) -> str:
    """Return why a function can't be sent, with the name of the cause."""
    if data is not None:
        sizes = {name: len(pickle_by_value(value) or b"") for name, value in _captures(function)}
        largest = max(sizes, key=lambda name: sizes[name], default="")
        of = f", most of it in {largest}" if largest else ""
        return (
            f"captures {len(data) / 2**20:,.0f} MiB of data{of}; load it from a file within the "
            f"function (the limit is {MOST_BYTES / 2**20:.0f} MiB)"
        )
    for name, value in _captures(function):
        if not isinstance(value, types.FunctionType) and pickle_by_value(value) is None:
            kind = type(value).__name__
            article = "an" if kind[:1].lower() in "aeiou" else "a"
            return (
                f"uses {name}, {article} {kind}, which can't be sent to a worker; create it within "
                "the function"
            )
    return "can't be sent to a worker; write it to a file with %%writefile train.py"


def _captures(function: Callable[..., object]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a function captures, recursively."""
    seen: set[int] = set()
    waiting: list[object] = [function]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or not isinstance(item, types.FunctionType):
            continue
        seen.add(id(item))
        for name, value in uses(item):
            waiting.append(value)
            yield name, value

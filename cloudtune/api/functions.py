"""A training function that stands in no file, as a notebook's: sent to workers by its value."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError
from cloudtune.runs import home
from cloudtune.train.shared_input.by_value import Fingerprint, pickled, uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_BYTES: Final = 16 * 2**20
"""A function that takes more along than this has data in it, which every worker would load."""
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
    """Write a module of a function into a folder, and return "file.py:function".

    The same code, with the same values of what it uses, is the same file: its measured speed, and
    what earlier runs found, are known again.

    Raises:
        UsageError: it is no such function, or something that it uses can't be sent, or is too much;
            the message names it.
    """
    if inspect.isbuiltin(function) or inspect.isclass(function):
        raise UsageError(f"train: {_told(function)} is no function that could train")
    data = pickled(function)
    if data is None or len(data) > MOST_BYTES:
        raise UsageError(f"train: {_told(function)} {_why(function, data)}")
    digest = Fingerprint().of(function)
    text = _FILE.format(name=_told(function), as_name=_NAME, digest=digest)
    path = folder / f"cloudtune_{_NAME}_{digest[:10]}.py"
    kept = home.functions() / path.name
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept.with_suffix(".pkl").write_bytes(data)
        kept.write_text(text, encoding="utf-8")
        home.put_back(path)
    except OSError as error:
        raise UsageError(
            f"train: {_told(function)} stands in no file, and none can be written for it: {error}"
        ) from None
    return f"{path.name}:{_NAME}"


def _told(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]


def _why(function: Callable[..., object], data: bytes | None) -> str:
    """Return what keeps a function from being sent, by name."""
    if data is not None:
        sizes = {name: len(pickled(value) or b"") for name, value in _used(function)}
        most = max(sizes, key=lambda name: sizes[name], default="")
        of = f", most of it in {most}" if most else ""
        return (
            f"takes {len(data) / 2**20:,.0f} MiB along to each worker{of}; load that within the "
            f"function, from a file ({MOST_BYTES / 2**20:.0f} MiB at most)"
        )
    for name, value in _used(function):
        if not isinstance(value, types.FunctionType) and pickled(value) is None:
            return (
                f"uses {name}, {_article(type(value).__name__)}, which can't be sent to a worker; "
                "make it within the function"
            )
    return "can't be sent to a worker; move it into a file: %%writefile train.py"


def _used(function: Callable[..., object]) -> Iterator[tuple[str, Any]]:
    """Give what a function uses of where it was defined, by name, and what that uses."""
    seen: set[int] = set()
    waiting: list[object] = [function]
    while waiting:
        it = waiting.pop()
        if id(it) in seen or not isinstance(it, types.FunctionType):
            continue
        seen.add(id(it))
        for name, value in uses(it):
            waiting.append(value)
            yield name, value


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"

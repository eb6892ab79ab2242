"""A training function that stands in no file, as a notebook's: sent to workers by its value."""

from __future__ import annotations

import dis
import hashlib
import inspect
import io
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError
from cloudtune.private_files import for_others

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MOST_BYTES: Final = 16 * 2**20
"""A function that takes more along than this has data in it, which every worker would load."""
_NAME: Final = "train"
_FILE: Final = '''"""{name}, which stands in no file: written by cloudtune, for workers.

Beside this are the function's code, and what it uses of the program that it was defined in. Both
may be removed once no run that began with them is to be gone on with. All of it:
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
    data = _pickled(function)
    if data is None or len(data) > MOST_BYTES:
        raise UsageError(f"train: {_told(function)} {_why(function, data)}")
    digest = Fingerprint().of(function)
    text = _FILE.format(name=_told(function), as_name=_NAME, digest=digest)
    path = folder / f"cloudtune_{_NAME}_{digest[:10]}.py"
    try:
        with for_others():
            kept = path.with_suffix(".pkl")
            if not kept.exists():  # what is there does the same, and a run may go on with it
                fresh = path.with_suffix(f".{os.getpid()}")
                fresh.write_bytes(data)
                fresh.replace(kept)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"train: {_told(function)} stands in no file, and none can be written for it: {error}"
        ) from None
    return f"{path.name}:{_NAME}"


class Fingerprint:
    """Tells functions apart by what they do: their code, and what they use, by value.

    A pickle tells too much: cloudpickle gives each class a number of its own, and code has the name
    of a file that another session of a notebook calls otherwise.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, thing: object) -> str:
        """Return the SHA-256 of what is known of a thing."""
        told = f"{sys.version_info[:2]} {self._of(thing)}"
        return hashlib.sha256(told.encode(errors="backslashreplace")).hexdigest()

    def _of(self, thing: object) -> str:
        if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
            return repr(thing)
        if id(thing) in self._seen:
            return f"#{self._seen[id(thing)]}"
        self._seen[id(thing)] = len(self._seen)
        return f"{type(thing).__qualname__}({', '.join(self._parts(thing))})"

    def _parts(self, thing: Any) -> Iterable[str]:  # noqa: C901, PLR0911  one flat match
        match thing:
            case list() | tuple():
                return map(self._of, thing)
            case set() | frozenset():
                return sorted(map(self._of, thing))
            case dict():
                return (f"{self._of(key)}: {self._of(value)}" for key, value in thing.items())
            case types.ModuleType():
                return [thing.__name__]
            case types.CodeType():
                return [thing.co_code.hex(), str(thing.co_names), *map(self._of, thing.co_consts)]
            case staticmethod() | classmethod():
                return [self._of(thing.__func__)]
            case property():
                return map(self._of, (thing.fget, thing.fset, thing.fdel))
            case types.FunctionType() | type() if _is_found_by_name(thing):
                return [thing.__module__, thing.__qualname__]
            case types.FunctionType():
                own = thing.__code__, thing.__defaults__, thing.__kwdefaults__, dict(_uses(thing))
                return map(self._of, own)
            case type():
                held = sorted((k, v) for k, v in vars(thing).items() if k not in _OF_EVERY_CLASS)
                return map(self._of, (thing.__qualname__, thing.__bases__, dict(held)))
            case _:
                return [hashlib.sha256(_pickled(thing) or b"").hexdigest()]


_OF_EVERY_CLASS: Final = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__"}
)


def _is_found_by_name(thing: Any) -> bool:
    """Whether a function or a class is imported on the worker, where it is the same."""
    found: object = sys.modules.get(thing.__module__)
    if thing.__module__ == "__main__":
        return False
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing


def _uses(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Give what a function uses of where it was defined, by name; functions within it as well."""
    found = inspect.getclosurevars(function).nonlocals
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and step.argval in function.__globals__:
                found = {**found, step.argval: function.__globals__[step.argval]}
    yield from sorted(found.items(), key=lambda item: item[0])


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for it in code.co_consts:
        if isinstance(it, types.CodeType):
            yield from _codes(it)


def _told(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]


def _pickled(thing: object) -> bytes | None:
    """Return a thing by its value; None where that can't be had."""
    import cloudpickle  # noqa: PLC0415  most experiments name a file

    file = io.BytesIO()
    try:
        cloudpickle.Pickler(file).dump(thing)
    except Exception:  # noqa: BLE001  whatever the objects of others raise
        return None
    return file.getvalue()


def _why(function: Callable[..., object], data: bytes | None) -> str:
    """Return what keeps a function from being sent, by name."""
    if data is not None:
        sizes = {name: len(_pickled(value) or b"") for name, value in _used(function)}
        most = max(sizes, key=lambda name: sizes[name], default="")
        of = f", most of it in {most}" if most else ""
        return (
            f"takes {len(data) / 2**20:,.0f} MiB along to each worker{of}; load that within the "
            f"function, from a file ({MOST_BYTES / 2**20:.0f} MiB at most)"
        )
    for name, value in _used(function):
        if not isinstance(value, types.FunctionType) and _pickled(value) is None:
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
        for name, value in _uses(it):
            waiting.append(value)
            yield name, value


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"

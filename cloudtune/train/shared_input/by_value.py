"""Code and data known by their value: what they do and hold, whatever process has them."""

import dis
import hashlib
import inspect
import io
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final


class Fingerprint:
    """Tells functions apart by what they do: their code, and what they use, by value.

    A pickle tells too much: cloudpickle gives each class a number of its own, and code has the name
    of a file that another session of a notebook calls otherwise.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, thing: object) -> str:
        """Return the SHA-256 of what is known of a thing."""
        text = f"{sys.version_info[:2]} {self._of(thing)}"
        return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()

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
            case types.FunctionType() | type() if is_found_by_name(thing):
                return [thing.__module__, thing.__qualname__]
            case types.FunctionType():
                own = thing.__code__, thing.__defaults__, thing.__kwdefaults__, dict(uses(thing))
                return map(self._of, own)
            case type():
                held = sorted((k, v) for k, v in vars(thing).items() if k not in _OF_EVERY_CLASS)
                return map(self._of, (thing.__qualname__, thing.__bases__, dict(held)))
            case _:
                return [hashlib.sha256(pickle_by_value(thing) or b"").hexdigest()]


_OF_EVERY_CLASS: Final = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__"}
)


def is_found_by_name(thing: Any) -> bool:
    """Whether a function or a class is imported on the worker, where it is the same."""
    value: object = sys.modules.get(thing.__module__)
    if thing.__module__ == "__main__":
        return False
    for name in thing.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is thing


def uses(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Give what a function uses of where it was defined, by name; functions within it as well."""
    used = inspect.getclosurevars(function).nonlocals
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and step.argval in function.__globals__:
                used = {**used, step.argval: function.__globals__[step.argval]}
    yield from sorted(used.items(), key=lambda item: item[0])


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for it in code.co_consts:
        if isinstance(it, types.CodeType):
            yield from _codes(it)


def pickle_by_value(thing: object) -> bytes | None:
    """Return a thing by its value; None where that can't be had."""
    import cloudpickle  # noqa: PLC0415  most experiments name a file

    file = io.BytesIO()
    try:
        cloudpickle.Pickler(file).dump(thing)
    except Exception:  # noqa: BLE001  whatever the objects of others raise
        return None
    return file.getvalue()

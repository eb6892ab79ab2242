"""Code and data identified by value, the same in every process."""

import dis
import hashlib
import inspect
import io
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final


class Fingerprint:
    """Identifies functions by what they do: their code and what they use, by value.

    A pickle contains too much: cloudpickle numbers classes, and code has a file name that differs
    between sessions of a notebook.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, thing: object) -> str:
        """Return the SHA-256 of a thing's parts."""
        text = f"{sys.version_info[:2]} {self._encode(thing)}"
        return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()

    def _encode(self, thing: object) -> str:
        if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
            return repr(thing)
        if id(thing) in self._seen:
            return f"#{self._seen[id(thing)]}"
        self._seen[id(thing)] = len(self._seen)
        return f"{type(thing).__qualname__}({', '.join(self._parts(thing))})"

    def _parts(self, thing: Any) -> Iterable[str]:  # noqa: C901, PLR0911  one flat match
        match thing:
            case list() | tuple():
                return map(self._encode, thing)
            case set() | frozenset():
                return sorted(map(self._encode, thing))
            case dict():
                return (
                    f"{self._encode(key)}: {self._encode(value)}" for key, value in thing.items()
                )
            case types.ModuleType():
                return [thing.__name__]
            case types.CodeType():
                return [
                    thing.co_code.hex(),
                    str(thing.co_names),
                    *map(self._encode, thing.co_consts),
                ]
            case staticmethod() | classmethod():
                return [self._encode(thing.__func__)]
            case property():
                return map(self._encode, (thing.fget, thing.fset, thing.fdel))
            case types.FunctionType() | type() if is_found_by_name(thing):
                return [thing.__module__, thing.__qualname__]
            case types.FunctionType():
                own = thing.__code__, thing.__defaults__, thing.__kwdefaults__, dict(uses(thing))
                return map(self._encode, own)
            case type():
                held = sorted((k, v) for k, v in vars(thing).items() if k not in _OF_EVERY_CLASS)
                return map(self._encode, (thing.__qualname__, thing.__bases__, dict(held)))
            case _:
                return [hashlib.sha256(pickle_by_value(thing) or b"").hexdigest()]


_OF_EVERY_CLASS: Final = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__"}
)


def is_found_by_name(thing: Any) -> bool:
    """Whether a worker imports a function or class by name, so that it is the same there."""
    value: object = sys.modules.get(thing.__module__)
    if thing.__module__ == "__main__":
        return False
    for name in thing.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is thing


def uses(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function, or a function within it, uses from its surroundings, by name."""
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
    """Return the pickle of a thing by value; None if it can't be pickled."""
    import cloudpickle  # noqa: PLC0415  most experiments name a file

    file = io.BytesIO()
    try:
        cloudpickle.Pickler(file).dump(thing)
    except Exception:  # noqa: BLE001  users' objects may raise anything
        return None
    return file.getvalue()

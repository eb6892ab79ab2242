"""Our frozen dataclasses to JSON and back, by their type hints."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from cloudtune.errors import shown
from cloudtune.model import catalog, commands, events, plans, scaling, trial

T = TypeVar("T")

_NOUNS: dict[str, object] = {"Mapping": Mapping}
for _module in (catalog, commands, events, plans, scaling, trial):
    _NOUNS.update({k: v for k, v in vars(_module).items() if not k.startswith("_")})
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for union in (events.Event, commands.Command)
    for kind in typing.get_args(union)
}


_PLAIN: dict[type, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
}


def encode(value: object) -> Any:
    """Return dataclasses, enums, mappings and sequences as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name)) for field in fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def encode_kind(value: events.Event | commands.Command) -> dict[str, Any]:
    """Return an event or a command as JSON, with the name of its class as "type"."""
    return {"type": type(value).__name__, **encode(value)}


def decode_kind(data: Mapping[str, Any]) -> Any:
    """Return the event or the command that `encode_kind` was given.

    Raises:
        KeyError: no such kind.
    """
    rest = {key: value for key, value in data.items() if key != "type"}
    return decode(_KINDS[data["type"]], rest)


def decode(wanted: type[T], data: Any) -> T:
    """Return the value of that type that `encode` was given.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it was given no such value.
    """
    return typing.cast("T", _decode(wanted, data))


@cache
def _hints(wanted: type) -> dict[str, Any]:
    return typing.get_type_hints(wanted, localns=_NOUNS)


def _decode(wanted: Any, data: Any) -> Any:  # noqa: PLR0911  one return a shape
    origin = typing.get_origin(wanted)
    args = typing.get_args(wanted)
    if dataclasses.is_dataclass(wanted):
        hints = _hints(typing.cast("type", wanted))
        fields = {name: _decode(hints[name], item) for name, item in data.items()}
        return typing.cast("type", wanted)(**fields)
    if origin in {types.UnionType, typing.Union}:
        if data is None:
            return None
        return _decode(next(arg for arg in args if arg is not type(None)), data)
    if origin is tuple:
        return tuple(_decode(args[0], item) for item in data)
    if origin is Mapping:
        key, value = args
        make = key if key in {float, int} else str  # JSON has no other keys than text
        return {make(k): _decode(value, v) for k, v in data.items()}
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return wanted(data)
    return _plain(wanted, origin, args, data)


def _plain(wanted: Any, origin: Any, args: tuple[Any, ...], data: Any) -> Any:
    """Return a value that is no shape of others.

    Raises:
        TypeError, ValueError: it isn't of the type, or not one of the words.
    """
    if origin is typing.Literal and data not in args:
        raise ValueError(f"{shown(data)} is none of {args}")
    kinds = _PLAIN.get(wanted) if isinstance(wanted, type) else None
    if kinds is not None and (type(data) not in kinds):
        raise TypeError(f"{shown(data)} is not of type {wanted.__name__}")
    return float(data) if wanted is float else data

"""Frozen dataclasses to JSON and back, by their type hints."""

import dataclasses
import enum
import typing
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cloudtune.errors import quote
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


def encode(value: object) -> Any:
    """Return dataclasses, enums, mappings and sequences as JSON values; others by `to_json`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name)) for field in fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, set):
        return sorted(value)
    return value.to_json() if hasattr(value, "to_json") else value


def encode_kind(value: events.Event | commands.Command) -> dict[str, Any]:
    """Return an event or a command as JSON, with the name of its class as "type"."""
    return {"type": type(value).__name__, **encode(value)}


def decode_kind(data: Mapping[str, Any]) -> Any:
    """Return the event or command that `encode_kind` encoded.

    Raises:
        KeyError, ValueError: no such kind, or wrong fields.
    """
    kind = _KINDS[data["type"]]
    rest = {key: value for key, value in data.items() if key != "type"}
    unknown = rest.keys() - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise ValueError(f"{data['type']} has no {', '.join(sorted(unknown))}")
    return decode(kind, rest)


def decode(wanted: type[T], data: Any) -> T:
    """Return the value of the wanted type that `encode` encoded.

    Raises:
        ValueError: `data` isn't such a value.
    """
    try:
        return typing.cast("T", _adapter(typing.cast("Hashable", wanted)).validate_python(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or wanted.__name__
        raise ValueError(f"{where}: {first['msg']}, not {quote(first['input'])}") from None


@cache
def _adapter(wanted: Hashable) -> TypeAdapter[Any]:
    adapter = TypeAdapter[Any](typing.cast("type", wanted))
    adapter.rebuild(force=True, _types_namespace=_NOUNS)
    return adapter

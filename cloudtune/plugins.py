"""What other packages add to cloudtune by name: the entry points of their distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

from cloudtune.errors import UsageError, quote

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Things of one kind by name: those of the core, then those that packages add to a group.

    A package names its things as entry points of the group. One is loaded when it is looked up, so
    the names alone cost no import. A name of the core can't be taken over. All are of a `kind`,
    a type; without one they are functions.
    """

    def __init__(self, group: str, core: Mapping[str, T], kind: type[T] | None = None) -> None:
        self.group = group
        self.core = core
        self.kind = kind

    def __getitem__(self, name: str) -> T:
        if name in self.core:
            return self.core[name]
        added = _load(self.group, name)
        fits = callable(added) if self.kind is None else isinstance(added, self.kind)
        if not fits:
            expected = "a function" if self.kind is None else self.kind.__name__
            what = _addition(self.group, name)
            raise UsageError(f"{what} is of type {type(added).__name__}, not {expected}")
        return cast("T", added)

    def __contains__(self, name: object) -> bool:
        return name in self.core or name in _entry_points(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from self.core
        yield from (name for name in _entry_points(self.group) if name not in self.core)

    def __len__(self) -> int:
        return len(list(iter(self)))


@cache
def _entry_points(group: str) -> Mapping[str, EntryPoint]:
    # Imported on first use: `cloudtune --help` needs no name of another package.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for point in sorted(entry_points(group=group))}


@cache
def _load(group: str, name: str) -> object:
    """Return what an entry point names.

    Raises:
        KeyError: no package adds that name.
        UsageError: its package can't be imported.
    """
    try:
        return _entry_points(group)[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{_addition(group, name)} can't be loaded: {error}") from error


def _addition(group: str, name: str) -> str:
    """Return which package adds what, for an error."""
    point = _entry_points(group)[name]
    package = point.dist.name if point.dist else "a package"
    return f"{package} adds {quote(name)} to {group}, but {point.value}"

"""What other packages add to cloudtune by name: the entry points of their distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

from cloudtune.errors import UsageError, shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Things of one kind by name: those of the core, then those that packages add to a group.

    A package names its things as entry points of the group. One is loaded when it is looked up, so
    the names alone cost no import. A name of the core can't be taken over.
    """

    def __init__(self, group: str, core: Mapping[str, T]) -> None:
        self.group = group
        self.core = core

    def __getitem__(self, name: str) -> T:
        if name in self.core:
            return self.core[name]
        return cast("T", _load(self.group, name))

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
    point = _entry_points(group)[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else "a package"
        what = f"{package} adds {shown(name)} to {group}, but {point.value} can't be loaded"
        raise UsageError(f"{what}: {error}") from error

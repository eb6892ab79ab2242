"""The parts that every message about a person's mistake shares."""

from __future__ import annotations

import difflib
import reprlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Python refuses to print a whole number of more than 4300 digits.
_PRINTABLE_BITS = 256


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxdict = 4
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits, or only the size of a number too long to read."""
        if x.bit_length() > _PRINTABLE_BITS:
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)

    def repr_bool(self, x: bool, level: int) -> str:  # noqa: ARG002
        """Return the word as YAML writes it."""
        return "true" if x else "false"

    def repr_NoneType(self, x: None, level: int) -> str:  # noqa: ARG002, N802
        """Return the word as YAML writes it."""
        return "null"


_SHORT = _Short()


def shown(value: object) -> str:
    """Return what was given, on one line and short enough for a message."""
    return _SHORT.repr(value).replace("\n", " ")


def nearest(name: object, allowed: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", or nothing where no allowed name is near."""
    if not isinstance(name, str):
        return ""
    spelled = {each.lower(): each for each in allowed}
    matches = difflib.get_close_matches(name[:100].lower(), spelled, n=1)
    return f" Did you mean {spelled[matches[0]]!r}?" if matches else ""


def allowed_names(name: object, allowed: Iterable[str]) -> str:
    """Return "allowed: a, b, c." with the nearest name to what was given, if one is near."""
    names = tuple(allowed)
    return f"allowed: {', '.join(names)}.{nearest(name, names)}"

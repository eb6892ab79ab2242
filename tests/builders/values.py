"""Values that by their type may be missing, where a test knows that they are there."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    assert value is not None
    return value

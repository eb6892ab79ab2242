"""Standard output and standard error on which no command can come to grief.

A reader that has gone is no error: what was to be read is dropped. A letter that the terminal
doesn't have, or that no encoding has, is written as an escape. And while a run goes on
(`never_waiting`) it waits for no reader either: one that stands still (a stopped terminal, a pager)
misses lines, as it does where the disk behind standard output is full.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO})
_AT_ONCE = 4096  # as much as a pipe that has room takes without waiting
_PATIENCE_SECONDS = 0.5


class _State:
    """How output is to be done at the moment; `waits` is False while a run goes on."""

    waits = True


class Steady(io.BufferedIOBase):
    """The file behind a stream, by its descriptor; all of a write is written, or dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._gone = False
        self._late = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Buffer, /) -> int:
        """Write all of it.

        Raises:
            OSError: it can't be written, somebody may be there to read it, and no run goes on.
        """
        whole = memoryview(data).cast("B")
        left = whole
        while left and not self._gone and (_State.waits or self._has_room()):
            try:
                left = left[os.write(self._descriptor, left[:_AT_ONCE]) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [], _PATIENCE_SECONDS)
            except OSError as error:
                self._gone = error.errno in _GONE
                if not self._gone and _State.waits:
                    raise
                break
        return len(whole)

    def _has_room(self) -> bool:
        """Whether something can be written now, or soon; one that was late isn't waited for."""
        patience = 0.0 if self._late else _PATIENCE_SECONDS
        try:
            self._late = not select.select([], [self._descriptor], [], patience)[1]
        except (OSError, ValueError):  # no such descriptor, or more than select knows
            return True
        return not self._late


def use_steady_streams() -> None:
    """Make standard output and error of this process survive readers that are gone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            descriptor = stream.fileno()
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed, or a program's own
            continue
        steady_one = io.TextIOWrapper(
            Steady(descriptor),  # type: ignore[type-var]  # it writes all, as a buffer does
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, name, steady_one)


@contextlib.contextmanager
def never_waiting() -> Iterator[None]:
    """Wait for no reader as long as the context lasts."""
    before = _State.waits
    _State.waits = False
    try:
        yield
    finally:
        _State.waits = before

"""Standard output and standard error that can't make a command fail.

If a reader is gone, output is dropped without an error. Characters that can't be encoded are
written as escapes. And a live run (`never_waiting`) doesn't wait for readers: one that has stopped
(a suspended terminal, a pager) misses lines, as happens when the disk behind standard output is
full.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING

from cloudtune.model.plain_text import keep_styles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO})
_AT_ONCE = 4096  # a pipe with room takes this much without blocking
_PATIENCE_SECONDS = 0.5


class _State:
    """The present mode of output; `waits` is False during a run."""

    waits = True


class Steady(io.BufferedIOBase):
    """The file behind a stream, by its descriptor; each write is complete, or dropped."""

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
            OSError: it can't be written, a reader may exist, and there is no live run.
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
        """Whether it can be written now or soon; doesn't wait for a reader that was slow."""
        patience = 0.0 if self._late else _PATIENCE_SECONDS
        try:
            self._late = not select.select([], [self._descriptor], [], patience)[1]
        except (OSError, ValueError):  # no such descriptor, or more than select knows
            return True
        return not self._late


class _Guarded(io.TextIOWrapper):
    """A text stream that passes on no escapes but those of colours and of the cursor's moves.

    Text from elsewhere (a path, another program's message) may have others in it.
    """

    def write(self, text: str, /) -> int:
        super().write(keep_styles(text))
        return len(text)


def use_steady_streams() -> None:
    """Make standard output and error of this process survive lost readers."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            descriptor = stream.fileno()
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed, or a program's own
            continue
        steady_one = _Guarded(
            Steady(descriptor),  # type: ignore[arg-type]  # it writes all, as a buffer does
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, name, steady_one)


@contextlib.contextmanager
def never_waiting() -> Iterator[None]:
    """Don't wait for readers within the context."""
    before = _State.waits
    _State.waits = False
    try:
        yield
    finally:
        _State.waits = before

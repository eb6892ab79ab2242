r"""The lines that a program adds to a file, also those that it rewrites, as fast as it writes them.

A terminal shows a line that ends with `\r` until the next one replaces it, as progress bars do.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

# The bytes that are read at once: a reader that is late needs no more memory.
_BLOCK: Final = 4 * 2**20
_TRACEBACK: Final = "Traceback (most recent call last):"
# A line without an end is taken in parts of this length.
_LONGEST: Final = 2**20


class Line(NamedTuple):
    """A line; `after_newline`: whether a newline came since the line before it.

    Otherwise it was written over that one. The text is empty where only newlines came.
    """

    text: str
    after_newline: bool


class Lines:
    """The lines added to a file from now on, or from `start` on; it may not exist yet.

    If there are `needles`, lines without any of them are left out; `last` is the last of these, and
    `trailing` whether one came after the last that wasn't.
    """

    def __init__(
        self, path: Path, needles: Sequence[bytes] = (), *, start: int | None = None
    ) -> None:
        self._path = path
        self._needles = needles
        self._rest = b""
        if start is None:
            start = path.stat().st_size if path.exists() else 0
        self._at = start
        self._newline = True
        self.last = ""
        self.trailing = False

    def more(self, *, ended: bool = False) -> Iterator[Line]:
        """Yield the new lines; when the command has `ended`, with an incomplete last one."""
        while data := self._read():
            yield from self._lines(self._rest + data)
        if ended and self._rest:
            rest, self._rest = self._rest, b""
            yield from self._lines(rest + b"\n")

    @property
    def unfinished(self) -> str:
        """The line that has no end yet."""
        return _decode(self._rest)

    def take(self, text: str) -> None:
        """Leave out a text at the beginning of the line that has no end yet."""
        data = text.encode()
        if not self._rest.startswith(data):
            data = text.encode("latin-1")
        self._rest = self._rest[len(data) :]

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:  # the script has truncated it
                    self._at = 0
                    self._rest = b""
                file.seek(self._at)
                data = file.read(_BLOCK)
        except FileNotFoundError:
            return b""
        self._at += len(data)
        return data.replace(b"\0", b"")  # in UTF-16 every other byte of ASCII

    def _lines(self, data: bytes) -> Iterator[Line]:
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LONGEST:
            end = len(data)
        data, self._rest = data[:end], data[end:]
        segments = self._rewritten if b"\r" in data else self._plain
        for segment in segments(data):
            self.trailing = False
            yield Line(_decode(segment), self._newline)
            self._newline = False
        if self._newline:
            yield Line("", after_newline=True)
            self._newline = False

    def _rewritten(self, data: bytes) -> Iterator[bytes]:
        for number, line in enumerate(data.replace(b"\r\n", b"\n").split(b"\n")):
            self._newline |= number > 0
            for segment in line.split(b"\r"):
                if segment.strip() and self._has_needle(segment):
                    yield segment

    def _has_needle(self, segment: bytes) -> bool:
        if not self._needles or any(needle in segment for needle in self._needles):
            return True
        self.last = _decode(segment)
        self.trailing = True
        return False

    def _plain(self, data: bytes) -> Iterator[bytes]:
        if self._needles:
            yield from self._find_lines(data)
            return
        for number, line in enumerate(data.split(b"\n")):
            self._newline |= number > 0
            if line.strip():
                yield line

    def _find_lines(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines with a needle, without a look at each of the others."""
        end = 0
        found = {needle: data.find(needle) for needle in self._needles}
        while at := min((at + 1 for at in found.values() if at >= 0), default=0):
            start = data.rfind(b"\n", end, at) + 1
            self._newline |= start > 0
            start = max(start, end)
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield data[start:end]
            found = {
                needle: data.find(needle, end) if 0 <= last < end else last
                for needle, last in found.items()
            }
        others = data[end:].rstrip(b"\n")
        if others:
            self.last = _decode(others[others.rfind(b"\n") + 1 :])
            self.trailing = True
        self._newline |= b"\n" in data[end:]


def last_traceback(text: str) -> tuple[str, str]:
    """Return the first line of the exception that a text ends with, and its traceback's lines.

    Without a traceback both are "".
    """
    trace = text.rpartition(_TRACEBACK)[2] if _TRACEBACK in text else ""
    return next((line for line in trace.splitlines() if line[:1].strip()), ""), trace


def _decode(data: bytes) -> str:
    """Return the text of a line: UTF-8, or else an encoding with a letter in each byte."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")

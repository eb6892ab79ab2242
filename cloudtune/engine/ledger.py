"""The append-only record of a run: what happened and what was decided, before it was done.

Each line ends with a checksum of its number and its text: a changed bit, and a line that is missing
or elsewhere, would otherwise make another winner. Ledgers of versions before 0.3 have none.
"""

import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cloudtune.errors import CloudtuneError
from cloudtune.model.commands import Command
from cloudtune.model.events import Event
from cloudtune.model.serialization import decode_kind, encode_kind

# The version of the format: raised whenever an older ledger would be misread.
VERSION = 3
# The maximum number of characters of a text, such as an exception's, that are read back.
MAX_TEXT = 64 * 1024
_CHECKSUM = re.compile(r', "crc": "([0-9a-f]{8})"\}$')
_WRITERS = {2: "cloudtune 0.1.0"}
# The errors of reading or replaying a record that was changed from outside.
DAMAGED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)  # a long run in memory has very many
class Entry:
    """One event and the commands that it led to."""

    event: Event
    commands: tuple[Command, ...]


class Ledger(Protocol):
    """Records decisions in order."""

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Record one decision; on return it outlives this process."""


class MemoryLedger:
    """A ledger that lives as long as its process; for simulations and tests."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        self.entries.append(Entry(event, commands))


class FileLedger:
    """A ledger in a file of JSON lines: a header, then one entry per line, each synced to disk."""

    def __init__(self, path: Path, header: Mapping[str, Any] | None) -> None:
        """Begin a ledger with a header, or continue the existing one (None).

        Raises:
            CloudtuneError: the existing one isn't a ledger of a version that this program reads.
        """
        if header is None:
            read_header(path)
            with path.open("rb+") as file:
                # A line cut short when its writer died was never acted upon.
                whole = file.read().rpartition(b"\n")[0]
                file.truncate(len(whole) + 1)
            self._lines = whole.count(b"\n") + 1
            self._file = path.open("a", encoding="utf-8")
        else:
            self._lines = 0
            self._file = path.open("x", encoding="utf-8")
            self._write({"cloudtune_ledger": VERSION, **header})

    def append(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Record one decision; on return it is on disk."""
        self._write({"event": encode_kind(event), "commands": [encode_kind(c) for c in commands]})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._lines += 1
        text = json.dumps(line)
        checksum = _checksum(text, self._lines)
        self._file.write(f'{text[:-1]}, "crc": "{checksum}"}}\n')
        self._file.flush()
        os.fsync(self._file.fileno())


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a ledger.

    Raises:
        CloudtuneError: not a ledger of a version that this program reads.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            line = lines.readline()
    except OSError as error:
        raise CloudtuneError(f"{path}: can't be read: {error.strerror}") from None
    try:
        first = json.loads(line)
        version = first["cloudtune_ledger"]
    except DAMAGED:
        raise CloudtuneError(f"{path}: not a ledger: its first line isn't a header") from None
    if version != VERSION:
        raise CloudtuneError(f"{path}: {_refusal(version)}")
    _check_line(line, path, 1, required=False)
    return {name: value for name, value in first.items() if name != "crc"}


def has_checksum(line: str) -> bool:
    """Whether a line of a ledger ends with a checksum; if the first one does, all others do."""
    return _CHECKSUM.search(line.rstrip("\n")) is not None


def _checksum(text: str, number: int) -> str:
    """Return the checksum of a line, without its own, and of the line's number."""
    return f"{zlib.crc32(f'{number} {text}'.encode(errors='replace')):08x}"


def _check_line(line: str, path: Path, number: int, *, required: bool) -> None:
    """Check that a line is what was written there.

    Raises:
        CloudtuneError: it has another checksum, or none where one is required.
    """
    match = _CHECKSUM.search(line.rstrip("\n"))
    if match is None and not required:
        return
    if match is None or _checksum(f"{line[: match.start()]}}}", number) != match[1]:
        raise CloudtuneError(
            f"{path}:{number}: not a ledger entry as it was written: the file was changed, or is "
            "damaged. Put back a copy of it; what the run may have left running is given back by "
            "`cloudtune gc`"
        )


def _refusal(version: object) -> str:
    """Return why a ledger of another version isn't read, and what its owner can do."""
    newer = isinstance(version, int) and version > VERSION
    writer = _WRITERS.get(version) if isinstance(version, int) else None
    author = writer or ("a later cloudtune" if newer else "another cloudtune")
    return (
        f"written by {author} (ledger version {version}; this program reads {VERSION}). To report "
        f"the run or to go on with it, install {writer or 'the one that wrote it'}; what it may "
        "have left running is given back by `cloudtune gc`"
    )


def read_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a ledger in order; a last line cut short by a crash is left out.

    Raises:
        CloudtuneError: not a ledger of a version that this program reads, or a damaged one.
    """
    read_header(path)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    checked = has_checksum(lines[0])
    for number, line in enumerate(lines[1:], start=2):
        if not line.endswith("\n"):
            return  # only the last line can lack its end
        yield parse_entry(line, path, number, checked=checked)


def _readable(value: Any) -> Any:
    """Return JSON with texts that UTF-8 can encode, cut off where they are too long."""
    if isinstance(value, str):
        text = value[:MAX_TEXT].encode(errors="replace").decode()
        left = len(value) - MAX_TEXT
        return f"{text}\n[cloudtune: {left} characters are left out here]" if left > 0 else text
    if isinstance(value, dict):
        return {_readable(name): _readable(below) for name, below in value.items()}
    return [_readable(below) for below in value] if isinstance(value, list) else value


def parse_entry(line: str, path: Path, number: int, *, checked: bool = False) -> Entry:
    """Return the entry of a ledger's line; path and number name it in the error.

    `checked`: the line must have its checksum.

    Raises:
        CloudtuneError: it isn't one, or isn't what was written.
    """
    _check_line(line, path, number, required=checked)
    try:
        data = json.loads(line)
        if len(line) > MAX_TEXT or "\\ud" in line.lower():
            data = _readable(data)
        event = decode_kind(data["event"])
        commands = tuple(decode_kind(command) for command in data["commands"])
        if not math.isfinite(event.at):
            raise ValueError("an event without a time")
    except DAMAGED:
        raise CloudtuneError(f"{path}:{number}: not a ledger entry") from None
    return Entry(event, commands)

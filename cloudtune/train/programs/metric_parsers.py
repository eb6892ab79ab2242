"""The reports of a command that calls no cloudtune function: lines that it writes or prints."""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cloudtune.errors import UsageError

_EPOCH_IN_TEXT: Final = re.compile(r"\bepochs?\b[^\w\n]{0,8}(\d+)", re.IGNORECASE)
# After this many of the script's own epoch numbers without a report, there will be none.
_SILENT_EPOCHS: Final = 2
# The shortest epoch: numbers that come faster are a table, such as a schedule.
_EPOCH_SECONDS: Final = 1.0
# Maximum length of a line quoted in an error message: two lines of a terminal.
_EXAMPLE_LETTERS: Final = 160
_EPOCH_KEYS: Final = ("epoch", "epochs", "Epoch", "ep", "current_epoch")


class Reading(NamedTuple):
    """A report that was read: its metrics, and the script's own epoch number, if any."""

    metrics: dict[str, float]
    epoch: int | None


class Lines:
    """The complete lines added to a file from now on; it may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._at = path.stat().st_size if path.exists() else 0

    def more(self, *, ended: bool = False) -> list[str]:
        """Return the new lines; when the command has `ended`, with an incomplete last one."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:  # the script has truncated it
                    self._at = 0
                    self._rest = b""
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if ended and self._rest:
            lines = [*lines, self._rest]
            self._rest = b""
        return [line.decode(errors="replace") for line in lines]


class Readings:
    """The metrics of each line that is a report; `seen` are names in other lines.

    The epoch number is a field of the JSON line, such as "epoch", or the last "epoch 3" or
    "Epoch: [3]" printed since the previous report.
    """

    def __init__(self, lines: Lines, where: str, metric: str, pattern: str | None) -> None:
        self._lines = lines
        self._where = where
        self._metric = metric
        self._pattern = None if pattern is None else re.compile(pattern)
        self.seen: set[str] = set()
        self.example = ""  # a line that isn't a report, with the metric's name if there is one
        self._epoch: int | None = None
        self._reported = False
        self._number: int | None = None
        self._number_at = 0.0
        self._passed = 0

    @property
    def hopeless(self) -> bool:
        """Whether the script's own epoch numbers have advanced without any report.

        The number of lines proves nothing: headers are long, and a line per batch makes hundreds
        before the first epoch is over.
        """
        return not self._reported and self._passed >= _SILENT_EPOCHS

    def more(self, *, ended: bool = False) -> Iterator[Reading]:
        """Yield the reports since the last call.

        Raises:
            UsageError: a line of the file isn't a JSON object.
        """
        for line in self._lines.more(ended=ended):
            numbers = self._numbers(line)
            if self._pattern is not None and (match := _EPOCH_IN_TEXT.search(line)):
                self._epoch = number = int(match[1])
                if number != self._number:
                    now = time.monotonic()
                    goes_on = self._number is not None and number == self._number + 1
                    self._passed += goes_on and now - self._number_at >= _EPOCH_SECONDS
                    self._number = number
                    self._number_at = now
            if self._metric in numbers:
                self._reported = True
                yield Reading(numbers, self._epoch if self._pattern else epoch_of(numbers))
                self._epoch = None
            else:
                self.seen |= set(numbers)
                if line.strip() and (self._metric in line or self._metric not in self.example):
                    self.example = line.strip()[:_EXAMPLE_LETTERS]

    def _numbers(self, line: str) -> dict[str, float]:
        if self._pattern is not None:
            match = self._pattern.search(line)
            return {} if match is None else _read(match.groupdict())
        if not line.strip():
            return {}
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise UsageError(f"{self._where} has a line that is no JSON object: {line[:80]!r}")
        return _read(value)


def epoch_of(numbers: Mapping[str, float]) -> int | None:
    """Return the script's own epoch number among its metrics; None if there is none."""
    value = next((numbers[key] for key in _EPOCH_KEYS if key in numbers), None)
    return int(value) if value is not None and value == int(value) else None


def _read(fields: dict[str, Any]) -> dict[str, float]:
    """Return the numeric fields; the rest is for people."""
    numbers = {}
    for name, value in fields.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                numbers[name] = float(str(value).replace(",", ""))
            except ValueError:
                continue
    return numbers

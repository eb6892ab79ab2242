"""The reports of a command that writes its numbers into files of a usual format.

JSON lines, JSON documents such as Trainer's `trainer_state.json`, CSV, TensorBoard's event files
and the runs that W&B keeps offline. Nothing of the libraries that write them is needed.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, Protocol, TypeAlias

from cloudtune.errors import UsageError
from cloudtune.train.programs.binary_logs import EventFile, WandbFile
from cloudtune.train.programs.metric_parsers import (
    Reading,
    Values,
    find_epoch,
    find_step,
    numbers_in,
    texts_in,
)
from cloudtune.train.programs.output_lines import Lines
from cloudtune.train.programs.tables import Table, json_values, may_have_names

# Seconds between two looks for new files of a pattern.
_LOOK_SECONDS: Final = 0.25
# Maximum length of a row quoted in an error message: two lines of a terminal.
_EXAMPLE_LETTERS: Final = 160
_MAGIC: Final = "*?["
# The first bytes of a file, which show whether it is a table.
_BEGINS_BYTES: Final = 1024
# The names of files that may have numbers.
PATTERNS: Final = (
    *("*.csv", "*.tsv", "*.jsonl", "*.json", "*tfevents*", "*.wandb", "*.txt", "*.log"),
)


class _Rows(Protocol):
    def more(self, *, ended: bool) -> Iterator[Values]:
        """Yield the values of each row since the last call."""


def has_wildcard(path: str) -> bool:
    """Whether a path is a pattern of names."""
    return any(letter in path for letter in _MAGIC)


def fixed_folder(path: str) -> PurePosixPath:
    """Return the folder of a path, or the last one that a pattern names in full."""
    folder = PurePosixPath()
    for part in PurePosixPath(path).parts[:-1]:
        if has_wildcard(part):
            break
        folder /= part
    return folder


def is_wandb(path: str | None) -> bool:
    """Whether reports are read from W&B's own file."""
    return path is not None and path.endswith(".wandb")


class MetricFiles:
    """The reports in the files of a path, or pattern, below the folder of a command.

    A row with the metric is a report; `seen` are the names in other rows. Its epoch is a field such
    as "epoch"; or its step, as long as these go on by one. `restored`: what is there now is of an
    earlier session, and no report.
    """

    from_zero = False
    hopeless = False  # what comes late is still a report

    def __init__(
        self, folder: Path, pattern: str, metric: str, *, first: int = 0, restored: bool = True
    ) -> None:
        self._folder = folder
        self._pattern = pattern
        self._metric = metric
        self._looked = 0.0
        self._files: dict[Path, _Rows] = {}
        self._histories = _Histories()
        self.seen: set[str] = set()
        self.example = ""
        self.number: int | None = None  # the last epoch that a report named
        self.is_last = False  # whether nothing was written after the last report
        self._begins = {0, 1, first, first + 1}
        self._step: float | None = None
        self._has_epochs = True  # whether steps count epochs, as far as they have shown
        self._newest: Path | None = None
        self._look(skip=restored)

    @property
    def path(self) -> Path:
        """The file of the last report, or one that may become it."""
        return self._newest or self._folder / self._pattern

    def more(self, *, ended: bool = False) -> Iterator[Reading]:
        """Yield the reports since the last call.

        Raises:
            UsageError: a file isn't of the format that its name says.
        """
        if ended or time.monotonic() >= self._looked + _LOOK_SECONDS:
            self._look(skip=False)
        for path, rows in self._files.items():
            for values in rows.more(ended=ended):
                yield from self._note(values, path)

    def _look(self, *, skip: bool) -> None:
        """Take in new files; `skip` what is in them, which an earlier session wrote."""
        self._looked = time.monotonic()
        if not has_wildcard(self._pattern):
            paths = [self._folder / self._pattern]
        else:
            paths = [path for path in self._folder.glob(self._pattern) if path.is_file()]
        for path in sorted(set(paths) - set(self._files), key=_age):
            where = path.relative_to(self._folder).as_posix()
            self._files[path] = self._rows(path, where, skip=skip)

    def _rows(self, path: Path, where: str, *, skip: bool) -> _Rows:
        start = path.stat().st_size if skip and path.exists() else 0
        if "tfevents" in path.name:
            return EventFile(path, start)
        match path.suffix:
            case ".wandb":
                return WandbFile(path, skip=start > 0)
            case ".csv" | ".tsv":
                return Table(path, where, skip=start > 0)
            case ".json":
                return _Document(path, self._histories, skip=start > 0)
        return _TextFile(path, where, start)

    def _note(self, values: Values, path: Path) -> Iterator[Reading]:
        """Yield a row's report, if it has the metric."""
        if not isinstance(values.get(self._metric), float):
            self.is_last = False
            self.seen |= set(values)
            self.example = json.dumps(values)[:_EXAMPLE_LETTERS]
            return
        numbers = numbers_in(values)
        epoch = find_epoch(numbers)
        if epoch is None:
            epoch = self._count(find_step(numbers))
        if epoch is not None:
            self.number = int(epoch)
        self.is_last = True
        self._newest = path
        yield Reading(numbers, epoch, texts_in(values))

    def _count(self, step: float | None) -> float | None:
        """Return a step as an epoch's number, as long as steps go on by one; None otherwise."""
        before, self._step = self._step, step
        if step is None:
            return None
        goes_on = step in self._begins if before is None else step == before + 1
        self._has_epochs &= goes_on
        return step if self._has_epochs else None

    def is_log(self, path: Path) -> bool:
        """Whether a file is appended to, also between reports; a document may be of a save."""
        return path in self._files and not isinstance(self._files[path], _Document)

    def files(self) -> list[str]:
        """Return the files that there are, relative to the command's folder."""
        paths = (path for path in self._files if path.is_file())
        return [path.relative_to(self._folder).as_posix() for path in paths]


class _JsonLines:
    """The rows of a file with a JSON object on each line."""

    def __init__(self, path: Path, where: str, start: int) -> None:
        self._where = where
        self._lines = Lines(path, start=start)

    def more(self, *, ended: bool) -> Iterator[Values]:
        for line in self._lines.more(ended=ended):
            if not line.text.strip():
                continue
            try:
                row = json.loads(line.text)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise UsageError(
                    f"{self._where} has a line that is no JSON object: {line.text[:80]!r}"
                )
            yield json_values(row)


class _TextFile:
    """The rows of a file whose name says nothing: JSON lines, or a table."""

    def __init__(self, path: Path, where: str, start: int) -> None:
        self._path = path
        self._where = where
        self._rows = self._open(start)

    def _open(self, start: int = 0) -> _Rows | None:
        """Return the rows, of a kind that the first line shows; None if there is none yet."""
        if self._path.suffix in {".jsonl", ".ndjson"}:
            return _JsonLines(self._path, self._where, start)
        try:
            with self._path.open("rb") as file:
                begins = file.read(_BEGINS_BYTES).lstrip()
        except OSError:
            return None
        if not begins:
            return None
        if may_have_names(begins.decode(errors="replace").partition("\n")[0]):
            return Table(self._path, self._where, skip=start > 0)
        return _JsonLines(self._path, self._where, start)

    def more(self, *, ended: bool) -> Iterator[Values]:
        self._rows = self._rows or self._open()
        if self._rows is not None:
            yield from self._rows.more(ended=ended)


_Row: TypeAlias = Mapping[str, object]


class _Histories:
    """How many rows were read of a history that each file of a script has whole."""

    def __init__(self) -> None:
        self.rows = 0


class _Document:
    """The rows of a JSON file that is written anew each time.

    A list of objects, or an object with one, such as the `log_history` of Trainer; lists of numbers
    by name; or one object, which is a row whenever it has changed. Each `trainer_state.json` has
    the rows of those before it.
    """

    def __init__(self, path: Path, histories: _Histories, *, skip: bool) -> None:
        self._path = path
        self._histories = histories
        self._state: tuple[int, int, int] | None = None
        self._rows = 0
        self._single: object = None
        if skip:
            list(self.more(ended=True))

    def more(self, *, ended: bool) -> Iterator[Values]:  # noqa: ARG002  it is whole or isn't
        try:
            it = self._path.stat()
            state = it.st_mtime_ns, it.st_size, it.st_ino
            if state == self._state:
                return
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return
        document = _parse(text)
        if document is None:  # it is being written
            return
        self._state = state
        yield from map(json_values, self._new(document))

    def _new(self, document: object) -> list[_Row]:
        """Return the rows that weren't there before."""
        if isinstance(document, dict) and isinstance(document.get("log_history"), list):
            history = _objects(document["log_history"])
            new = history[self._histories.rows :]
            self._histories.rows = max(self._histories.rows, len(history))
            return new
        rows = _rows_in(document)
        if rows is None:
            changed = isinstance(document, dict) and document != self._single
            self._single = document
            self._rows = 1
            return [document] if changed and isinstance(document, dict) else []
        new = rows[self._rows :]
        self._rows = max(self._rows, len(rows))
        return new


def _parse(text: str) -> object:
    """Return a JSON document, or the list of objects on lines; None if it isn't whole."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        objects = [json.loads(line) for line in lines[: None if text.endswith("\n") else -1]]
    except ValueError:
        return None
    return objects or None


def _rows_in(document: object) -> list[_Row] | None:
    """Return the rows of a document; None if it is a single one."""
    if isinstance(document, list):
        return _objects(document)
    if not isinstance(document, dict):
        return []
    lists = {name: it for name, it in document.items() if isinstance(it, list) and it}
    for rows in sorted(lists.values(), key=len, reverse=True):
        if all(isinstance(row, dict) for row in rows):
            return _objects(rows)
    columns = {name: it for name, it in lists.items() if not isinstance(it[0], list)}
    if not columns:
        return None
    count = max(map(len, columns.values()))
    columns = {name: it for name, it in columns.items() if len(it) == count}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _objects(rows: list[object]) -> list[_Row]:
    return [row for row in rows if isinstance(row, dict)]


def _age(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, str(path)
    except OSError:
        return 0.0, str(path)

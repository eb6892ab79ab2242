"""The reports of a command that calls no cloudtune function, in the lines that it prints."""

import itertools
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from cloudtune.script.printed_lines import LinePattern
from cloudtune.script.printed_numbers import clean
from cloudtune.train.programs.output_lines import Lines
from cloudtune.train.torch_state import short_text

# A whole number after the word: not 10% of an epoch, not half of one, and not how many there are.
_EPOCH_IN_TEXT: Final = re.compile(
    r"\bepoch\b[^\w\n]{0,8}(\d+)(?:\.0+)?(?!\d|\.\d|\s*%)", re.IGNORECASE
)
# Where a report stands within an epoch: 0.25, not 0.25 s or 10.5 %.
_PART_IN_TEXT: Final = re.compile(
    r"\bepoch\b[^\w\n]{0,8}(\d+\.\d+)(?![\d.]|\s*(?:%|[mu]?s\b|secs?\b|mins?\b|[mh]\b))",
    re.IGNORECASE,
)
# Each line with an epoch number has one of them.
_EPOCH_NEEDLES: Final = (b"poch", b"POCH")
# A counter such as 3/10, and the percent of a bar without one.
_COUNTER: Final = re.compile(r"(?<![\w./])(\d+)\s*/\s*(\d+)(?![\w/]|\.\d)")
# A counter of an epoch's steps.
_STEPS: Final = re.compile(
    r"\b(?:step|iter|iteration|batch)\b[^\w\n]{0,4}(\d+)\s*(?:/|of)\s*(\d+)\b", re.IGNORECASE
)
_PERCENT: Final = re.compile(r"(?<![\w.])(\d{1,3})%")
# What progress bars are drawn with: tqdm's, Keras', rich's.
_BAR: Final = re.compile(r"\|[█▉▊▋▌▍▎▏#\d ]*\||\[=*>?\.*\]|[━╸╺─█▒░]{3}")
# After this many of the script's own epoch numbers without a report, there will be none.
_SILENT_EPOCHS: Final = 2
# The shortest epoch: numbers that come faster are a table, such as a schedule.
_EPOCH_SECONDS: Final = 1.0
# Maximum length of a line quoted in an error message: two lines of a terminal.
_EXAMPLE_LETTERS: Final = 160
# A line that is longer and has no end yet is no report.
_LONG: Final = 1 << 16
_EPOCH_KEYS: Final = ("epoch", "epochs", "Epoch", "ep", "current_epoch")
_STEP_KEYS: Final = ("step", "global_step", "steps", "timesteps", "iteration", "iter")


class Reading(NamedTuple):
    """A report that was read: its metrics, and the script's own epoch number, if any.

    That may be a fraction: 0.5 in the middle of the first epoch. `texts` are what is no number.
    `part` is how much of that epoch is over, by a line such as "step 500/2000"; None if none says.
    """

    metrics: dict[str, float]
    epoch: float | None
    texts: Mapping[str, str] = MappingProxyType({})
    part: float | None = None


# The numbers and texts of a line, by name.
Values: TypeAlias = "dict[str, float | str]"


class Readings:
    """The metrics of each line that is a report; `seen` are names in other lines.

    The epoch number is the one that a pattern names, or the last "epoch 3" or "Epoch: [3]" printed
    since the previous report. Of a line that is rewritten, such as a progress bar, the last state
    counts: a bar whose steps are the `last` epochs (or steps) has a last state in each of them.
    `first` epochs were trained before. Lines count from `start` on, in bytes, or from now.
    """

    def __init__(
        self,
        path: Path,
        metric: str,
        pattern: str,
        *,
        last: int = 0,
        first: int = 0,
        start: int | None = None,
    ) -> None:
        self.path = path
        self._metric = metric
        self._pattern = LinePattern(pattern)
        self._last = last
        self._begins = {0, 1, first, first + 1}
        needle = self._pattern.needle
        self._lines = Lines(path, (needle, *_EPOCH_NEEDLES) if needle else (), start=start)
        self.seen: set[str] = set()
        self._example = ""
        self._state: _State | None = None  # a report that may still be rewritten
        self._unfinished = ""
        self._is_last = False
        self.from_zero = False  # whether the script has named an epoch 0
        self._epoch: float | None = None
        self._of_whole = True  # whether a line's steps may be those of the whole training
        self._reported = False
        self._number: int | None = None
        self._number_at = 0.0
        self._passed = 0

    def is_log(self, path: Path) -> bool:
        """Whether reports are appended to a file."""
        return path == self.path

    @property
    def is_last(self) -> bool:
        """Whether nothing was written after the last report."""
        return self._is_last and not self._lines.trailing and not self._lines.unfinished

    @property
    def number(self) -> int | None:
        """The last epoch number that the script has named."""
        return self._number

    @property
    def example(self) -> str:
        """A line that isn't a report, with the metric's name if there is one."""
        return self._example or self._lines.last.strip()[:_EXAMPLE_LETTERS]

    @property
    def hopeless(self) -> bool:
        """Whether the script's own epoch numbers have advanced without any report.

        The number of lines proves nothing: headers are long, and a line per batch makes hundreds
        before the first epoch is over. Nor do epochs without the metric's name: a script may
        evaluate every few epochs.
        """
        was_printed = self._metric in self._example
        return not self._reported and was_printed and self._passed >= _SILENT_EPOCHS

    def more(self, *, ended: bool = False) -> Iterator[Reading]:
        """Yield the reports since the last call."""
        for line in self._lines.more(ended=ended):
            if line.after_newline:
                yield from self._settle(rewritten=False)
            yield from self._of_line(line.text)
        yield from self._of_unfinished()
        if ended:
            yield from self._settle(rewritten=True)

    def _of_unfinished(self) -> Iterator[Reading]:
        """Yield the reports in a line that has no end yet, all but its last.

        A script may print all of its epochs into one line.
        """
        line = self._lines.unfinished
        if line == self._unfinished or len(line) > _LONG:
            return
        *pieces, self._unfinished = self._pieces(line)
        for piece in pieces:
            self._lines.take(piece)
            yield from self._of_piece(piece)
            yield from self._settle(rewritten=True)

    def _of_line(self, line: str) -> Iterator[Reading]:
        for piece in self._pieces(line):
            yield from self._of_piece(piece)

    def _pieces(self, line: str) -> list[str]:
        """Return the parts of a line: one for each epoch, if several reports are in it."""
        if line.lower().count("epoch") < 2:
            return [line]
        marks = list(_EPOCH_IN_TEXT.finditer(line))
        starts = [0]
        for before, mark in itertools.pairwise(marks):
            follows = int(mark[1]) == int(before[1]) + 1
            if follows and self._is_report(self._values(line[starts[-1] : mark.start()])):
                starts.append(mark.start())
        return [line[start:end] for start, end in itertools.pairwise([*starts, len(line)])]

    def _of_piece(self, line: str) -> Iterator[Reading]:
        """Take in a line, or a part of one, that a pattern may match."""
        line = clean(line)
        mark = _EPOCH_IN_TEXT.search(line)
        values = self._values(line)
        own = find_epoch(numbers_in(values))
        if mark is not None:
            self._pass(int(mark[1]), is_report=self._is_report(values))
        if own is None:
            own = self._epoch_in(line)
        yield from self._note(line, values, own)

    def _epoch_in(self, line: str) -> float | None:
        """Return the epoch of a line that may be a report: in its text, or in one before it."""
        part = _PART_IN_TEXT.search(line)
        if part is not None and self._epoch is None:
            return float(part[1])
        if self._epoch is None and _STEPS.search(line):
            return self._number
        return self._epoch

    def _is_report(self, values: Mapping[str, object]) -> bool:
        return isinstance(values.get(self._metric), float)

    def _note(self, line: str, values: Values, epoch: float | None) -> Iterator[Reading]:
        """Take in the values of a line; yield the report before it, if that is over now."""
        if not self._is_report(values):
            self._is_last = self._is_last and not line.strip()
            self.seen |= set(values)
            if line.strip() and (self._metric in line or self._metric not in self._example):
                self._example = line.strip()[:_EXAMPLE_LETTERS]
            return
        self._reported = self._is_last = True
        state = _State(values, epoch, *_counters(line), self._part(line, epoch))
        if self._state is not None:
            if not state.rewrites(self._state, self._last):
                yield from self._settle(rewritten=True)
            elif epoch is None:
                state = state._replace(epoch=self._state.epoch)
        self._state = state
        self._epoch = None

    def _part(self, line: str, epoch: float | None) -> float | None:
        """Return how much of its epoch a line's steps are; None if it says nothing of it.

        Steps of the whole training are as far as the epochs where an epoch ends, each time.
        """
        steps = _STEPS.search(line)
        if steps is None or epoch is None or epoch != int(epoch):
            return None
        count, total = int(steps[1]), int(steps[2])
        over = epoch + self.from_zero
        if count * self._last != over * total:
            self._of_whole = False
        return None if self._of_whole or not count <= total > 0 else count / total

    def _settle(self, *, rewritten: bool) -> Iterator[Reading]:
        """Yield the last report, unless it is a bar that goes on after a newline.

        Libraries write a newline between states of a bar where the output is no terminal.
        """
        if self._state is not None and (rewritten or not self._state.goes_on):
            values = self._state.values
            epoch, part = self._state.epoch, self._state.part
            yield Reading(numbers_in(values), epoch, texts_in(values), part)
            self._state = None

    def _pass(self, number: int, *, is_report: bool) -> None:
        """Record an epoch number of the script's own: a report's, or one that goes on by one.

        Others, such as an option's value, say nothing of where it is.
        """
        goes_on = self._number is not None and number == self._number + 1
        same = number == self._number
        if is_report or goes_on or same or number in self._begins:
            self._epoch = number
            self.from_zero |= number == 0
        if same:
            return
        now = time.monotonic()
        self._passed += goes_on and now - self._number_at >= _EPOCH_SECONDS
        self._number = number
        self._number_at = now

    def _values(self, line: str) -> Values:
        """Return the values of the first match that has the metric, or of the first."""
        first: Values = {}
        for values in self._pattern.values(line):
            if self._is_report(values):
                return values
            first = first or values
        return first


def numbers_in(values: Values) -> dict[str, float]:
    """Return the numbers among values."""
    return {name: value for name, value in values.items() if isinstance(value, float)}


def texts_in(values: Values) -> dict[str, str]:
    """Return the texts among values, shortened."""
    return {name: short_text(value) for name, value in values.items() if isinstance(value, str)}


class _State(NamedTuple):
    """A report as its line stands now, with the line's `counters`, such as 3 of 10.

    `bar` is whether the line is a library's progress bar, and `part` as of `Reading`.
    """

    values: Values
    epoch: float | None
    counters: tuple[tuple[int, int], ...]
    bar: bool
    part: float | None

    @property
    def goes_on(self) -> bool:
        """Whether it is a progress bar that isn't full."""
        return self.bar and any(count < total for count, total in self.counters)

    def rewrites(self, before: "_State", last: int) -> bool:
        """Whether it is a later state of the same line: no counter has begun again.

        Where no line names an epoch, a counter of `last` counts them: its next is another report.
        """
        if None not in (self.epoch, before.epoch) and self.epoch != before.epoch:
            return False
        if before.goes_on and not self.counters:
            return False
        counts = {total: count for count, total in before.counters}
        ahead = [
            (total, count - counts[total]) for count, total in self.counters if total in counts
        ]
        if any(more < 0 for _, more in ahead):
            return False
        counts_epochs = before.epoch is None and self.epoch is None
        return not counts_epochs or all(total != last or more == 0 for total, more in ahead)


def _counters(line: str) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return the counters of a line, and whether it is a library's progress bar."""
    counters = tuple((int(it[1]), int(it[2])) for it in _COUNTER.finditer(line))
    if not counters:
        counters = tuple((int(it[1]), 100) for it in _PERCENT.finditer(line))
    return counters, bool(counters) and _BAR.search(line) is not None


def count_bar_steps(text: str, pattern: str) -> int | None:
    """Return the total of the progress bar that has a metric, if it shows each of its steps.

    None for a bar over batches: it is drawn a few times a second and leaves steps out, or it begins
    again in each epoch. Bars without the metric, as of files that are loaded, say nothing.
    """
    reports = LinePattern(pattern)
    totals = set[int]()
    steps = list[int]()
    for line in re.split(r"[\r\n]+", text):
        state = clean(line)
        if not _BAR.search(state) or not any(reports.values(state)):
            continue
        if counter := _COUNTER.search(state):
            steps.append(int(counter[1]))
            totals.add(int(counter[2]))
    shown = sorted(set(steps))
    each = len(shown) > 2 and shown == list(range(shown[0], shown[-1] + 1))
    is_one = len(totals) == 1 and steps == sorted(steps) and shown[0] <= 1
    return totals.pop() if each and is_one else None


def find_epoch(numbers: Mapping[str, float]) -> float | None:
    """Return the script's own epoch number among its metrics; None if there is none."""
    return _find(numbers, _EPOCH_KEYS)


def find_step(numbers: Mapping[str, float]) -> float | None:
    """Return the script's own step number among its metrics; None if there is none."""
    return _find(numbers, _STEP_KEYS)


def _find(numbers: Mapping[str, float], keys: Sequence[str]) -> float | None:
    value = next((numbers[key] for key in keys if key in numbers), None)
    return value if value is not None and 0 <= value < math.inf else None

"""The checkpoints of a command whose output is read: when each is whole, and of which epoch.

Nothing of the script says when it saves. What its reports, its files and its open files show is
put together here.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import psutil

from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.folder_changes import Changes, State
from cloudtune.train.programs.metric_parsers import Reading, Readings
from cloudtune.train.programs.snapshots import OpenFiles, WriteOrder
from cloudtune.train.programs.whole_saves import KNOWN_QUIET, SaveShapes, unfinished
from cloudtune.train.storage import tell

# Seconds between two looks at its folder.
_POLL: Final = 0.02
# Maximum seconds from a script's report until it begins to save.
_SAVE_PATIENCE: Final = 10.0
# The shortest such time, in seconds: a quarter of an epoch if that is longer, until a save after a
# report was seen.
_SHORTEST_PATIENCE: Final = 0.5
# Seconds after a report in which a save belongs to that epoch, not the next one.
PROMPT: Final = 0.1
# A file that grows so often, for so long, while it isn't held open, is a log.
_APPENDED: Final = 4
_APPENDED_SECONDS: Final = 0.4
# The bytes of a save that is copied before it is known whether it is whole.
_SPARE_BYTES: Final = 2**26


class Halting(Protocol):
    """A command in training, as far as it is halted for its checkpoints."""

    def suspend(self) -> None:
        """Suspend all of its processes, and return once they have stopped."""

    def go_on(self) -> None:
        """Let its processes run again."""

    def tree(self) -> Iterable[psutil.Process]:
        """Return its processes."""

    def code(self) -> int | None:
        """Return its exit code; None while it runs."""

    def stopping(self) -> bool:
        """Return whether it is to end."""


class Halted(NamedTuple):
    """A command after its report, with its checkpoint; it `stands` if it is suspended.

    `coming` are the reports that came before its save was whole.
    """

    checkpoint: Checkpoint | None = None
    coming: Sequence[Reading] = ()
    stands: bool = False


class Saving:
    """The saves of a command into a folder.

    Args:
        command: the command, which is halted for its checkpoints.
        folder: its folder of checkpoints.
        printed: the file with its reports.
        readings: the reports in that file.
        copies: a folder beside it, for copies by links.
        start_epoch: the epoch of the checkpoint that it resumes from.
    """

    def __init__(
        self,
        command: Halting,
        folder: Path,
        printed: Path,
        readings: Readings,
        *,
        copies: Path,
        start_epoch: int,
    ) -> None:
        self._command = command
        self._printed = printed
        self._readings = readings
        self._copies_in = copies
        self.start_epoch = start_epoch
        self._changes = Changes(folder)
        self._open = OpenFiles(folder, command.tree)
        self._order = WriteOrder(printed, folder)
        self._shapes = SaveShapes()
        self._epoch = start_epoch
        self.after: bool | None = None  # whether it saves after its report; None: unknown
        self.saved_last = False  # whether it saved after the last line that it printed
        self._streams: set[str] = set()  # files that it appends to while it trains
        self._whole: State = {}  # the folder when its last save was whole
        self._copies: list[Path] = []
        self._spare: tuple[State, Path] = ({}, copies)  # a save that may be whole, and its copy
        self._continued = time.monotonic()
        self.last_look = self._continued  # its report came after it
        self._longest_unseen = 0.0  # seconds between two looks since it continued
        self._looked_for_saves = 0.0
        self._late = False  # whether it may have trained on before its last report was read
        self._seen_saving: list[float] = []  # times, while they may show whether it saves first

    @property
    def was_late(self) -> bool:
        """Whether its last report was read so late that it may have saved unobserved."""
        return self._late or self._longest_unseen > PROMPT / 2

    def close(self) -> None:
        self._order.close()

    def note_look(self, last: float, now: float) -> None:
        """Record the times of two looks at its output, one after the other."""
        self.last_look = last
        self._longest_unseen = max(self._longest_unseen, now - last)

    def note_going_on(self) -> None:
        """Record that it goes on after a report."""
        self._continued = time.monotonic()
        self._seen_saving.clear()
        self._longest_unseen = 0.0
        for copy in self._copies:
            shutil.rmtree(copy, ignore_errors=True)
        self._copies.clear()
        self._spare = ({}, self._copies_in)

    def watch(self, epoch: int) -> None:
        """Record when it saves, if its first report didn't show whether it saves first.

        The time of a file's last write isn't enough: a slow save may have begun long before.
        """
        if self.after is not None or epoch == self.start_epoch:
            return
        now = time.time()
        if now > self._looked_for_saves + PROMPT / 2:
            self._looked_for_saves = now
            self._seen_saving += [now] if self._open.saving() else []

    def halt(self, reports: int, epoch: int) -> Halted:
        """Suspend it when no save is under way; return the checkpoint, if there is a new one.

        `reports` is how many were read, after an epoch. It isn't suspended if it has gone on to its
        next report and saves again.

        Scripts save before or after they report an epoch. Files written since the last report
        belong to this one, unless they were written right after the last one or, if the script
        saves first, after this one.
        """
        self._epoch = epoch
        took = time.monotonic() - self._continued
        reported = written_at(self._printed)
        is_saving = bool(self._open.saving())
        seen = time.monotonic()
        if is_saving:
            self._open.wait(self._command.stopping)
        written = self._saved()
        newest = max(map(written_at, written), default=0.0)
        saved_last = self._is_saved_last(newest)
        if coming := list(self._readings.more()):
            self._late = True  # it had reported again before its files were looked at
            return Halted(coming=coming, stands=self._stands())
        is_first = self._epoch == self.start_epoch
        if is_first and self.after is None and newest < reported - took / 2:
            self._changes.news()  # what it writes when it starts is no checkpoint
            written = []
        if written and self.after is None:
            unseen = (seen if is_saving else time.monotonic()) - self.last_look
            is_late = reports > 1
            self._learn_order(newest, reported, took, unseen, is_late=is_late, last=saved_last)
            if self.after is None and self._command.code() is None:
                self._command.suspend()
                return Halted()  # it may belong to either epoch: the next looks will show
        is_last_epochs = self.after and not saved_last
        if is_last_epochs or not written:
            self._changes.news()
            if coming := self._await_save(took):
                return Halted(coming=coming, stands=self._stands())
        return self._halt_whole()

    def _halt_whole(self) -> Halted:
        """Suspend it once its save is whole, and return the checkpoint."""
        while True:
            if self.after and self._saved():
                coming = self._await_whole()
                if coming:
                    return self._passed_by(coming)
                if self._command.stopping() or self._command.code():
                    return Halted()  # it was ended in the midst of it
            self._command.suspend()
            while self._open.saving():
                self._command.go_on()
                if not self._open.wait(self._command.stopping):
                    return Halted()
                self._command.suspend()
            if not self.after or self._command.code() is not None:
                break
            if self._command.stopping() or self._state() == self._whole:
                break
            self._command.go_on()  # it has begun to write another file
        written = self._saved()
        self.saved_last = self._is_saved_last(max(map(written_at, written), default=0.0))
        goes_on = self._command.code() is None
        if goes_on and not self.after and self.saved_last:
            return Halted()  # it may belong to the next epoch, and will still be there then
        self._changes.news()
        return Halted(self._checkpoint(written))

    def _checkpoint(self, written: Sequence[Path], folder: Path | None = None) -> Checkpoint | None:
        """Return a checkpoint of a folder in which these files were saved; None if it is torn."""
        if not written:
            return None
        if damaged := unfinished(written):
            what = "is empty or torn, or others of its save are missing"
            tell(f"epoch {self._epoch + 1} is not saved: {damaged.name} {what}")
            return None
        self._shapes.learn(map(self._name, written))
        return Checkpoint.from_directory(folder or self._changes.path)

    def _name(self, path: Path) -> str:
        """Return the name of a file within the folder, or within a copy of it."""
        path = path.resolve()
        folders = [self._changes.path, *self._copies]
        (folder,) = (it for it in map(Path.resolve, folders) if path.is_relative_to(it))
        return path.relative_to(folder).as_posix()

    def _await_whole(self) -> list[Reading]:
        """Let it run until its save is whole; return the reports that come before that.

        A save is whole if it looks like an earlier one, if its library has written its last file,
        or if nothing has changed for as long as it took; and where the script has gone on to
        another epoch, or has ended.
        """
        mark = self._readings.number
        self._whole = {}
        changed_at = time.monotonic()
        appended = _Appended()
        while not self._command.stopping():
            if self._command.code() is not None:
                return []
            if self._open.saving():
                self._open.wait(self._command.stopping)
            state = self._state()  # before its lines are read: what comes after them isn't in it
            if coming := list(self._readings.more()):
                return coming
            if state != self._whole:
                changed = self._changes.between(self._whole, state)
                self._streams |= appended.note({str(path): state[str(path)][1] for path in changed})
                changed_at = time.monotonic()
                self._whole = {name: it for name, it in state.items() if self._counts(name)}
            if self._readings.number != mark:
                return []
            written = self._saved()
            times = [written_at(path) for path in written]
            took = max(times, default=0.0) - min(times, default=0.0)
            quiet = self._shapes.quiet([self._name(path) for path in written], took)
            now = time.monotonic()
            if now >= changed_at + KNOWN_QUIET and self._spare[0] != self._whole:
                self._copy_spare(written)
            if now >= changed_at + quiet and unfinished(written) is None:
                return []
            time.sleep(_POLL)
        return []

    def _copy_spare(self, written: Sequence[Path]) -> None:
        """Copy a save that may be whole: it may overwrite it before that is known."""
        state = self._whole
        units = {_unit(self._name(path)) for path in written}
        size = sum(it[1] for name, it in state.items() if _unit(self._name(Path(name))) in units)
        if size <= _SPARE_BYTES:
            copy = self._linked(frozenset(), units)
            if self._state() == state:
                self._spare = (state, copy)

    def _state(self) -> State:
        """Return the state of the folder, without files that are no part of saves."""
        return {name: it for name, it in self._changes.state().items() if self._counts(name)}

    def _counts(self, name: str) -> bool:
        """Return whether a file is a part of saves, and no log."""
        return name not in self._streams and str(Path(name).resolve()) not in self._open.logs

    def _passed_by(self, coming: list[Reading]) -> Halted:
        """Return the checkpoint of a script that has gone on to its next report.

        It was whole before that. If the next save has begun already, the script isn't suspended,
        and what that save writes is left out of the checkpoint.
        """
        if not self._whole:
            return Halted(coming=coming, stands=self._stands())  # it was overtaken at once
        self._command.suspend()
        begun = self._changes.between(self._whole, self._state())
        begun += [Path(name) for name in self._open.saving()]
        if not begun:
            return Halted(self._checkpoint(self._changes.take(self._whole)), coming, stands=True)
        self._command.go_on()
        written = self._changes.take(self._whole)
        units = {_unit(self._name(path)) for path in begun}
        if not units & {_unit(self._name(path)) for path in written}:
            return Halted(self._checkpoint(written, self._linked(units)), coming)
        state, copy = self._spare
        if state != self._whole:
            return Halted(coming=coming)  # it is being overwritten
        copies = [copy / self._name(path) for path in written]
        return Halted(self._checkpoint(copies, copy), coming)

    def _stands(self) -> bool:
        """Suspend it, unless it is writing; return whether it is suspended."""
        before = self._state()
        self._command.suspend()
        if not self._open.saving() and self._state() == before:
            return True
        self._command.go_on()
        return False

    def _linked(self, without: Collection[str], copied: Collection[str] = ()) -> Path:
        """Return a copy of the folder without some of its units.

        Its files are links; those of the units `copied` may be overwritten, and are copies.
        """
        self._copies.append(self._copies_in / f"whole-{len(self._copies)}")
        copy = self._copies[-1]
        copy.mkdir()
        for name in self._whole:
            path = Path(name)
            unit = _unit(self._name(path))
            if unit in without:
                continue
            target = copy / self._name(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # it has just been deleted
                (shutil.copyfile if unit in copied else os.link)(path, target)
        return copy

    def _is_saved_last(self, newest: float) -> bool:
        """Return whether files of saves, the `newest` of some time, came after its last line."""
        written = self._order.written_after()
        if written is None:
            return newest > written_at(self._printed)
        return any(map(self._counts, written))

    def _learn_order(
        self,
        newest: float,
        reported: float,
        took: float,
        unseen: float,
        *,
        is_late: bool,
        last: bool,
    ) -> None:
        """Learn from the files saved at a report whether it saves after its reports.

        Nothing is learned if it may have trained on before this report or the last was read, or
        saved unobserved: `unseen` are the seconds from the last look until the save was noticed.
        `last` is whether files were written after its last line.
        """
        is_first = self._epoch == self.start_epoch
        was_late = self._late
        if not is_first:
            unseen = max(unseen, self._longest_unseen)
        if is_first and self._readings.is_last and not is_late:
            self.after = last
            return
        prompt = PROMPT if is_first else max(PROMPT / 2, took / 4)
        self._late = is_late or unseen > prompt
        if self._late or was_late:
            return
        if is_first or last:
            if unseen <= PROMPT:
                self.after = last
            return
        # The closer report counts, if that is clear: the last one was read slightly late.
        saving = [newest, *self._seen_saving]
        after_last = min(saving) - time.time() + time.monotonic() - self._continued
        before_this = reported - max(saving)
        if abs(after_last - before_this) > took / 6:
            self.after = after_last < before_this

    def _saved(self) -> list[Path]:
        """Return the files of checkpoints that are new or changed since the last report."""
        return [path for path in self._changes.since() if self._counts(str(path))]

    def _await_save(self, took: float) -> list[Reading]:
        """Leave it time to begin a save after its report; return the reports that come instead."""
        patience = _SAVE_PATIENCE if self.after else min(_SAVE_PATIENCE, took / 4)
        give_up = time.monotonic() + max(_SHORTEST_PATIENCE, patience)
        while not self._command.stopping():
            is_over = self._command.code() is not None or time.monotonic() > give_up
            if self._saved():
                self.after = True
                return []
            if is_over:
                return []
            if coming := list(self._readings.more()):
                return coming
            time.sleep(_POLL)
        return []


class _Appended:
    """Finds files that a script appends to again and again, opening them each time."""

    def __init__(self) -> None:
        self._grown: dict[str, list[tuple[float, int]]] = {}

    def note(self, sizes: Mapping[str, int]) -> set[str]:
        """Record the sizes of files that have changed; return those that grew time after time."""
        now = time.monotonic()
        for name, size in sizes.items():
            times = self._grown.setdefault(name, [])
            if times and size <= times[-1][1]:
                times.clear()
            times.append((now, size))
        return {
            name
            for name, times in self._grown.items()
            if len(times) >= _APPENDED and times[-1][0] - times[0][0] >= _APPENDED_SECONDS
        }


def _unit(name: str) -> str:
    """Return what a file of a checkpoint is a part of: a folder, or all files outside of one."""
    return name.partition("/")[0] if "/" in name else ""


def written_at(path: Path) -> float:
    """Return when a file was last written, in Unix time; 0 if it isn't there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

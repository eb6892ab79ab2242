"""The checkpoints of a command whose output is read: when each is whole, and of which epoch.

Nothing of the script says when it saves. At each report the script is suspended, and what its
folder shows then is put together with what it has printed:

- A script that saves before it reports has gone on from its save, which is whole.
- One that saves after its report runs on until its save is whole. It may be overtaken by its own
  next report: those that come in the meantime are returned with the checkpoint.
"""

import math
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import psutil

from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.folder_changes import Changes, State
from cloudtune.train.programs.metric_files import MetricFiles
from cloudtune.train.programs.metric_parsers import Reading, Readings
from cloudtune.train.programs.save_folder import SaveFolder, save_unit
from cloudtune.train.programs.save_order import FIRST_PROMPT, PROMPT, Look, SaveOrder
from cloudtune.train.programs.snapshots import last_write
from cloudtune.train.programs.whole_saves import KNOWN_QUIET, SaveShapes, find_unfinished_save
from cloudtune.train.storage import tell

# Seconds between two looks at its folder.
_POLL: Final = 0.02
# Maximum seconds from a script's report until it begins to save, until one has begun later.
_PATIENCE: Final = 10.0
# The same after the latest one: so many times as long as that took.
_LATER: Final = 1.5
# The same where no save after a report was seen: a quarter of an epoch, but for short epochs, whose
# next save may come soon, this long or half an epoch.
_SHORTEST_PATIENCE: Final = 0.5
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
    """A command after its report, with its checkpoint.

    `coming` are the reports that came before its save was whole; then it is suspended only if it
    `stands`. `is_last`: the checkpoint was written after the last line of the output. `saves` is
    how many there were since the report, of which it is the last.
    """

    checkpoint: Checkpoint | None = None
    coming: Sequence[Reading] = ()
    stands: bool = False
    is_last: bool = True
    saves: int = 1


class Spare(NamedTuple):
    """A copy of a save that may be whole, and the state of the folder when it was made."""

    state: State
    folder: Path


class Saving:
    """The saves of a command into a folder.

    Args:
        command: the command, which is halted for its checkpoints.
        folder: its folder of checkpoints.
        readings: its reports.
        copies: a folder on the same disk, for copies.
        only_models: whether only files of models are saves there.
    """

    def __init__(
        self,
        command: Halting,
        folder: Path,
        readings: Readings | MetricFiles,
        *,
        copies: Path,
        only_models: bool,
    ) -> None:
        self._command = command
        self._readings = readings
        self._folder = SaveFolder(
            folder,
            lambda: readings.path,
            readings.is_log,
            copies,
            command.tree,
            only_models=only_models,
        )
        self._shapes = SaveShapes()
        self.order = SaveOrder()
        self._patience = _PATIENCE
        self._reports_amid = False  # whether it has reported in the midst of a save
        self._reported = math.inf  # when it reported last, in Unix time
        self._epoch = 0  # the last one before the report at which it is halted
        self._is_settled = False  # whether its last save was seen to be whole: what's new is later
        self._resting: State = {}  # the folder as it was when a save last changed
        self._spare: Spare | None = None

    def close(self) -> None:
        self._folder.close()

    def watch(self) -> None:
        """Take a look while it trains, at whether it is saving."""
        self.order.watch(self._folder.being_written)

    def note_going_on(self) -> None:
        """Record that it goes on after a report."""
        self.order.note_going_on()
        self._folder.drop_copies()
        self._spare = None

    def halt(self, reports: int, epoch: int, *, is_end: bool) -> Halted:
        """Suspend it when no save is under way; return the checkpoint, if there is a new one.

        `reports` is how many were read, after an epoch; `is_end`: with them it has trained its last
        one. It isn't suspended if it has gone on to its next report and saves again.

        Files written since the last report belong to this one, unless they were written right after
        the last one or, if the script saves first, after this one.
        """
        self._epoch = epoch
        was_settled = self._is_settled and reports == 1  # so what is new is this report's
        self._is_settled = False
        reported = last_write(self._readings.path)
        before, self._reported = self._reported, reported
        unseen = self.order.unseen
        if not self.order.has_reported:
            self._await_first_save(reported)
        if self._folder.being_written():
            self._folder.wait_until_free(self._command.stopping)
        state = self._folder.state()  # what is written from here on is not of an epoch before
        written = self._folder.list_changes()
        last = self._folder.written_last()
        if coming := list(self._readings.more()):
            self.order.note_late()
            return self._passed_by(coming) if was_settled else self._overtaken(coming)

        if written and self.order.after is None:
            newest = max(map(last_write, written))
            if not self.order.has_reported and newest < reported - self.order.epoch_seconds / 2:
                self._folder.take(state)  # what it writes when it starts is no checkpoint
                written = []
            else:
                times = [at for at in map(last_write, last) if at]  # some are gone by now
                look = Look(
                    reported=reported,
                    newest=newest,
                    unseen=unseen,
                    saved_last=bool(last),
                    delay=min(times, default=math.inf) - reported,
                    is_last_line=self._readings.is_last,
                    reports=reports,
                )
                if not self.order.learn(look) and self._runs():
                    return self._halt_undecided(reports, is_end=is_end)

        if not written or (self.order.after and not last and not was_settled):
            self._folder.take(state)  # it is of the epoch before
            late = min(map(last_write, written), default=-math.inf) - before
            self._patience = max(self._patience, _LATER * late)
            if coming := self._await_save():
                return self._overtaken(coming)
        if self.order.after or self._is_amid_save(written, reported):
            return self._halt_after_save()
        return self._halt_before_save()

    def _is_amid_save(self, written: Sequence[Path], reported: float) -> bool:
        """Whether it reported in the midst of a save: other files of the same folder come at once.

        As libraries print a line for each file that they save, which ends that of a progress bar.
        """
        if find_unfinished_save(written) is not None:
            self._reports_amid = True
            return True
        names = {self._folder.name(path) for path in written}
        begun = self._folder.units(self._just_before(written, reported))
        if not begun or (self._shapes.knows(names) and not self._reports_amid):
            return False
        give_up = time.monotonic() + min(FIRST_PROMPT, self.order.epoch_seconds / 4)
        while True:
            new = [
                path for path in self._folder.list_changes() if self._folder.name(path) not in names
            ]
            if self._folder.units([*new, *self._folder.written_last()]) & begun:
                self._reports_amid = True
                return True
            if not self._runs() or time.monotonic() > give_up:
                return False
            time.sleep(_POLL)

    def _just_before(self, written: Sequence[Path], reported: float) -> list[Path]:
        """Return the files in folders of a save that were written right before a report."""
        return [
            path
            for path in written
            if self._folder.unit(path) and -PROMPT <= last_write(path) - reported <= 0
        ]

    def _runs(self) -> bool:
        return self._command.code() is None and not self._command.stopping()

    def _suspend(self) -> bool:
        """Suspend it while no file is open for writing; return False if it ends before that."""
        self._command.suspend()
        while self._folder.being_written():
            self._command.go_on()
            if not self._folder.wait_until_free(self._command.stopping):
                return False
            self._command.suspend()
        return True

    def _overtaken(self, coming: Sequence[Reading]) -> Halted:
        """Suspend a script whose next reports came first, unless it is saving."""
        before = self._folder.state()
        self._command.suspend()
        if not self._folder.being_written() and self._folder.state() == before:
            return Halted(coming=coming, stands=True)
        self._command.go_on()
        return Halted(coming=coming)

    def _halt_before_save(self) -> Halted:
        """Suspend a script that saves before its reports, before it saves again."""
        if not self._suspend():
            return Halted()
        if self._command.code() is None and self._folder.written_last():
            return Halted()  # it may belong to the next epoch, and will still be there then
        return Halted(self._checkpoint(self._folder.take()))

    def _halt_after_save(self) -> Halted:
        """Suspend a script that saves after its reports, once its save is whole."""
        while self._folder.list_changes():
            if coming := self._await_whole():
                return self._passed_by(coming, self._resting)
            if self._command.stopping() or self._command.code() or not self._suspend():
                return Halted()  # it was ended in the midst of it
            if self._command.code() is not None or self._folder.state() == self._resting:
                is_last = bool(self._folder.written_last())
                saves = self._folder.count_saves()
                self._is_settled = True
                checkpoint = self._checkpoint(self._folder.take())
                return Halted(checkpoint, is_last=is_last, saves=saves)
            self._command.go_on()  # it has begun to write another file
        self._suspend()  # it has saved nothing
        return Halted()

    def _halt_undecided(self, reports: int, *, is_end: bool) -> Halted:
        """Suspend a script whose save may belong to either epoch: the next looks will show."""
        if is_end or reports > 1:
            return self._await_end(is_end=is_end)  # there may be no next look
        self._command.suspend()
        return Halted()

    def _await_end(self, *, is_end: bool) -> Halted:
        """Leave a script of short epochs time to save after its last report, and to end.

        What it has saved by then is of its last epoch, whether it saves before or after a report.
        """
        patience = min(_PATIENCE, max(self.order.epoch_seconds, _SHORTEST_PATIENCE))
        give_up = time.monotonic() + patience
        while self._runs() and time.monotonic() < give_up:
            if coming := list(self._readings.more()):
                self.order.note_late()
                return self._overtaken(coming)
            if is_end and self._folder.written_last():
                return self._halt_after_save()
            time.sleep(_POLL)
        if coming := list(self._readings.more(ended=not self._runs())):
            return self._overtaken(coming)
        if not is_end and self._runs():
            self._command.suspend()
            return Halted()
        return self._halt_before_save()

    def _await_first_save(self, reported: float) -> None:
        """Leave it time to save after its first report, unless it has saved right before that.

        Other files are what it has written when it started, or it saves first and then evaluates.
        """
        newest = max(map(last_write, self._folder.list_changes()), default=0.0)
        if newest == 0.0 or newest > reported - PROMPT:
            return
        give_up = time.monotonic() + FIRST_PROMPT
        while self._runs() and not self._folder.written_last() and time.monotonic() < give_up:
            time.sleep(_POLL)

    def _await_save(self) -> list[Reading]:
        """Leave it time to begin a save after its report; return the reports that come instead."""
        took = self.order.epoch_seconds
        patience = self._patience
        if not self.order.after:
            patience = min(_PATIENCE, max(took / 4, min(took / 2, _SHORTEST_PATIENCE)))
        give_up = time.monotonic() + patience
        while not self._command.stopping():
            is_over = self._command.code() is not None or time.monotonic() > give_up
            if self._folder.list_changes():
                self.order.after = True
                return []
            if is_over:
                return []
            if coming := list(self._readings.more()):
                return coming
            time.sleep(_POLL)
        return []

    def _await_whole(self) -> list[Reading]:
        """Let it run until its save is whole; return the reports that come before that.

        A save is whole if it looks like an earlier one, if its library has written its last file,
        or if nothing has changed for as long as it took; and where the script has gone on to
        another epoch, or has ended.
        """
        number = self._readings.number
        self._resting = {}
        changed_at = time.monotonic()
        while self._runs():
            if self._folder.being_written():
                self._folder.wait_until_free(self._command.stopping)
            state = self._folder.state()  # before its lines are read: later files aren't in it
            if coming := list(self._readings.more()):
                return coming
            if state != self._resting:
                self._resting = state
                changed_at = time.monotonic()
            if self._readings.number != number:
                return []
            rest = time.monotonic() - changed_at
            written = self._folder.list_changes()
            if rest >= KNOWN_QUIET:
                self._copy_spare(written)
            if rest >= self._quiet(written) and find_unfinished_save(written) is None:
                return []
            time.sleep(_POLL)
        return []

    def _quiet(self, written: Sequence[Path]) -> float:
        """Return the seconds without a change after which a save of these files is whole."""
        times = [last_write(path) for path in written]
        took = max(times, default=0.0) - min(times, default=0.0)
        return self._shapes.quiet(map(self._folder.name, written), took)

    def _copy_spare(self, written: Sequence[Path]) -> None:
        """Copy a save that may be whole: it may be overwritten before that is known."""
        state = self._resting
        if self._spare is not None and self._spare.state == state:
            return
        units = self._folder.units(written)
        sizes = [it[1] for name, it in state.items() if self._folder.unit(Path(name)) in units]
        self._spare = None
        if sum(sizes) <= _SPARE_BYTES:
            self._folder.mark()
            copy = self._folder.copy(state, overwritten=units)
            if self._folder.state() == state:
                self._spare = Spare(state, copy)

    def _passed_by(self, coming: list[Reading], before: State | None = None) -> Halted:
        """Return the checkpoint of a script that has gone on to its next report: it is whole.

        If the next save has begun already, the script isn't suspended, and what that save writes is
        left out. `before` is the folder at a time before that report, if that is known.
        """
        self._command.suspend()
        coming += self._readings.more()
        state = self._folder.state()
        if len(coming) == 1 and self._readings.is_last:
            later = self._folder.written_last()
            if self._reports_amid:
                reported = last_write(self._readings.path)
                later += self._just_before(self._folder.list_changes(), reported)
        elif before:
            later = Changes.between(before, state)
        else:
            self._command.go_on()
            return self._overtaken(coming)
        later += map(Path, self._folder.being_written())
        begun = {self._folder.name(path) for path in later if path.is_file()}
        old = {name: it for name, it in state.items() if self._folder.name(Path(name)) not in begun}
        saved = self._folder.list_changes(before) if before else []
        if self._reports_amid:
            saved = [path for path in saved if self._folder.name(path) not in begun]
        written = self._folder.take(old)
        self._is_settled = True
        if not begun:
            return Halted(self._checkpoint(written), coming, stands=True)
        self._command.go_on()
        copy = self._copy_without(begun, old, saved or written)
        checkpoint = None if copy is None else self._checkpoint(saved or written, copy)
        return Halted(checkpoint, coming)

    def _copy_without(
        self, begun: Collection[str], old: State, written: Sequence[Path]
    ) -> Path | None:
        """Return a copy of the folder as it was before a save begun; None if that's overwritten."""
        spare, self._spare = self._spare, None
        if spare is not None and not self._folder.written_since_mark():
            return spare.folder
        units = {save_unit(name) for name in begun}
        if units & self._folder.units(written):
            return None
        return self._folder.copy(
            [name for name in old if self._folder.unit(Path(name)) not in units]
        )

    def _checkpoint(self, written: Sequence[Path], copy: Path | None = None) -> Checkpoint | None:
        """Return a checkpoint of the folder, or of a `copy`; None if no save is whole."""
        if not written:
            return None
        files = written if copy is None else self._folder.in_copy(copy, written)
        if damaged := find_unfinished_save(files):
            what = "is empty or torn, or others of its save are missing"
            tell(f"epoch {self._epoch + 1} is not saved: {damaged.name} {what}")
            return None
        self._shapes.learn(map(self._folder.name, written))
        return Checkpoint.from_directory(copy or self._folder.whole())

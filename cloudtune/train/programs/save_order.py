"""Whether a command saves before or after it reports an epoch, by when it has done both."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

# Seconds after a report in which a save belongs to that epoch, not the next one.
PROMPT: Final = 0.1
# The same after its first report, as far as that is a quarter of the time until then at most.
FIRST_PROMPT: Final = 0.3


class Look(NamedTuple):
    """What a look at a report and at the files of a save showed.

    `reported` and `newest` are when the report and the last of the files were written, in Unix
    time; `unseen` are the seconds from the look before until the save was noticed. `saved_last`:
    files were written after the last line, the first of them `delay` seconds after it;
    `is_last_line`: that line is the report. `reports` is how many were read at once.
    """

    reported: float
    newest: float
    unseen: float
    saved_last: bool
    delay: float
    is_last_line: bool
    reports: int

    @property
    def came_first(self) -> bool:
        """Whether the save certainly came before the report.

        Where other lines came after the report, as those of the next epoch's progress bar, only the
        look before tells: the save may have come between them.
        """
        return self.is_last_line or self.newest < self.reported - self.unseen


class SaveOrder:
    """Learns whether a script saves before or after its reports; `after` is None until it's known.

    A look that comes late proves nothing: the script may have trained on before its report was
    read, or saved unobserved.
    """

    def __init__(self) -> None:
        self.after: bool | None = None
        self.has_reported = False
        self._late = False  # whether it may have trained on before its last report was read
        self._continued = time.time()
        self._look = self._look_before = self._continued  # when its output was last read
        self._longest_unseen = 0.0  # seconds between two looks since it continued
        self._looked_for_saves = 0.0
        self._saving: list[float] = []  # when it was saving since it continued

    @property
    def epoch_seconds(self) -> float:
        """The seconds since it continued after its last report."""
        return time.time() - self._continued

    @property
    def unseen(self) -> float:
        """The seconds since the last look at its output that didn't show its report yet."""
        return time.time() - self._look_before

    def note_look(self) -> None:
        """Record that its output is read now."""
        self._look_before, self._look = self._look, time.time()
        self._longest_unseen = max(self._longest_unseen, self._look - self._look_before)

    def note_late(self) -> None:
        """Record that it had reported again before its files were looked at."""
        self.has_reported = self._late = True

    def note_going_on(self) -> None:
        """Record that it goes on after a report."""
        self.has_reported = True
        self._continued = self._look = time.time()
        self._longest_unseen = 0.0
        self._saving.clear()

    def watch(self, is_saving: Callable[[], object]) -> None:
        """Record when it saves, if its first report didn't show whether it saves first.

        The time of a file's last write isn't enough: a slow save may have begun long before.
        """
        if self.after is not None or not self.has_reported:
            return
        now = time.time()
        if now > self._looked_for_saves + PROMPT / 2:
            self._looked_for_saves = now
            self._saving += [now] if is_saving() else []

    def learn(self, look: Look) -> bool:
        """Learn from a save that was found at a report; return whether it is known whose it is.

        It may be this report's though nothing shows which of them came first.
        """
        is_only_report = look.reports == 1 and look.is_last_line
        was_first = not self.has_reported
        prompt = FIRST_PROMPT if was_first else PROMPT
        if is_only_report and look.saved_last and look.delay <= min(prompt, self.epoch_seconds / 4):
            self.after = True
        elif is_only_report and was_first and not look.saved_last:
            self.after = False  # nothing but this epoch's files can come before the first report
        elif was_first:
            self._late = look.reports > 1 or look.unseen > PROMPT
            if self._late:
                return False
            if look.saved_last or look.came_first:
                self.after = look.saved_last
        else:
            return self._learn_by_times(look)
        return True

    def _learn_by_times(self, look: Look) -> bool:
        was_late = self._late
        unseen = max(look.unseen, self._longest_unseen)
        took = self.epoch_seconds
        self._late = look.reports > 1 or unseen > max(PROMPT / 2, took / 4)
        if self._late or was_late:
            return False
        if look.saved_last:
            self.after = True if unseen <= PROMPT else None
            return unseen <= PROMPT
        # The closer report counts, if that is clear: the last one was read slightly late.
        after_last = min([look.newest, *self._saving]) - self._continued
        before_this = look.reported - max([look.newest, *self._saving])
        if abs(after_last - before_this) <= took / 6:
            return False
        if after_last < before_this or look.came_first:
            self.after = after_last < before_this
        return True

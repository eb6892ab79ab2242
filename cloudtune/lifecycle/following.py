"""Follow the ledger of a run while another process writes it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cloudtune.engine.ledger import Entry, has_checksum, parse_entry, read_header
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.runner import outliving_reporters, patient
from cloudtune.policy.run import RunPolicy
from cloudtune.runs import home
from cloudtune.runs.job import job_of_ledger

# Seconds between two looks at an unchanged ledger.
_GLANCE = 0.5


class LedgerTail:
    """Reads the entries of a ledger as they are written; waits for a line that isn't complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines = 0
        self._checked = False

    def read(self) -> Iterator[Entry]:
        """Yield the entries since the last call.

        Raises:
            CloudtuneError: not a ledger that this version can read, or a damaged one.
        """
        if not self._lines:
            read_header(self._path)
        with self._path.open("rb") as file:  # a head's ledger is a new file after each copy
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        lines = complete.decode(errors="replace").split("\n") if newline else []
        for line in lines:
            self._lines += 1
            if self._lines == 1:  # the header
                self._checked = has_checksum(line)
                continue
            yield parse_entry(line, self._path, self._lines, checked=self._checked)


def follow_entries(
    path: Path, is_over: Callable[[], bool], is_driven: Callable[[], bool]
) -> Iterator[Entry]:
    """Yield the entries of a ledger: the past ones immediately, new ones as they are written.

    Ends once the run is over by the entries so far, or when `is_driven`, called before the last
    look, was False.

    Raises:
        CloudtuneError: not a ledger that this version can read, or a damaged one.
    """
    tail = LedgerTail(path)
    driven = True
    while True:
        is_new = False
        for entry in tail.read():
            is_new = True
            yield entry
        if is_over() or not (driven or is_new):
            return
        # Look once more for what the writer wrote before it ended.
        driven = is_driven()
        if driven:
            time.sleep(_GLANCE)


class EventReports:
    """Reports the events of a run by its ledger, except for the first `seen`."""

    def __init__(self, folder: Path, reporter: Reporter, *, seen: int = 0) -> None:
        self._folder = folder
        self._reporter = reporter
        self._on_event = patient(reporter.on_event, folder)
        self._tail = LedgerTail(folder / home.LEDGER)
        self._seen = seen
        self._number = 0
        self._policy: RunPolicy | None = None

    def report_new(self) -> None:
        """Report the events since the last call; none while there is no ledger.

        Raises:
            CloudtuneError: not a ledger that this version can read, or a damaged one.
        """
        if not (self._folder / home.LEDGER).exists():
            return
        for entry in self._tail.read():
            policy = self._policy or self._start()
            policy.handle(entry.event)
            self._number += 1
            if self._number > self._seen:
                self._on_event(entry.event, entry.commands)

    def _start(self) -> RunPolicy:
        job = job_of_ledger(self._folder / home.LEDGER)
        self._policy = job.policy()
        with outliving_reporters(self._folder):
            self._reporter.on_run_start(job, self._policy)
        return self._policy

"""Runs whose files were moved since: where the checkpoints that a ledger names are now."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cloudtune.engine.ledger import Entry, read_entries
from cloudtune.model.commands import Command, StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.runs import home
from cloudtune.runs.job import Job


def read_moved_entries(ledger: Path, job: Job) -> Iterator[Entry]:
    """Yield the entries of a run's ledger, with the present paths of its checkpoints.

    Raises:
        CloudtuneError: not a ledger that this version can read, or a damaged one.
    """
    places = Places.of(job)
    return (places.entry(entry) for entry in read_entries(ledger))


class Places:
    """Where the checkpoints of a run are: at `uri`, if they aren't where they were saved."""

    def __init__(self, run: str, uri: str) -> None:
        self._uri = uri
        self._before = re.compile(rf"(/.*/{re.escape(run)})(?=/)")
        self._moved: dict[str, bool] = {}  # by a folder of the run's checkpoints

    @classmethod
    def of(cls, job: Job) -> "Places":
        return cls(job.run, home.run_storage(job.experiment.storage, job.run))

    def entry(self, entry: Entry) -> Entry:
        """Return an entry of the run's ledger with present paths."""
        event = entry.event
        if isinstance(event, EpochDone) and event.checkpoint is not None:
            event = replace(event, checkpoint=self.now(event.checkpoint))
        return Entry(event, tuple(map(self._command, entry.commands)))

    def _command(self, command: Command) -> Command:
        if isinstance(command, StartTrial) and command.checkpoint is not None:
            return replace(command, checkpoint=self.now(command.checkpoint))
        return command

    def now(self, path: str) -> str:
        """Return where something of the run is that was at this path."""
        match = self._before.match(path)
        if match is None:
            return path
        folder = match[1]
        if folder not in self._moved:
            self._moved[folder] = not Path(folder).exists() and Path(self._uri).exists()
        return f"{self._uri}{path[match.end() :]}" if self._moved[folder] else path

"""Follow a run that other machines carry while the network or the credentials here come and go."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cloudtune import aws_session
from cloudtune.engine.ledger import read_entries
from cloudtune.errors import CloudtuneError
from cloudtune.model.text import count_noun
from cloudtune.model.units import format_seconds
from cloudtune.runs import control, home
from cloudtune.runs.control import to_stderr
from cloudtune.runs.job import job_of_ledger
from cloudtune.runs.report import build
from cloudtune.train.storage import StorageError

T = TypeVar("T")


class Contact:
    """Asks the storage and the cloud of a run, and reports when they stop or resume answering.

    A run needs neither this machine's network nor its credentials: what fails here is asked again.
    """

    def __init__(self, folder: Path, errors: tuple[type[Exception], ...] = ()) -> None:
        self._folder = folder
        self._errors: tuple[type[Exception], ...] = (StorageError, OSError, *errors)
        self._lost_at: float | None = None

    def ask(self, question: Callable[[], T], otherwise: T) -> T:
        """Return the answer to a question, or `otherwise` while there is no contact."""
        try:
            answer = question()
        except self._errors as error:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                to_stderr(
                    f"lost contact with run {self._folder.name}: {error}\n"
                    "The run continues without this machine, within its limits"
                    f"{hourly_cost(self._folder)}. Trying again; if your credentials have expired, "
                    f"{aws_session.LOG_IN}."
                )
            return otherwise
        if self._lost_at is not None:
            seconds = time.monotonic() - self._lost_at
            self._lost_at = None
            to_stderr(
                f"contact with run {self._folder.name} again, after {format_seconds(seconds)}"
            )
        return answer


def hourly_cost(folder: Path) -> str:
    """Return what a run's instances cost an hour, by the ledger as it was last fetched."""
    ledger = folder / home.LEDGER
    try:
        report = build(job_of_ledger(ledger), tuple(read_entries(ledger)))
    except (CloudtuneError, OSError):
        return ""
    rented = report.policy.state.fleet.alive()
    dollars = sum(instance.offer.usd_per_hour for instance in rented)
    return f"; its {count_noun(len(rented), 'instance')} cost ${dollars:.2f} an hour when last seen"


def is_driven(folder: Path) -> Callable[[], bool]:
    """Return a question whether a run is driven (`control.is_driven`), True without contact."""
    contact = Contact(folder)
    return lambda: contact.ask(lambda: control.is_driven(folder), True)

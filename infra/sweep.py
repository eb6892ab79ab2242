"""Making sure that nothing of a run is left in its cloud."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

from cloudtune.errors import CleanupError
from cloudtune.infra.processes import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.infra.cluster.node_provider import Journal
    from cloudtune.infra.provider import Calls, Instance

_SWEEP_SECONDS = 90.0
_LISTED_SECONDS = 20.0


def keep_records(calls: Calls, run: str, path: Path) -> None:
    """Save EC2's record of a run's instances, if available: EC2 forgets them in an hour."""
    with contextlib.suppress(*calls.errors, OSError):
        records = [vars(instance) for instance in calls.ours(run)]
        write_atomically(path, json.dumps(records, indent=1))


def sweep(
    calls: Calls, run: str, journal: Journal, *, patience: float = _SWEEP_SECONDS
) -> list[Instance]:
    """Return everything that a run has left; return what still bills when patience ends.

    It asks EC2 by tag, so it finds instances without any record. EC2 may not list an instance in
    its first seconds, so it waits for those that the journal says were launched, or requested
    without an answer. It also waits for renewed credentials, and for the leases of instances that
    may not be ended from here.

    Raises:
        CleanupError: EC2 couldn't be reached until patience ended.
    """
    give_up = time.monotonic() + patience
    listed_by = time.monotonic() + _LISTED_SECONDS
    while True:
        try:
            listed = calls.ours(run)
            left = [instance for instance in listed if instance.billing]
            with contextlib.suppress(*calls.errors):  # not allowed: then leases may end them
                calls.terminate([instance.id for instance in left])
        except calls.errors as error:  # also expired credentials, which may be renewed
            if time.monotonic() > give_up:
                raise cleanup_error(run, journal, error) from error
        else:
            if not left and not (time.monotonic() < listed_by and _may_appear(journal, listed)):
                return []
            if time.monotonic() > give_up:
                return left
        time.sleep(0.5)


def _list_launched_ids(journal: Journal) -> list[str]:
    return [note.instance for note in journal.read() if note.what == "launched"]


def _may_appear(journal: Journal, listed: list[Instance]) -> bool:
    """Whether there may be an instance that EC2 doesn't list yet."""
    notes = list(journal.read())
    answered = {note.intent for note in notes if note.what in {"launched", "refused"}}
    asked = {note.intent for note in notes if note.what == "asking"}
    unanswered = asked - answered - {instance.intent for instance in listed}
    unseen = set(_list_launched_ids(journal)) - {instance.id for instance in listed}
    return bool(unanswered or unseen)


def cleanup_error(run: str, journal: Journal, error: Exception) -> CleanupError:
    """Return the error for a cloud that can't say what is left of a run."""
    launched = _list_launched_ids(journal)
    message = (
        f"The cloud can't be asked what is left of run {run}: {error}. It launched: "
        f"{', '.join(launched) or 'none'}. "
        "Run `cloudtune gc` when it answers again, or look into its console."
    )
    return CleanupError(message, launched)

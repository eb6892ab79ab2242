"""Which instance would control a run from here, if any, and what that adds to its charges."""

import contextlib
import itertools
from statistics import median

from cloudtune.engine.ledger import read_entries
from cloudtune.errors import CloudtuneError
from cloudtune.experiment import Experiment
from cloudtune.infra.provider import HeadOffer, find_provider
from cloudtune.runs import home
from cloudtune.runs.job import job_of_ledger

# Until a head controls its run, where none has yet: it may build its environment first.
_HEAD_SECONDS = 480.0
# The last runs say how long a head takes to control one.
_RECENT_HEADS = 5


def offer_head(wanted: Experiment, *, force: bool = False) -> HeadOffer | None:
    """Return the instance that would control a run; None if this machine can, unless forced.

    Raises:
        UsageError: the price of that instance is unknown.
    """
    return find_provider(wanted.cloud.provider).head(wanted, home.home(), force=force)


def with_head(wanted: Experiment, offer: HeadOffer | None) -> Experiment:
    """Return an experiment whose charges include its head: what an hour costs, its start."""
    if offer is None:
        return wanted
    seconds = wanted.charges.head_seconds or _head_seconds()
    update = {"head": offer.usd_per_hour, "head_seconds": seconds}
    return wanted.model_copy(update={"charges": wanted.charges.model_copy(update=update)})


def _head_seconds() -> float:
    """Return how long heads took from `run` to the begin of the run: the median of the last ones.

    Runs that were measured first don't count, as that is in the same seconds.
    """
    from cloudtune.infra.heads.remote_runs import is_remote  # noqa: PLC0415  storage takes long

    seconds: list[float] = []
    for folder in reversed(home.run_folders()):
        with contextlib.suppress(CloudtuneError):  # of another version, or damaged
            if is_remote(folder) and not job_of_ledger(folder / home.LEDGER).measuring:
                entries = itertools.islice(read_entries(folder / home.LEDGER), 1)
                seconds += [entry.event.at for entry in entries]
        if len(seconds) == _RECENT_HEADS:
            break
    return median(seconds) if seconds else _HEAD_SECONDS

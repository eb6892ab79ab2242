"""What the workers of a run have printed, as their nodes have kept it in the run's storage."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.errors import UsageError
from cloudtune.runs import home
from cloudtune.runs.job import job_of_ledger
from cloudtune.train.storage import LOGS, StorageError, entries, filesystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

NEAR_SECONDS = 1.0
FAR_SECONDS = 5.0
"""Seconds between two looks at a storage elsewhere, where each is a request."""
_WORKER = re.compile(r"(?P<trial>.+)\.(?P<session>\d+)\.(?P<rank>\d+)\.log")
_OVERLAP = 4096


@dataclass(frozen=True)
class Log:
    """A log in a storage: of a worker of a trial, by session and rank, or of a node.

    `changed` differs once the log has been written anew.
    """

    trial: str
    session: int
    rank: int
    node: str
    path: str
    changed: tuple[int, object] = (0, None)

    @property
    def title(self) -> str:
        """Whose log it is: "t03, session 1, rank 0"."""
        if self.node:
            return f"node {self.node}"
        return f"{self.trial}, session {self.session}, rank {self.rank}"


@dataclass(frozen=True)
class Told:
    """A piece of a log: all of it, or what was added to it."""

    log: Log
    text: str


class RunLogs:
    """The logs of a run, from its storage.

    Raises:
        CloudtuneError: the run's folder holds no ledger that this program reads.
        StorageError: its storage can't be reached.
    """

    def __init__(self, folder: Path) -> None:
        job = job_of_ledger(folder / home.LEDGER)
        self.uri = f"{home.storage(job.experiment.storage).rstrip('/')}/{folder.name}/{LOGS}"
        self._seen: dict[str, tuple[tuple[int, object], bytes]] = {}
        try:
            self._fs, self._root = filesystem(self.uri)
        except (OSError, ValueError) as error:
            raise StorageError(f"storage {self.uri}: {error}") from None

    def listed(self, trial: str | None = None, *, nodes: bool = False) -> list[Log]:
        """Return the logs of all workers, or those of a trial's; with `nodes` those of nodes.

        Raises:
            UsageError: the run has logs, and none of that trial.
            StorageError: the storage can't be read.
        """
        if nodes:
            return sorted(self._found("nodes", _of_node), key=lambda log: log.node)
        found = self._found("", _of_worker)
        found.sort(key=lambda log: (log.trial, log.session, log.rank))
        of_it = [log for log in found if trial in (None, log.trial)]
        if found and not of_it:
            names = ", ".join(dict.fromkeys(log.trial for log in found))
            raise UsageError(f"no log of {trial!r}; there are logs of {names}")
        return of_it

    def news(self, logs: Sequence[Log]) -> Iterator[Told]:
        """Yield what each of these logs has that wasn't yielded before.

        Raises:
            StorageError: the storage can't be read.
        """
        for log in logs:
            known = self._seen.get(log.path)
            if known is not None and known[0] == log.changed:
                continue
            data = self._read(log)
            self._seen[log.path] = (log.changed, data)
            added = data if known is None else _added(known[1], data)
            if added:
                yield Told(log, added.decode(errors="replace"))

    def followed(
        self, look: Callable[[], Sequence[Log]], driven: Callable[[], bool]
    ) -> Iterator[Told]:
        """Yield what comes to the logs that `look` finds, those of the past at once.

        Ends once nobody has `driven` the run since before the last look.
        """
        while True:
            going_on = driven()
            yield from self.news(look())
            if not going_on:
                return
            time.sleep(FAR_SECONDS if "://" in self.uri else NEAR_SECONDS)

    def _found(self, folder: str, of: Callable[[Any], Log | None]) -> list[Log]:
        where = f"{self._root}/{folder}".rstrip("/")
        try:
            infos = entries(self._fs, where)
        except (OSError, ValueError) as error:
            raise StorageError(f"storage {self.uri}: {error}") from None
        return [log for info in infos if info.is_file and (log := of(info)) is not None]

    def _read(self, log: Log) -> bytes:
        try:
            with self._fs.open_input_stream(log.path) as reader:
                return bytes(reader.read())
        except (OSError, ValueError) as error:
            raise StorageError(f"storage {self.uri}: {error}") from None


def _of_worker(info: Any) -> Log | None:
    found = _WORKER.fullmatch(info.base_name)
    if found is None:
        return None
    session, rank = int(found["session"]), int(found["rank"])
    return Log(found["trial"], session, rank, "", info.path, (info.size, info.mtime_ns))


def _of_node(info: Any) -> Log:
    node = info.base_name.removesuffix(".log")
    return Log("", 0, 0, node, info.path, (info.size, info.mtime_ns))


def _added(before: bytes, now: bytes) -> bytes:
    """Return what a log has more than before; its middle may have been left out since."""
    if now.startswith(before):
        return now[len(before) :]
    last = before[-_OVERLAP:]
    at = now.rfind(last)
    return now if at < 0 else now[at + len(last) :]

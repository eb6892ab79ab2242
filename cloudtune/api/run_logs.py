"""The output of a run's workers, which their nodes copy to the run's storage."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtune.errors import UsageError
from cloudtune.runs import home
from cloudtune.runs.job import job_of_ledger
from cloudtune.train.storage import LOGS, entries, filesystem, storage_errors

# Seconds between two looks at remote storage, where each look is a request.
NEAR_SECONDS = 1.0
# Between two looks at a log: in a storage elsewhere, where each is a paid request.
FAR_SECONDS = 5.0
_WORKER = re.compile(r"(?P<trial>.+)\.(?P<session>\d+)\.(?P<rank>\d+)\.log")
# So many bytes of what was shown are looked for in a log whose middle was cut.
_OVERLAP = 4096


@dataclass(frozen=True)
class Log:
    """A log in a storage: of a worker of a trial, by session and rank, or of a node.

    `changed` changes whenever the log is written again.
    """

    trial: str
    session: int
    rank: int
    node: str
    path: str
    changed: tuple[int, object] = (0, None)

    @property
    def title(self) -> str:
        """The owner of the log, such as "t03, session 1, rank 0"."""
        if self.node:
            return f"node {self.node}"
        return f"{self.trial}, session {self.session}, rank {self.rank}"


@dataclass(frozen=True)
class LogPiece:
    """A piece of a log: all of it, or an addition."""

    log: Log
    text: str


class RunLogs:
    """The logs of a run, from its storage.

    Raises:
        CloudtuneError: the run's folder has no ledger that this version can read.
        StorageError: its storage can't be reached.
    """

    def __init__(self, folder: Path) -> None:
        job = job_of_ledger(folder / home.LEDGER)
        self.uri = f"{home.storage(job.experiment.storage).rstrip('/')}/{folder.name}/{LOGS}"
        self._seen: dict[str, tuple[tuple[int, object], bytes]] = {}
        with storage_errors(self.uri):
            self._fs, self._root = filesystem(self.uri)

    def listed(self, trial: str | None = None, *, nodes: bool = False) -> list[Log]:
        """Return the logs of all workers, or of a trial's; with `nodes`, those of nodes.

        Raises:
            UsageError: the run has logs, but none of that trial.
            StorageError: the storage can't be read.
        """
        if nodes:
            return sorted(self._found("nodes", _of_node), key=lambda log: log.node)
        logs = self._found("", _of_worker)
        logs.sort(key=lambda log: (log.trial, log.session, log.rank))
        matching = [log for log in logs if trial in (None, log.trial)]
        if logs and not matching:
            names = ", ".join(dict.fromkeys(log.trial for log in logs))
            raise UsageError(f"no logs of trial {trial!r}; choose one of {names}")
        return matching

    def news(self, logs: Sequence[Log]) -> Iterator[LogPiece]:
        """Yield the additions to these logs since the last call.

        Raises:
            StorageError: the storage can't be read.
        """
        for log in logs:
            last_seen = self._seen.get(log.path)
            if last_seen is not None and last_seen[0] == log.changed:
                continue
            with storage_errors(self.uri), self._fs.open_input_stream(log.path) as reader:
                data = bytes(reader.read())
            self._seen[log.path] = (log.changed, data)
            added = data if last_seen is None else _added(last_seen[1], data)
            if added:
                yield LogPiece(log, added.decode(errors="replace"))

    def followed(
        self, look: Callable[[], Sequence[Log]], driven: Callable[[], bool]
    ) -> Iterator[LogPiece]:
        """Yield the logs that `look` finds, then their additions.

        Ends when `driven`, called before the last look, was False.
        """
        while True:
            is_live = driven()
            yield from self.news(look())
            if not is_live:
                return
            time.sleep(FAR_SECONDS if "://" in self.uri else NEAR_SECONDS)

    def _found(self, folder: str, of: Callable[[Any], Log | None]) -> list[Log]:
        with storage_errors(self.uri):
            infos = entries(self._fs, f"{self._root}/{folder}".rstrip("/"))
        return [log for info in infos if info.is_file and (log := of(info)) is not None]


def _of_worker(info: Any) -> Log | None:
    match = _WORKER.fullmatch(info.base_name)
    if match is None:
        return None
    session = int(match["session"])
    rank = int(match["rank"])
    return Log(match["trial"], session, rank, "", info.path, (info.size, info.mtime_ns))


def _of_node(info: Any) -> Log:
    node = info.base_name.removesuffix(".log")
    return Log("", 0, 0, node, info.path, (info.size, info.mtime_ns))


def _added(before: bytes, now: bytes) -> bytes:
    """Return the additions to a log, whose middle may have been cut out since."""
    if now.startswith(before):
        return now[len(before) :]
    last = before[-_OVERLAP:]
    at = now.rfind(last)
    return now if at < 0 else now[at + len(last) :]

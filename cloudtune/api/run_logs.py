"""The output of a run's workers, which their nodes copy to the run's storage."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Log(NamedTuple):
    """A log in a storage: of a worker of a trial, or of a node (then `trial` is ""); its file."""

    title: str
    trial: str
    info: Any


class RunLogs:
    """The logs of a run, from its storage.

    Raises:
        CloudtuneError: the run's folder has no ledger that this version can read.
        StorageError: its storage can't be reached.
    """

    def __init__(self, folder: Path) -> None:
        job = job_of_ledger(folder / home.LEDGER)
        self.uri = f"{home.run_storage(job.experiment.storage, folder.name)}/{LOGS}"
        self._seen: dict[str, tuple[tuple[int, object], bytes]] = {}
        with storage_errors(self.uri):
            self._fs, self._root = filesystem(self.uri)

    def list_logs(self, trial: str | None = None, *, nodes: bool = False) -> list[Log]:
        """Return the logs of all workers, or of a trial's; with `nodes`, those of nodes.

        Raises:
            UsageError: the run has logs, but none of that trial.
            StorageError: the storage can't be read.
        """
        with storage_errors(self.uri):
            infos = entries(self._fs, f"{self._root}/{'nodes' if nodes else ''}".rstrip("/"))
        files = {info.base_name: info for info in infos if info.is_file}
        if nodes:
            names = {f"node {name.removesuffix('.log')}": name for name in files}
            return [Log(title, "", files[names[title]]) for title in sorted(names)]
        matches = [match for match in map(_WORKER.fullmatch, files) if match is not None]
        matches.sort(key=lambda match: (match["trial"], int(match["session"]), int(match["rank"])))
        logs = [
            Log(
                f"{it['trial']}, session {int(it['session'])}, rank {int(it['rank'])}",
                it["trial"],
                files[it[0]],
            )
            for it in matches
        ]
        matching = [log for log in logs if trial in (None, log.trial)]
        if logs and not matching:
            trials = ", ".join(dict.fromkeys(log.trial for log in logs))
            raise UsageError(f"no logs of trial {trial!r}; choose one of {trials}")
        return matching

    def news(self, logs: Sequence[Log]) -> Iterator[tuple[str, str]]:
        """Yield the additions to these logs since the last call, each with the log's title.

        Raises:
            StorageError: the storage can't be read.
        """
        for log in logs:
            path = log.info.path
            changed = (log.info.size, log.info.mtime_ns)
            last_seen = self._seen.get(path)
            if last_seen is not None and last_seen[0] == changed:
                continue
            with storage_errors(self.uri), self._fs.open_input_stream(path) as reader:
                data = bytes(reader.read())
            self._seen[path] = (changed, data)
            added = data if last_seen is None else _additions(last_seen[1], data)
            if added:
                yield log.title, added.decode(errors="replace")

    def follow(
        self, look: Callable[[], Sequence[Log]], driven: Callable[[], bool]
    ) -> Iterator[tuple[str, str]]:
        """Yield the logs that `look` finds, then their additions.

        Ends when `driven`, called before the last look, was False.
        """
        while True:
            is_live = driven()
            yield from self.news(look())
            if not is_live:
                return
            time.sleep(FAR_SECONDS if "://" in self.uri else NEAR_SECONDS)


def _additions(before: bytes, now: bytes) -> bytes:
    """Return the additions to a log, whose middle may have been cut out since."""
    if now.startswith(before):
        return now[len(before) :]
    last = before[-_OVERLAP:]
    at = now.rfind(last)
    return now if at < 0 else now[at + len(last) :]

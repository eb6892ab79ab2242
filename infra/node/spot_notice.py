"""The notice that EC2 gives before it takes a spot instance back, read on the instance itself.

The notice stands in the instance metadata, as `spot/instance-action`, about two minutes ahead, and
often before it a rebalance recommendation: the instance is at elevated risk. Until then these items
don't exist. AWS advises to look every five seconds. Where there are no metadata, it is a file.
"""

import json
import math
import os
import threading
import urllib.error
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from cloudtune.infra.node.boot import metadata

# The file to which a notice is written (when it goes, Unix time), where no metadata have it.
NOTICE_VARIABLE = "CLOUDTUNE_NOTICE"
POLL_SECONDS = 3.0
_NOT_FOUND = 404


def interruption() -> float | None:
    """Return when this instance is to be taken back (Unix time); None while there is no notice.

    Never, as infinity, where it isn't spot.

    Raises:
        OSError: the metadata service can't be asked.
    """
    if file := os.environ.get(NOTICE_VARIABLE):
        path = Path(file)
        return float(path.read_text()) if path.exists() else None
    if metadata("instance-life-cycle") != "spot":
        return math.inf
    notice = _item("spot/instance-action")
    return (
        None if notice is None else datetime.fromisoformat(json.loads(notice)["time"]).timestamp()
    )


def rebalance_recommended() -> bool:
    """Return whether EC2 says that this spot instance is at elevated risk.

    Raises:
        OSError: the metadata service can't be asked.
    """
    in_file = NOTICE_VARIABLE in os.environ  # a file has the time of the end alone
    return not in_file and _item("events/recommendations/rebalance") is not None


def _item(path: str) -> str | None:
    try:
        return metadata(path)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _NOT_FOUND:
                return None
            raise


class NoticeWatch:
    """Looks for the notice from a thread of its own, and tells of it once.

    `tell(due)` is called from that thread, with the Unix time at which the instance goes, as `look`
    says it. Where that is never, the thread ends at once. Before that `warn()` is called, once, if
    the instance is `at_risk`. `trouble` says why there was no answer the last time; it is asked
    again.
    """

    def __init__(
        self,
        tell: Callable[[float], None],
        warn: Callable[[], object],
        look: Callable[[], float | None] = interruption,
        at_risk: Callable[[], bool] = rebalance_recommended,
        *,
        seconds: float = POLL_SECONDS,
    ) -> None:
        self.trouble = ""
        self._tell = tell
        self._warn = warn
        self._look = look
        self._at_risk = at_risk
        self._seconds = seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience: float = 2.0) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(patience)

    @property
    def watching(self) -> bool:
        return self._thread.is_alive()

    def _watch(self) -> None:
        warned = False
        while not self._stopping.wait(self._seconds):
            try:
                due = self._look()
                if due is None and not warned and self._at_risk():
                    self._warn()
                    warned = True
            except (OSError, ValueError, KeyError) as error:
                self.trouble = f"notices can't be read: {error}"
                continue
            self.trouble = ""
            if due is None:
                continue
            if due < math.inf:
                self._tell(due)
            return

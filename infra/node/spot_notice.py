"""The notice that EC2 gives before it takes a spot instance back, read on the instance itself.

The notice stands in the instance metadata, as `spot/instance-action`, about two minutes ahead, and
often before it a rebalance recommendation: the instance is at elevated risk. Until then these items
don't exist. AWS advises to look every five seconds. Where there are no metadata, it is a file.
"""

import contextlib
import json
import math
import os
import time
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
    if notice is None:
        return None
    return datetime.fromisoformat(json.loads(notice)["time"]).timestamp()


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


def watch_notices(
    tell: Callable[[float], None],
    warn: Callable[[], object],
    look: Callable[[], float | None] = interruption,
    at_risk: Callable[[], bool] = rebalance_recommended,
    *,
    seconds: float = POLL_SECONDS,
) -> None:
    """Look for the notice every `seconds` until there is one, and report it once.

    `tell(due)` is called with the Unix time at which the instance goes, as `look` says it. Where
    that is never, this returns at once. Before that `warn()` is called, once, if the instance is
    `at_risk`. What gives no answer is asked again.
    """
    due = None
    warned = False
    while due is None:
        time.sleep(seconds)
        with contextlib.suppress(OSError, ValueError, KeyError):
            due = look()
            if due is None and not warned and at_risk():
                warn()
                warned = True
    if due < math.inf:
        tell(due)

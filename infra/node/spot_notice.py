"""EC2's notice before it interrupts a spot instance, read on the instance itself.

About two minutes ahead the instance metadata have a notice, `spot/instance-action`, often preceded
by a rebalance recommendation: the instance is at elevated risk. Until then these items don't exist.
AWS advises to look every five seconds. Without metadata, the notice is a file.
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

# The file with the notice (the end, Unix time), for clouds without metadata.
NOTICE_VARIABLE = "CLOUDTUNE_NOTICE"
POLL_SECONDS = 3.0
_NOT_FOUND = 404


def interruption() -> float | None:
    """Return when this instance will be interrupted (Unix time); None while there is no notice.

    inf if it isn't spot.

    Raises:
        OSError: the metadata service can't be reached.
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


def is_at_risk() -> bool:
    """Return whether EC2 says that this spot instance is at elevated risk.

    Raises:
        OSError: the metadata service can't be reached.
    """
    in_file = NOTICE_VARIABLE in os.environ  # a file only has the time of the end
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
    at_risk: Callable[[], bool] = is_at_risk,
    *,
    seconds: float = POLL_SECONDS,
) -> None:
    """Look for the notice every `seconds` until there is one, and report it once.

    `tell(due)` is called with the Unix time of the interruption, from `look`. If that is never,
    this returns at once. Before, `warn()` is called once if the instance is `at_risk`. Failed looks
    are repeated.
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

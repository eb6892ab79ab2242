"""The choices of a script's mutators, read by importing the script."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cloudtune.errors import ExperimentError

# Importing torch and a model takes seconds, from a cold network disk a minute.
_MAX_SECONDS = 120.0


def choices_of_model(path: Path, name: str) -> dict[str, Any]:
    """Return the choices of each mutator of a `models.space`, as in `search`.

    A separate process imports the script.

    Raises:
        ExperimentError: the script can't be imported in time, or has no such space.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cloudtune.train.models", str(path), name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExperimentError(
            f"{path}: importing it takes over {_MAX_SECONDS:.0f} s; keep training out of its top "
            "level"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"{path}: it ends when it is imported"])[-1]
        raise ExperimentError(reason)
    choices: dict[str, Any] = json.loads(done.stdout)
    return choices

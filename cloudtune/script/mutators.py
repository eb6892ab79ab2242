"""The choices of a script's mutators, as the script itself has them when it is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from cloudtune.errors import ExperimentError

if TYPE_CHECKING:
    from pathlib import Path


def choices_of_model(path: Path, name: str) -> dict[str, Any]:
    """Return the choices of each mutator of a `models.space`, as `search` has them.

    A process of its own imports the script.

    Raises:
        ExperimentError: the script can't be imported, or has no such space.
    """
    done = subprocess.run(
        [sys.executable, "-m", "cloudtune.train.models", str(path), name],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"{path}: it ends when it is imported"])[-1]
        raise ExperimentError(reason)
    choices: dict[str, Any] = json.loads(done.stdout)
    return choices

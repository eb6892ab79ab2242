"""Stopping a run that another process, or a head, drives."""

import os
import signal
from pathlib import Path

from cloudtune.errors import UsageError
from cloudtune.infra.heads.launch import Remote
from cloudtune.infra.processes import ProcessGroup
from cloudtune.lifecycle import remote
from cloudtune.runs import control


def stop_run(folder: Path) -> None:
    """Ask a run to end in order, as Ctrl-C does in its own terminal; doesn't wait for the end.

    Raises:
        UsageError: it isn't running.
    """
    if not control.is_driven(folder):
        raise UsageError(f"run {folder.name} isn't running; nothing to stop")
    carried = Remote.of(folder)
    if carried is not None:
        remote.ask_to_stop(carried)
        return
    recorded = ProcessGroup.recorded(folder / control.CONTROLLER)
    assert recorded is not None
    # Not SIGINT: a shell has what it starts in the background ignore that.
    os.kill(recorded[0].pid, signal.SIGTERM)

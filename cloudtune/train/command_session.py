"""The session within a command that a worker has started, which grants and stops it."""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cloudtune.errors import UsageError
from cloudtune.train.channel import connect
from cloudtune.train.checkpoint import Checkpoint, CheckpointStore
from cloudtune.train.folder_changes import Changes
from cloudtune.train.progress_cursor import Progress
from cloudtune.train.save_times import SaveTimes
from cloudtune.train.session import Session

# Seconds for a stopped command to upload its last checkpoint.
FLUSH_SECONDS: Final = 3.0

_opened: dict[str, Session] = {}
_opening = threading.Lock()


class CommandSession(Session):
    """A session whose reports without a checkpoint use the command's folder of checkpoints."""

    folder: Changes | None = None

    def report(
        self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, **position: float | None
    ) -> None:
        if checkpoint is None and self.folder is not None and self.rank == 0 and self.folder.news():
            checkpoint = Checkpoint.from_directory(self.folder.path)
        super().report(metrics, checkpoint, **position)


def find_session(address: str) -> Session:
    """Return this process's only session, for any thread.

    Raises:
        UsageError: the worker already has one for another process of the command.
    """
    with _opening:
        if address not in _opened:
            _opened[address] = _open(address)
        return _opened[address]


def _open(address: str) -> Session:
    try:
        channel = connect(Path(address))
        messages = channel.messages()
        hello = next(message for message in messages if "session" in message)
    except (OSError, StopIteration):
        raise UsageError(
            "another process of this command reports already, or its worker is gone; of the "
            "processes of one rank let one call cloudtune"
        ) from None
    place = hello["session"]
    session = CommandSession(
        **place["place"],
        report_hook=lambda report: channel.send(report=vars(report)),
        store=CheckpointStore(place["storage"]),
        saves=SaveTimes(place["losses_per_hour"]),
        progress=Progress(**place["progress"]),
        seeds=False,  # the script's own seeds apply
    )
    if place["folder"] is not None:
        session.folder = Changes(Path(place["folder"]))
    session.activate().__enter__()  # for as long as the process lives
    session.grant(place["granted"])
    threading.Thread(target=_obey, args=(session, messages), name="cloudtune", daemon=True).start()
    return session


def _obey(session: Session, messages: Any) -> None:
    """Follow the worker's messages; end with it."""
    for message in messages:
        match message:
            case {"grant": int(until)}:
                session.grant(until)
            case {"acknowledge": int(epoch)}:
                session.acknowledge(epoch)
            case {"leave": True}:
                session.leaving = True
            case {"stop": True}:
                waits = session.stop()
                session.flush(FLUSH_SECONDS)
                if not waits:  # it trains, so no report can unwind it
                    os.kill(os.getpid(), signal.SIGTERM)
    sys.stderr.write("cloudtune: the worker that started this command is gone\n")
    os._exit(1)

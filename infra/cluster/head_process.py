"""The processes of a run's Ray head: recorded with the controller that they serve, and ended.

Run as a module with a run's folder, it ends the head that is recorded there.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from cloudtune.infra.processes import DamagedRecordError, ProcessGroup

RECORD = "head.json"
TEMP = "ct-"


@dataclass(frozen=True)
class HeadProcess:
    """A head, the folder of Ray's files, and the controller that last used it.

    The record of an earlier version names no controller.
    """

    group: ProcessGroup
    temp: Path
    controller: ProcessGroup | None = None

    @classmethod
    def recorded(cls, folder: Path) -> "HeadProcess | None":
        """Return the head of a run; None if none is recorded.

        Raises:
            DamagedRecordError: the record names no process.
        """
        recorded = ProcessGroup.recorded(folder / RECORD)
        if recorded is None:
            return None
        group, extra = recorded
        controller = None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            controller = ProcessGroup(int(extra["controller"]), float(extra["controller_created"]))
        return cls(group, Path(str(extra.get("temp", ""))), controller)

    def record(self, folder: Path) -> None:
        """Write the record, with this process as the controller."""
        controller = ProcessGroup.of(os.getpid())
        extra = {
            "temp": str(self.temp),
            "controller": controller.pid,
            "controller_created": controller.created,
        }
        self.group.record(folder / RECORD, extra)

    @property
    def abandoned(self) -> bool:
        """Whether its controller has died; False if that isn't known."""
        return self.controller is not None and not self.controller.alive()

    def stop(self) -> None:
        """End its processes, and remove Ray's files."""
        self.group.stop()
        if self.temp.name.startswith(TEMP):
            shutil.rmtree(self.temp, ignore_errors=True)


def end_recorded(folder: Path) -> None:
    """End the head of a run, if its record is whole, and remove the record."""
    with contextlib.suppress(OSError, psutil.Error, DamagedRecordError):  # it costs no money
        head = HeadProcess.recorded(folder)
        if head is not None:
            head.stop()
            if not head.group.members_alive():
                (folder / RECORD).unlink()


def end_from_inside(folder: Path) -> None:
    """Let another process end the head that this process belongs to."""
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    end_recorded(Path(sys.argv[1]))

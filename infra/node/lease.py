"""The lease of an instance: not renewed, it shuts itself down, and so terminates.

The user data sets the first one before anything else runs (`first_lease`). From then on the
controller renews through the node, `LEASE_MINUTES` at a time, and never past the time to which
deadline and budget pay for what is rented now. So a controller that died, or that can't reach its
nodes, costs at most a lease, and neither limit is passed. The machine itself knows whole minutes
only: the second is kept by the node's agent, and of the first lease, before
there is an agent, by the shell that runs the user data.

The tag `cloudtune:lease` has the hard end, not the end of the lease that runs: tagging again with
each renewal would be a call to EC2 a minute for each instance. So `cloudtune gc` takes an instance
of another machine's run for an orphan only when it has outlived its run's last moment, which on its
own it can't: while its controller lives its tag is in the future, and when that dies it has ended
itself long before.
"""

import contextlib
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloudtune.clock import unix_time
from cloudtune.errors import CloudtuneError

# From boot until the first renewal: Linux, driver and Ray take a GPU instance 2 to 8 minutes.
FIRST_MINUTES = 15
# From a renewal on: long enough for a person to `cloudtune resume` a run whose controller died.
LEASE_MINUTES = 15
# How often the controller is to renew: a dozen renewals may get lost.
RENEW_SECONDS = 60.0
# What a machine may take to be gone after the order: emulated ones took 0.2 to 0.8 s here.
POWER_OFF_SECONDS = 1.5
END_VARIABLE = "CLOUDTUNE_LEASE_END"
COMMAND_VARIABLE = "CLOUDTUNE_SHUTDOWN"
# The file that is there while the first lease runs: with the first renewal it goes.
FIRST_VARIABLE = "CLOUDTUNE_FIRST_LEASE"
# The mark of the processes of an emulated machine; a real one has none.
MACHINE_VARIABLE = "CLOUDTUNE_MACHINE"
_COMMAND_SECONDS = 20.0
# Has cloud-init power off a machine that boots again, as after a kernel panic: `shutdown` has
# forgotten its lease, and nothing of the run starts there. An emulated machine shares its disk.
_NO_SECOND_BOOT = """\
each_boot=/var/lib/cloud/scripts/per-boot
if [ -z "${CLOUDTUNE_MACHINE:-}" ] && [ -d $each_boot ]; then
  printf '#!/bin/sh\\nshutdown -P now\\n' > $each_boot/cloudtune-ends
  chmod 755 $each_boot/cloudtune-ends
fi
"""


def first_lease(asked_at: float, end: float) -> str:
    """Return the lines of a shell that end its machine, asked for then, by `end` (both Unix time).

    First `shutdown` in whole minutes, which outlives everything. Then a sleep beside what comes
    after, which ends the machine in time to be gone by `end`, unless the lease was renewed. The
    clock is read once: one that is set meanwhile changes nothing.
    """
    minutes = min(FIRST_MINUTES, max(1, math.ceil((end - asked_at) / 60)))
    due = math.floor(end - POWER_OFF_SECONDS)
    return (
        f"shutdown -P +{minutes}\n"
        f"export {FIRST_VARIABLE}=$(mktemp)\n"
        "(\n"
        f"  printf -v now '%(%s)T' -1\n"
        f"  ((now >= {due})) || sleep $(({due} - now - 1)).5\n"
        f'  [ -e "${FIRST_VARIABLE}" ] || exit\n'
        "  shutdown -P now || exec python3 -m cloudtune.infra.node.lease\n"
        ") < /dev/null > /dev/null 2>&1 &\n"
        f"{_NO_SECOND_BOOT}"
    )


class Ends(Protocol):
    """What may end a node: its lease, which the controller renews."""

    def renew(self, until: float, /) -> float:
        """Put the end off till then (Unix) at most, or raise CloudtuneError; return the end."""

    def end_now(self) -> None:
        """End the node, or raise CloudtuneError."""


@dataclass(frozen=True)
class Lease:
    """What this node may do about its own end: put it off, until `end` (Unix time) at the latest.

    `command` is the machine's `shutdown`, by its path.
    """

    end: float
    command: str

    @classmethod
    def of_this_node(cls, environment: Mapping[str, str] = os.environ) -> "Lease | None":
        """Return the lease that the node's environment speaks of; None where there is none."""
        end = environment.get(END_VARIABLE)
        command = environment.get(COMMAND_VARIABLE)
        return cls(float(end), command) if end and command else None

    def renew(self, until: float) -> float:
        """Put the end off, so that the machine is gone by `until` (Unix); return when it ends now.

        No further than a lease from now, nor past the hard end. The machine takes whole
        minutes, rounded up: who keeps it to the second calls `end_now` then.

        Raises:
            CloudtuneError: the machine doesn't take it; the lease that runs stays.
        """
        now = unix_time()
        due = min(self.end, until - POWER_OFF_SECONDS, now + 60 * LEASE_MINUTES)
        self._tell(f"+{max(1, math.ceil((due - now) / 60))}")
        if first := os.environ.get(FIRST_VARIABLE):
            Path(first).unlink(missing_ok=True)
        return due

    def end_now(self) -> None:
        """Shut the machine down; one of an emulator that has died ends its processes itself.

        Raises:
            CloudtuneError: the machine doesn't take it; it ends within the minute by itself.
        """
        try:
            self._tell("now")
        except CloudtuneError:
            if not _end_this_machine():
                raise

    def _tell(self, when: str) -> None:
        try:
            subprocess.run(
                [self.command, "-P", when],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_COMMAND_SECONDS,
            )
        except subprocess.CalledProcessError as error:
            raise CloudtuneError(f"the lease can't be renewed: {error.stderr.strip()}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CloudtuneError(f"the lease can't be renewed: {error}") from error


def _end_this_machine() -> bool:
    """Kill all that has this emulated machine's mark, this process last; False: a real machine."""
    import psutil  # noqa: PLC0415  30 ms, for what hardly ever happens

    machine = os.environ.get(MACHINE_VARIABLE)
    if machine is None:
        return False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MACHINE_VARIABLE) == machine:
                process.kill()
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def lease_environment(end: float | None) -> dict[str, str]:
    """Return what tells the node's processes of its lease.

    The path of `shutdown` is settled here, at boot: whatever PATH a process has later, no machine
    is shut down but this one, which on a workstation is not the real one.
    """
    command = shutil.which("shutdown")
    if end is None or command is None:
        return {}
    return {END_VARIABLE: repr(end), COMMAND_VARIABLE: command}


if __name__ == "__main__":  # by `first_lease`, where nothing answers an emulated machine's shutdown
    _end_this_machine()

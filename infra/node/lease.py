"""The lease of an instance: unless it is renewed, the instance shuts itself down and terminates.

The user data sets the first lease before anything else runs (`first_lease`). From then on the
controller renews it through the node, `LEASE_MINUTES` at a time, and never past the time up to
which deadline and budget pay for the present instances. So a controller that died, or that can't
reach its nodes, costs at most one lease, and neither limit is exceeded. The machine itself only
knows whole minutes: the node's agent keeps the second, and for the first lease, before there is an
agent, the shell that runs the user data.

The tag `cloudtune:lease` has the hard end, not the end of the present lease: updating it with each
renewal would be a call to EC2 per minute and instance. So `cloudtune gc` treats an instance of
another machine's run as an orphan only if it has outlived its run's last moment. By itself it
can't: while its controller lives the tag is in the future, and if the controller dies the instance
ends itself long before.
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

# From boot until the first renewal: Linux, driver and Ray take 2 to 8 minutes on a GPU instance.
FIRST_MINUTES = 15
# From a renewal on: enough time to `cloudtune resume` a run whose controller died.
LEASE_MINUTES = 15
# Seconds between renewals by the controller: a dozen of them may get lost.
RENEW_SECONDS = 60.0
# Seconds that a machine may take to end after the order: emulated ones took 0.2 to 0.8 here.
POWER_OFF_SECONDS = 1.5
END_VARIABLE = "CLOUDTUNE_LEASE_END"
COMMAND_VARIABLE = "CLOUDTUNE_SHUTDOWN"
# The file that exists during the first lease: the first renewal deletes it.
FIRST_VARIABLE = "CLOUDTUNE_FIRST_LEASE"
# The mark of the processes of an emulated machine; a real one has none.
MACHINE_VARIABLE = "CLOUDTUNE_MACHINE"
_COMMAND_SECONDS = 20.0
# Makes cloud-init power off a machine that reboots, for example after a kernel panic: `shutdown`
# has forgotten its lease, and nothing of the run starts there. Emulated machines share a disk.
_NO_SECOND_BOOT = """\
each_boot=/var/lib/cloud/scripts/per-boot
if [ -z "${CLOUDTUNE_MACHINE:-}" ] && [ -d $each_boot ]; then
  printf '#!/bin/sh\\nshutdown -P now\\n' > $each_boot/cloudtune-ends
  chmod 755 $each_boot/cloudtune-ends
fi
"""


def first_lease(asked_at: float, end: float) -> str:
    """Return lines of shell that end a machine requested at `asked_at` by `end` (Unix times).

    First `shutdown` in whole minutes, which outlives everything. Then a sleep in the background,
    which ends the machine in time to be gone by `end`, unless the lease was renewed. The clock is
    read only once, so setting it later changes nothing.
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
    """The lease of a node, which the controller renews."""

    def renew(self, until: float, /) -> float:
        """Extend it to `until` (Unix) at most, or raise CloudtuneError; return the end."""

    def end_now(self) -> None:
        """End the node, or raise CloudtuneError."""


@dataclass(frozen=True)
class Lease:
    """This node's own lease, which can be extended to `end` (Unix time) at the latest.

    `command` is the path of the machine's `shutdown`.
    """

    end: float
    command: str

    @classmethod
    def of_this_node(cls, environment: Mapping[str, str] = os.environ) -> "Lease | None":
        """Return the lease in the node's environment; None if there is none."""
        end = environment.get(END_VARIABLE)
        command = environment.get(COMMAND_VARIABLE)
        return cls(float(end), command) if end and command else None

    def renew(self, until: float) -> float:
        """Extend the lease so that the machine is gone by `until` (Unix); return the new end.

        No further than one lease from now, nor past the hard end. The machine takes whole minutes,
        rounded up: to end it to the second, the caller calls `end_now`.

        Raises:
            CloudtuneError: the machine refuses; the present lease stays.
        """
        now = unix_time()
        due = min(self.end, until - POWER_OFF_SECONDS, now + 60 * LEASE_MINUTES)
        self._tell(f"+{max(1, math.ceil((due - now) / 60))}")
        if first := os.environ.get(FIRST_VARIABLE):
            Path(first).unlink(missing_ok=True)
        return due

    def end_now(self) -> None:
        """Shut down the machine; if its emulator has died, it ends its own processes.

        Raises:
            CloudtuneError: the machine refuses; it ends by itself within the minute.
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
    """Kill all processes with this emulated machine's mark; return False on a real machine."""
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
    """Return the environment that describes the lease to the node's processes.

    The path of `shutdown` is resolved here, at boot: whatever PATH a process has later, it only
    shuts down this machine, which on a workstation isn't the real one.
    """
    command = shutil.which("shutdown")
    if end is None or command is None:
        return {}
    return {END_VARIABLE: repr(end), COMMAND_VARIABLE: command}


if __name__ == "__main__":  # by `first_lease`, where nothing answers an emulated machine's shutdown
    _end_this_machine()

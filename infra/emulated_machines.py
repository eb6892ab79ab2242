"""The emulated machines: their states over time, their turns to boot, and their ends.

    pending ──boot delay──> running ──> shutting-down ──processes gone──> terminated
                               └──────> stopping ───────processes gone──> stopped

Nothing here knows HTTP or moto. One loop calls `tick`; requests call the rest, from any thread.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cloudtune.infra import emulated_process
from cloudtune.infra.emulated_process import Owner

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

State = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]
STATE_CODES: dict[State, int] = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
READY_LINE = b"cloudtune-node ready"
# Of 32 Ray nodes that start at once on two cores none survives Ray's own 30 s start limit.
BOOTING_AT_ONCE = 4
LONGEST_BOOT_S = 30.0
_ENDS: dict[State, State] = {"shutting-down": "terminated", "stopping": "stopped"}
_CAUSES: dict[str, str] = {
    "Client.UserInitiatedShutdown": "User initiated shutdown",
    "Client.InstanceInitiatedShutdown": "Instance initiated shutdown",
    "Server.SpotInstanceTermination": "Spot instance termination",
}
_SHUTDOWN_DELAY = re.compile(r"\+?(\d+)")


@dataclass(frozen=True)
class Ending:
    """An end that is due: of which kind, when (epoch seconds), and AWS's code for the cause."""

    due: float
    code: str
    to: Literal["shutting-down", "stopping"] = "shutting-down"


@dataclass
class Machine:
    """One machine and everything that has happened to it; times are epoch seconds."""

    id: str
    instance_type: str
    folder: Path
    launched_at: float
    script: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    stops_on_shutdown: bool = False
    state: State = "pending"
    booted_at: float | None = None
    shutting_down_at: float | None = None
    terminated_at: float | None = None
    reason_code: str = ""
    ending: Ending | None = None
    pid: int | None = None
    process: subprocess.Popen[bytes] | None = None
    is_booting: bool = False

    @property
    def state_reason(self) -> str:
        """What ended it, as EC2 words it; empty until then."""
        return self.reason_code and f"{self.reason_code}: {_CAUSES[self.reason_code]}"

    @property
    def transition_reason(self) -> str:
        """What ended it and when, as EC2 words it for a user's call; empty until then."""
        if self.shutting_down_at is None:
            return ""
        when = time.strftime("%Y-%m-%d %H:%M:%S GMT", time.gmtime(self.shutting_down_at))
        by_user = self.reason_code == "Client.UserInitiatedShutdown"
        return f"{'User initiated' if by_user else self.state_reason} ({when})"

    @property
    def is_live(self) -> bool:
        """Whether it bills or still has processes."""
        return self.state not in ("terminated", "stopped")

    @property
    def is_leaving(self) -> bool:
        """Whether it has been told to end and its processes are being killed."""
        return self.state in _ENDS


class Machines:
    """Every machine of one emulator; `on_change` is called at each change of state."""

    def __init__(
        self,
        folder: Path,
        endpoint: str,
        boot_seconds: float,
        on_change: Callable[[Machine], None],
    ) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self._endpoint = endpoint
        self._boot_seconds = boot_seconds
        self._on_change = on_change
        self._machines: dict[str, Machine] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, machine: Machine) -> None:
        """Take a pending machine in; `tick` boots it."""
        with self.lock:
            machine.folder.mkdir()
            self._machines[machine.id] = machine

    def find(self, machine_id: str) -> Machine | None:
        """Return a machine, ended ones included."""
        return self._machines.get(machine_id)

    def all(self) -> list[Machine]:
        """Return every machine there ever was, oldest first."""
        with self.lock:
            return list(self._machines.values())

    def live(self) -> list[Machine]:
        """Return the machines that bill or still have processes."""
        return [machine for machine in self.all() if machine.is_live]

    def end(self, machine: Machine, ending: Ending) -> None:
        """Begin a machine's end now; once begun, an end is not begun again."""
        with self.lock:
            if machine.is_leaving or machine.state == "terminated":
                return
            if machine.state == "stopped" and ending.to == "stopping":
                return
            machine.ending = None
            machine.shutting_down_at = time.time()
            machine.reason_code = ending.code
            self._enter(machine, ending.to)

    def end_all(self) -> None:
        """Begin the end of every live machine, as when the emulator is told to stop."""
        for machine in self.live():
            self.end(machine, Ending(time.time(), "Client.UserInitiatedShutdown"))

    def shutdown_command(self, machine: Machine, arguments: Sequence[str]) -> str:
        """Carry out `shutdown -P +N`, `shutdown -P now` or `shutdown -c` given on the machine.

        Raises:
            ValueError: the arguments mean nothing that is supported.
        """
        if "-c" in arguments:
            machine.ending = None
            return "Shutdown cancelled."
        times = [word for word in arguments if word not in ("-P", "-h", "--poweroff")]
        if len(times) != 1 or times[0].startswith("-"):
            raise ValueError("usage: shutdown [-P] +MINUTES|now, or shutdown -c")
        match = _SHUTDOWN_DELAY.fullmatch("0" if times[0] == "now" else times[0])
        if match is None:
            raise ValueError(f"shutdown: {times[0]!r} is neither +MINUTES nor now")
        due = time.time() + 60.0 * int(match[1])
        to: Literal["shutting-down", "stopping"] = (
            "stopping" if machine.stops_on_shutdown else "shutting-down"
        )
        machine.ending = Ending(due, "Client.InstanceInitiatedShutdown", to)
        return f"Shutdown scheduled for {time.strftime('%F %T GMT', time.gmtime(due))}."

    def tick(self) -> None:
        """Do what is due: delays over, turns to boot, endings, processes that are to go."""
        with self.lock:
            now = time.time()
            for machine in self.live():
                self._progress(machine, now)
            self._give_turns(now)
            self._finish_ends()

    def _progress(self, machine: Machine, now: float) -> None:
        if machine.state == "pending" and now - machine.launched_at >= self._boot_seconds:
            self._enter(machine, "running")
        if machine.is_booting and self._boot_is_over(machine, now):
            machine.is_booting = False
        if machine.ending is not None and now >= machine.ending.due:
            self.end(machine, machine.ending)

    def _boot_is_over(self, machine: Machine, now: float) -> bool:
        assert machine.process is not None
        assert machine.booted_at is not None
        return (
            machine.state != "running"
            or READY_LINE in emulated_process.console(machine.folder)
            or now - machine.booted_at > LONGEST_BOOT_S
            or emulated_process.has_ended(machine.process)
        )

    def _give_turns(self, now: float) -> None:
        machines = self._machines.values()
        free = BOOTING_AT_ONCE - sum(machine.is_booting for machine in machines)
        waiting = [
            machine
            for machine in machines
            if machine.state == "running" and machine.booted_at is None and machine.script
        ]
        for machine in waiting[:free]:
            assert machine.script is not None
            machine.booted_at = now
            machine.process = emulated_process.start(
                machine.id, machine.folder, machine.script, machine.settings, self._endpoint
            )
            machine.pid = machine.process.pid
            machine.is_booting = True

    def _finish_ends(self) -> None:
        leaving = [machine for machine in self._machines.values() if machine.is_leaving]
        if not leaving:
            return
        still = emulated_process.kill([_owner(machine) for machine in leaving])
        for machine in leaving:
            if machine.id not in still:
                self._finish_end(machine)

    def _finish_end(self, machine: Machine) -> None:
        if machine.process is not None:
            machine.process.wait()  # nothing of it lives; this frees its number
            machine.process = None
        emulated_process.tidy(machine.folder)
        machine.is_booting = False
        machine.terminated_at = time.time() if machine.state == "shutting-down" else None
        self._enter(machine, _ENDS[machine.state])

    def _enter(self, machine: Machine, state: State) -> None:
        machine.state = state
        self._on_change(machine)


def _owner(machine: Machine) -> Owner:
    return Owner(machine.id, machine.process.pid if machine.process is not None else None)

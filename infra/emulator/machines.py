"""The emulated machines: their states over time, their turns to boot, and their ends.

    pending ──boot delay──> running ──> shutting-down ──processes gone──> terminated
                               └──────> stopping ───────processes gone──> stopped

A machine's faults and its health determine where it leaves this path. Nothing here knows HTTP or
moto. One loop calls `tick`; requests call the rest, from any thread.
"""

import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from cloudtune.errors import CloudtuneError
from cloudtune.infra.emulator import machine_process
from cloudtune.infra.emulator.faults import (
    FailedBoot,
    Freeze,
    Kill,
    NoBoot,
    Rebalance,
    Reclaim,
    SlowBoot,
)
from cloudtune.infra.emulator.machine import ENDS, Ending, Machine, State
from cloudtune.infra.emulator.requests import Access


@dataclass(frozen=True)
class Housing:
    """Where machines run: how to boot one from its user data, and the next one's address."""

    start: Callable[[Machine, Access], subprocess.Popen[bytes]]
    address: Callable[[], str]


# As processes of this computer, each at its loopback address.
HERE = Housing(machine_process.start, lambda: "127.0.0.1")


@dataclass
class Clock:
    """This machine's time, moved by `offset` seconds.

    The processes of the machines have this machine's time, so a moved clock also disagrees with
    theirs.
    """

    offset: float = 0.0

    def now(self) -> float:
        """Return the emulator's time in epoch seconds."""
        return time.time() + self.offset


READY_LINE = b"cloudtune-node ready"
# If 32 Ray nodes start at once on two cores, none survives Ray's own start limit of 30 s.
BOOTING_AT_ONCE = 4
LONGEST_BOOT_S = 30.0
_log = logging.getLogger(__name__)
_SHUTDOWN_DELAY = re.compile(r"\+?(\d+)")


class RunningMachines:
    """Every machine of one emulator; `on_change` is called at each change of state."""

    def __init__(
        self,
        folder: Path,
        access: Access,
        boot_seconds: float,
        clock: Clock,
        on_change: Callable[[Machine], None],
        *,
        housing: Housing = HERE,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.lock = threading.RLock()
        self._access = access
        self._boot_seconds = boot_seconds
        self._on_change = on_change
        self.housing = housing
        self._machines: dict[str, Machine] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, machine: Machine) -> None:
        """Add a pending machine; `tick` boots it."""
        with self.lock:
            machine.folder.mkdir()
            self._machines[machine.id] = machine

    def find(self, machine_id: str) -> Machine | None:
        """Return a machine by id, even if it has ended."""
        return self._machines.get(machine_id)

    def all(self) -> list[Machine]:
        """Return every machine, including ended ones, oldest first."""
        with self.lock:
            return list(self._machines.values())

    def live(self) -> list[Machine]:
        return [machine for machine in self.all() if machine.is_live]

    def end(self, machine: Machine, ending: Ending) -> None:
        """Begin to end a machine now, unless its end has begun already."""
        with self.lock:
            if machine.is_leaving or machine.state == "terminated":
                return
            if machine.state == "stopped" and ending.to == "stopping":
                return
            machine.ending = machine.power_off = None
            machine.shutting_down_at = self.clock.now()
            machine.reason_code = ending.code
            self._enter(machine, ending.to)

    def end_all(self) -> None:
        """Begin to end every live machine, as when the emulator stops."""
        for machine in self.live():
            machine.faults = ()
            self.end(machine, Ending(self.clock.now(), "Client.UserInitiatedShutdown"))

    def reclaim(self, machine: Machine, notice: float) -> float:
        """Interrupt a machine after its notice (0: at once); return when it ends."""
        with self.lock:
            ending = Ending(self.clock.now() + notice, "Server.SpotInstanceTermination")
            if notice > 0:
                machine.ending = ending
            else:
                self.end(machine, ending)
            return ending.due

    def kill(self, machine: Machine) -> None:
        """Kill every process of a machine for good; EC2 doesn't notice."""
        with self.lock:
            machine.health = "dead"
            machine_process.kill_all(_session(machine))

    def freeze(self, machine: Machine) -> None:
        """Suspend every process of a machine; EC2 doesn't notice."""
        with self.lock:
            if machine.health == "well":
                machine.health = "frozen"
                machine_process.freeze(_session(machine))

    def thaw(self, machine: Machine) -> None:
        """Continue the processes of a frozen machine; an overdue power-off follows."""
        with self.lock:
            if machine.health == "frozen":
                machine.health = "well"
                machine_process.thaw(_session(machine))

    def shutdown_command(self, machine: Machine, arguments: Sequence[str]) -> str:
        """Carry out `shutdown -P +N`, `shutdown -P now` or `shutdown -c` given on the machine.

        Raises:
            ValueError: the arguments aren't supported.
        """
        if "-c" in arguments:
            machine.power_off = None
            return "Shutdown cancelled."
        times = [word for word in arguments if word not in ("-P", "-h", "--poweroff")]
        if len(times) != 1 or times[0].startswith("-"):
            raise ValueError("usage: shutdown [-P] +MINUTES|now, or shutdown -c")
        minutes = "0" if times[0] == "now" else times[0]
        match = _SHUTDOWN_DELAY.fullmatch(minutes)
        if match is None:
            raise ValueError(f"shutdown: {times[0]!r} is neither +MINUTES nor now")
        due = self.clock.now() + 60.0 * int(match[1])
        to: Literal["shutting-down", "stopping"] = (
            "stopping" if machine.stops_on_shutdown else "shutting-down"
        )
        machine.power_off = Ending(due, "Client.InstanceInitiatedShutdown", to)
        return f"Shutdown scheduled for {time.strftime('%F %T GMT', time.gmtime(due))}."

    def tick(self) -> None:
        """Do what is due: delays over, turns to boot, endings, processes that are to go."""
        with self.lock:
            now = self.clock.now()
            for machine in self.live():
                self._progress(machine, now)
            self._give_turns(now)
            self._finish_ends(now)

    def _progress(self, machine: Machine, now: float) -> None:
        slow = machine.fault(SlowBoot)
        delay = self._boot_seconds if slow is None else slow.seconds
        if machine.state == "pending" and now - machine.launched_at >= delay:
            if machine.fault(FailedBoot):
                self.end(machine, Ending(now, "Server.InternalError"))
            else:
                machine.running_at = now
                self._enter(machine, "running")
        if machine.is_booting:
            assert machine.process is not None
            # Asked without reaping it: a zombie keeps its number from being given to a stranger
            # while we still kill by session.
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            machine.is_booting = not (
                machine.state != "running"
                or READY_LINE in machine_process.console(machine.folder)
                or time.monotonic() - machine.turn_began > LONGEST_BOOT_S
                or os.waitid(os.P_PID, machine.process.pid, how) is not None
            )
        if machine.state == "running":
            self._strike(machine, now)
        ending = machine.due_end(now)
        if ending is not None:
            self.end(machine, ending)

    def _strike(self, machine: Machine, now: float) -> None:
        """Let fall on a running machine what is due by its faults."""
        assert machine.running_at is not None
        while (blow := machine.next_blow()) and now >= machine.running_at + blow.after:
            if machine.is_leaving:
                return
            machine.struck += 1
            try:
                match blow:
                    case Rebalance():
                        machine.at_risk_since = self.clock.now()
                    case Reclaim():
                        self.reclaim(machine, blow.notice)
                    case Kill():
                        self.kill(machine)
                    case Freeze():
                        self.freeze(machine)
                    case _:
                        assert_never(blow)
            except CloudtuneError as error:  # the other machines have to go on
                _log.warning("%s: %s", machine.id, error)

    def _give_turns(self, now: float) -> None:
        machines = self._machines.values()
        free = BOOTING_AT_ONCE - sum(machine.is_booting for machine in machines)
        waiting = [
            machine
            for machine in machines
            if machine.state == "running"
            and machine.booted_at is None
            and machine.script
            and not machine.fault(NoBoot)
            and machine.health == "well"
        ]
        for machine in waiting[:free]:
            machine.booted_at = now
            machine.turn_began = time.monotonic()
            machine.process = self.housing.start(machine, self._access)
            machine.pid = machine.process.pid
            machine.is_booting = True

    def _finish_ends(self, now: float) -> None:
        leaving = [machine for machine in self._machines.values() if machine.is_leaving]
        loud: dict[str, int | None] = {}
        for machine in leaving:
            if not machine.is_quiet:
                loud |= _session(machine)
        still = machine_process.kill(loud)
        for machine in leaving:
            machine.is_quiet = machine.id not in still
            if not (machine.is_quiet and machine.may_end(now)):
                continue
            if machine.process is not None:
                machine.process.wait()  # nothing of it lives; this frees its number
                machine.process = None
            machine_process.tidy(machine.folder)
            machine.is_booting = False
            machine.terminated_at = now if machine.state == "shutting-down" else None
            self._enter(machine, ENDS[machine.state])

    def _enter(self, machine: Machine, state: State) -> None:
        machine.state = state
        self._on_change(machine)


def _session(machine: Machine) -> dict[str, int | None]:
    return {machine.id: None if machine.process is None else machine.process.pid}

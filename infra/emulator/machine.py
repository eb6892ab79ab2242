"""One emulated machine: its states, its health, and the ends that are due to it."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from cloudtune.infra.emulator.faults import Blow, Hidden, LaunchFault, Pool, SlowEnd

_F = TypeVar("_F", bound=LaunchFault)
State = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]
STATE_CODES: dict[State, int] = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
ENDS: dict[State, State] = {"shutting-down": "terminated", "stopping": "stopped"}
_CAUSES: dict[str, str] = {
    "Client.UserInitiatedShutdown": "User initiated shutdown",
    "Client.InstanceInitiatedShutdown": "Instance initiated shutdown",
    "Server.InternalError": "Internal error on launch",
    "Server.SpotInstanceTermination": "Spot instance termination",
}


@dataclass(frozen=True)
class Ending:
    """An end that is due: its kind, when (epoch seconds), and AWS's code for the cause."""

    due: float
    code: str
    to: Literal["shutting-down", "stopping"] = "shutting-down"


@dataclass
class Machine:
    """One machine and everything that has happened to it; times are the emulator's epoch seconds.

    `record` is what EC2 has of it, and `vcpus` and `gpus` are 0 where no table knows its type.
    `ending` is the end that AWS has announced, `power_off` the one that the machine itself has set;
    `at_risk_since` is when AWS recommended to use others.
    `faults` are what it met at its launch: of two about the same the later counts. `seen` calls
    about instances have been answered since, and `struck` of its blows have fallen.
    A dead machine's processes are gone and a frozen one's stand still; EC2 says running of both.
    """

    id: str
    pool: Pool
    folder: Path
    launched_at: float
    record: Any = None
    script: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    vcpus: int = 0
    gpus: int = 0
    stops_on_shutdown: bool = False
    faults: Sequence[LaunchFault] = ()
    seen: int = 0
    struck: int = 0
    health: Literal["well", "frozen", "dead"] = "well"
    state: State = "pending"
    running_at: float | None = None
    booted_at: float | None = None
    shutting_down_at: float | None = None
    terminated_at: float | None = None
    reason_code: str = ""
    at_risk_since: float | None = None
    ending: Ending | None = None
    power_off: Ending | None = None
    pid: int | None = None
    process: subprocess.Popen[bytes] | None = None
    turn_began: float = 0.0  # of a machine that is booting: this computer's monotonic time
    is_booting: bool = False
    is_quiet: bool = False  # it is leaving, and its processes are gone

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
        """Whether the machine bills or still has processes."""
        return self.state not in ("terminated", "stopped")

    @property
    def is_leaving(self) -> bool:
        """Whether the machine is ending and its processes are being killed."""
        return self.state in ENDS

    def fault(self, kind: type[_F]) -> _F | None:
        """Return the fault of a kind that counts, if the machine met one."""
        return next((it for it in reversed(self.faults) if isinstance(it, kind)), None)

    def next_blow(self) -> Blow | None:
        """Return what is to hit it next, of that which is still to."""
        blows = sorted((it for it in self.faults if isinstance(it, Blow)), key=lambda it: it.after)
        return blows[self.struck] if self.struck < len(blows) else None

    def is_hidden(self, now: float) -> bool:
        """Return whether EC2's calls about instances don't know of the machine yet."""
        fault = self.fault(Hidden)
        if fault is None or self.state not in ("pending", "running"):
            return False
        # 0 seconds hide nothing, wherever the clock is.
        return self.seen < fault.calls or 0 < fault.seconds > now - self.launched_at

    def may_end(self, now: float) -> bool:
        """Return whether a leaving machine has been leaving for as long as it should."""
        assert self.shutting_down_at is not None
        fault = self.fault(SlowEnd)
        return fault is None or now >= self.shutting_down_at + fault.seconds

    def due_end(self, now: float) -> Ending | None:
        """Return the end whose time has come; who stands still or is dead can't end itself."""
        power_off = self.power_off if self.health == "well" else None
        ends = [end for end in (self.ending, power_off) if end is not None and now >= end.due]
        return min(ends, key=lambda end: end.due, default=None)

"""The faults that the emulator injects, as data: what happens, to what, and how often.

They concern calls, launched instances, and the capacity for launches. `fault_files` validates the
annotations; docs/emulator.md shows each fault with its JSON.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

Market = Literal["on-demand", "spot"]
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
ANY = "*"


@dataclass(frozen=True)
class Pool:
    """The place of an instance: EC2 has capacity for each combination."""

    instance_type: str
    market: Market
    zone: str


class _Checked:
    """What may be read from JSON: a field that isn't there is a mistake."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Repeated(_Checked):
    """How often a fault strikes: `times` in total (None: no limit), at a `rate` drawn by `seed`.

    Which of the matching calls or launches are struck only depends on their number and the seed.
    """

    times: Count | None = None
    rate: Share = 1.0
    seed: int = 0

    def strikes(self, number: int) -> bool:
        """Return whether the matching call or launch of this number, from 0, is struck."""
        digest = hashlib.sha256(f"{self.seed}:{number}".encode()).digest()
        return int.from_bytes(digest[:8]) < self.rate * 2**64


@dataclass(frozen=True, kw_only=True)
class CallFault(Repeated):
    """A fault of calls; `action` may be a pattern, `match` are required parameters."""

    action: Name
    match: dict[str, str] = field(default_factory=dict)

    def fits(self, action: str, parameters: Mapping[str, str]) -> bool:
        wanted = self.match.items()
        return fnmatchcase(action, self.action) and all(parameters.get(k) == v for k, v in wanted)


@dataclass(frozen=True, kw_only=True)
class CallError(CallFault):
    """EC2 refuses with one of its errors, and does nothing."""

    code: Name
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class LostAnswer(CallFault):
    """EC2 acts, but the caller sees a broken connection or an internal error."""

    answer: Literal["reset", "InternalError"] = "reset"


@dataclass(frozen=True, kw_only=True)
class Throttle(_Checked):
    """EC2 allows `burst` calls of an action, then `per_second`; None takes AWS's own figures."""

    action: Name = ANY
    burst: Seconds | None = None
    per_second: Seconds | None = None

    def fits(self, action: str) -> bool:
        return fnmatchcase(action, self.action)


@dataclass(frozen=True, kw_only=True)
class InstanceFilter(_Checked):
    """Which instances a fault is about; each field may be a pattern."""

    type: Name = ANY
    market: Name = ANY
    zone: Name = ANY

    def fits(self, pool: Pool) -> bool:
        return (
            fnmatchcase(pool.instance_type, self.type)
            and fnmatchcase(pool.market, self.market)
            and fnmatchcase(pool.zone, self.zone)
        )


@dataclass(frozen=True, kw_only=True)
class _OfLaunches(InstanceFilter, Repeated):
    """A fault of an instance launched from now on."""


@dataclass(frozen=True, kw_only=True)
class SlowBoot(_OfLaunches):
    """The instance stays pending for this many seconds."""

    seconds: Seconds


@dataclass(frozen=True, kw_only=True)
class NoBoot(_OfLaunches):
    """EC2 reports it running, but it never runs its user data."""


@dataclass(frozen=True, kw_only=True)
class FailedBoot(_OfLaunches):
    """The instance goes from pending to shutting-down by itself: Server.InternalError."""


@dataclass(frozen=True, kw_only=True)
class SlowEnd(_OfLaunches):
    """The instance is shutting down for this many seconds, unbilled; its processes end at once."""

    seconds: Seconds


@dataclass(frozen=True, kw_only=True)
class Hidden(_OfLaunches):
    """EC2 hides the instance from a number of calls about instances, and for some seconds."""

    calls: Count = 0
    seconds: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class Reclaim(_OfLaunches):
    """AWS interrupts a spot instance this many seconds after it runs, including its notice."""

    market: Name = "spot"
    after: Seconds = 0.0
    notice: Seconds = 120.0


@dataclass(frozen=True, kw_only=True)
class Rebalance(_OfLaunches):
    """AWS recommends a rebalance this many seconds after a spot instance runs: it is at risk."""

    market: Name = "spot"
    after: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class Kill(_OfLaunches):
    """The processes die this many seconds after the instance runs, and EC2 doesn't notice."""

    after: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class Freeze(_OfLaunches):
    """The processes hang this many seconds after it runs, and EC2 doesn't notice."""

    after: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class Capacity(InstanceFilter):
    """At most `instances` of these can exist at a time; None lifts the limit."""

    instances: Count | None


@dataclass(frozen=True, kw_only=True)
class Quota(InstanceFilter):
    """At most `vcpus` of these can run at a time; None lifts the limit."""

    vcpus: Count | None


# Faults that hit an instance some time after it runs.
Blow = Rebalance | Reclaim | Kill | Freeze
LaunchFault = SlowBoot | NoBoot | FailedBoot | SlowEnd | Hidden | Blow
Fault = CallError | LostAnswer | Throttle | LaunchFault | Capacity | Quota
KINDS: dict[str, type[Fault]] = {
    "error": CallError,
    "lost-answer": LostAnswer,
    "throttle": Throttle,
    "capacity": Capacity,
    "quota": Quota,
    "slow-boot": SlowBoot,
    "no-boot": NoBoot,
    "failed-boot": FailedBoot,
    "slow-end": SlowEnd,
    "hidden": Hidden,
    "rebalance": Rebalance,
    "reclaim": Reclaim,
    "kill": Kill,
    "freeze": Freeze,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def fault_kind(fault: Fault) -> str:
    """Return the name of a fault's kind."""
    return _NAMES[type(fault)]


def to_json(fault: Fault) -> dict[str, Any]:
    """Return a fault as JSON."""
    return {"kind": fault_kind(fault), **asdict(fault)}

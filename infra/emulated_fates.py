"""What is to become of one emulated instance, by the faults that its launch has met."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, assert_never

from cloudtune.infra.emulated_faults import (
    FailedBoot,
    Freeze,
    Hidden,
    Kill,
    NoBoot,
    Reclaim,
    SlowBoot,
    SlowEnd,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.infra.emulated_faults import LaunchFault

Blow = Reclaim | Kill | Freeze
"""What hits an instance some time after it has come to run."""


@dataclass
class Fate:
    """The future of an instance; `boot_seconds` None means the emulator's own.

    `blows` are in the order in which they fall, and leave the list as they do; `hidden_calls` go
    down to 0. `names` are the kinds of the faults that made it.
    """

    boot_seconds: float | None = None
    boot: Literal["works", "stays away", "fails"] = "works"
    end_seconds: float = 0.0
    hidden_calls: int = 0
    hidden_seconds: float = 0.0
    blows: list[Blow] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


def fate_of(faults: Sequence[LaunchFault]) -> Fate:
    """Return the fate that faults make together; of two about the same, the later counts."""
    fate = Fate(names=[kind_of(fault) for fault in faults])
    for fault in faults:
        _add(fate, fault)
    fate.blows.sort(key=lambda blow: blow.after)
    return fate


def _add(fate: Fate, fault: LaunchFault) -> None:
    match fault:
        case SlowBoot():
            fate.boot_seconds = fault.seconds
        case NoBoot():
            fate.boot = "stays away"
        case FailedBoot():
            fate.boot = "fails"
        case SlowEnd():
            fate.end_seconds = fault.seconds
        case Hidden():
            fate.hidden_calls, fate.hidden_seconds = fault.calls, fault.seconds
        case Reclaim() | Kill() | Freeze():
            fate.blows.append(fault)
        case _:
            assert_never(fault)

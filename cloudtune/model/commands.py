"""Everything that a policy can ask of a world.

A command names what it creates or changes by an id from the policy (`intent`, `session`, timer
`name`), so that applying a command twice changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cloudtune.model.trial import EndReason, Parallel, Slice, TrialId, Width


@dataclass(frozen=True)
class Launch:
    """Rent one instance. The intent is in the ledger before the cloud is asked.

    An empty `zone` leaves it to the cloud. `usd_per_hour` is the price that the policy assumes; 0
    if unknown.
    """

    intent: str
    instance_type: str
    market: str
    zone: str = ""
    usd_per_hour: float = field(default=0.0, compare=False)  # it follows from the others


@dataclass(frozen=True)
class Release:
    """Return the instance of an intent, or drop the intent if none was launched."""

    intent: str


@dataclass(frozen=True)
class StartTrial:
    """Start a trial's workers on these slices, from a checkpoint or from scratch.

    The session trains epochs `start_epoch` + 1 … `until_epoch`, and then waits. `parallel` is how
    its workers share the model, if the script leaves that to the run.
    """

    session: str
    trial: TrialId
    config: Mapping[str, object]
    width: Width
    placement: tuple[Slice, ...]
    checkpoint: str | None
    start_epoch: int
    until_epoch: int
    parallel: Parallel = ""


@dataclass(frozen=True)
class ExtendTrial:
    """Let a waiting session continue to `until_epoch` on the same workers."""

    session: str
    until_epoch: int


@dataclass(frozen=True)
class StopTrial:
    """End a session's workers; its last checkpoint stays.

    With `stacks` each worker writes its stack to its log before it ends.
    """

    session: str
    stacks: bool = False


@dataclass(frozen=True)
class SetTimer:
    """Fire `TimerFired(name)` at that time; a later one of the same name replaces it."""

    name: str
    at: float


@dataclass(frozen=True)
class PlanAnew:
    """A record: the rest of the run follows another plan, from stage `stage` (from 0) on.

    There is nothing to carry out. It says what has changed (`why`), what is done from now on
    (`plan`), and when, in run seconds, and at which bill the run will end.
    """

    stage: int
    why: str
    plan: str
    seconds: float
    dollars: float


@dataclass(frozen=True)
class KeepInstance:
    """A record: the instance of an intent isn't returned before `until` (run seconds).

    There is nothing to carry out. A trial failed there, and a person wants to look.
    """

    intent: str
    until: float


@dataclass(frozen=True)
class EndRun:
    """The run is over: no instance is left, no session runs."""

    reason: EndReason


Command: TypeAlias = (
    Launch
    | Release
    | StartTrial
    | ExtendTrial
    | StopTrial
    | SetTimer
    | PlanAnew
    | KeepInstance
    | EndRun
)

"""Everything that can happen to a run. `at` is in seconds since the run began.

A closed union: every `match` over it ends in `assert_never`, so that a new event breaks the type
check in each driver until it is handled there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from cloudtune.model.trial import Parallel

# Why a cloud refuses a launch. `capacity`: none of that type are available in that market and zone
# now. `quota`: the account has as many as it may have, in any zone. `busy`: the cloud limits the
# rate of calls. `denied`: this account or these credentials lack permission. Each cloud's provider
# sorts its own errors into these.
RefusalKind: TypeAlias = Literal["capacity", "quota", "busy", "denied", "unknown"]
# The reason of an InstanceGone whose time is only when it was noticed.
FORGOTTEN = "the cloud has no record of it any more"


@dataclass(frozen=True)
class InstanceEvent:
    """Something that happens to the instance of a launch intent."""

    at: float
    intent: str


@dataclass(frozen=True)
class SessionEvent:
    """Something that happens to a session of a trial."""

    at: float
    session: str


@dataclass(frozen=True)
class RunStarted:
    """The world is ready to take commands."""

    at: float


@dataclass(frozen=True)
class InstanceLaunched(InstanceEvent):
    """The cloud says that the instance of an intent exists, and bills from `launched_at`."""

    instance: str
    launched_at: float


@dataclass(frozen=True)
class InstanceBooting(InstanceEvent):
    """What a booting instance does, in its boot script's words, or why it waits, for people."""

    line: str


@dataclass(frozen=True)
class NodeJoined(InstanceEvent):
    """The instance has joined the cluster and takes trials."""


@dataclass(frozen=True)
class NodeLost(InstanceEvent):
    """The node has left the cluster and takes no trials; its instance may exist and bill."""

    reason: str


@dataclass(frozen=True)
class InterruptionNotice(InstanceEvent):
    """The cloud says that it will interrupt the instance at `due`, in seconds of the run."""

    due: float


@dataclass(frozen=True)
class RebalanceRecommended(InstanceEvent):
    """The cloud says that it may soon interrupt the instance; most often a notice follows."""


@dataclass(frozen=True)
class InstanceGone(InstanceEvent):
    """The cloud says that the instance is shutting down, and stopped billing at `gone_at`.

    If it never joined, `console` is the end of what it printed, and where the rest is.
    """

    gone_at: float
    reason: str
    console: str = ""


@dataclass(frozen=True)
class LaunchFailed(InstanceEvent):
    """The cloud refused the launch.

    `code` and `message` are the cloud's own words, for people; the policy only uses `kind`.
    `permanent`: another request would be refused too (no permission, no such image).
    """

    code: str
    message: str
    permanent: bool = False
    kind: RefusalKind = "unknown"


@dataclass(frozen=True)
class TrialStarted(SessionEvent):
    """All workers of a session are set up, and its next epoch begins."""


@dataclass(frozen=True)
class EpochResult:
    """What one epoch of one trial brought.

    - `checkpoint`: where the epoch's checkpoint was stored, if the script passed one.
    - `seconds`: how long the epoch took, without waiting for a grant; 0 if unknown. `saving` of
      them the checkpoint held up training, and for `waited` rank 0 waited for a core.
    - `in_sync`: whether the parameters are equal, bit for bit, on all ranks; None with one rank, or
      if unknown.
    - `memory_mib`: the peak GPU memory of rank 0; None without a GPU.
    - `unsaved`: why the checkpoint could not be saved; "" if it was, or if there was none.
    - `parallel`: how several workers share the model; "" if the script doesn't leave that to the
      run.
    - `of_epoch`: where the script reported nothing, the epoch of its next report, whose metrics
      these are; 0 for a report.
    - `texts`: what the script reported that is no number; it is shown, and compares nothing.
    """

    epoch: int
    metrics: Mapping[str, float]
    checkpoint: str | None
    seconds: float
    in_sync: bool | None = None
    saving: float = 0.0
    memory_mib: float | None = None
    waited: float = 0.0
    unsaved: str = ""
    parallel: Parallel = ""
    of_epoch: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochReport(EpochResult):
    """An epoch as rank 0 reports it to its node, with what no ledger needs.

    The files of a checkpoint that could not be saved may be `held` in a folder of the node.
    `between`: how many reports since the last epoch's compare nothing, as of parts of an epoch.

    A report of epoch 0 isn't an epoch: a save waits for room in a full storage.
    """

    held: str = ""
    between: int = 0


@dataclass(frozen=True)
class EpochDone(EpochResult, SessionEvent):
    """A session finished an epoch."""

    @classmethod
    def of(cls, at: float, session: str, result: EpochResult) -> "EpochDone":
        return cls(at, session, *(getattr(result, part.name) for part in fields(EpochResult)))


@dataclass(frozen=True)
class TrialStopped(SessionEvent):
    """A session's workers are gone and its GPUs are free.

    `by_itself`: nothing stopped it; the script has ended without an error, after a report.
    """

    by_itself: bool = False


@dataclass(frozen=True)
class TrialFailed(SessionEvent):
    """A session ended by an error of the user's code or of a worker; its GPUs are free.

    `out_of_memory`: it needed more memory than its share of the GPU has. `unsynced`: its workers
    don't train one model, so more GPUs are of no use to it.
    """

    error: str
    traceback: str
    out_of_memory: bool = False
    unsynced: bool = False


@dataclass(frozen=True)
class TrialLost(SessionEvent):
    """A session's workers died, not by the user's code (a vanished node); its GPUs are free.

    `blameless`: the reason says nothing about the script, such as a restarted controller.
    """

    reason: str
    blameless: bool = False


@dataclass(frozen=True)
class TimerFired:
    """A timer that the policy set has come due."""

    at: float
    name: str


@dataclass(frozen=True)
class RunResumed:
    """Another controller has taken over the run; what it missed is reported after this."""

    at: float


@dataclass(frozen=True)
class Interrupted:
    """A person asked the run to stop."""

    at: float


@dataclass(frozen=True)
class RunContinued:
    """An ended run is resumed within these limits, both counted from the run's first start.

    None means no limit. What the run has trained and spent counts. `trials` are added to those that
    it was to try.
    """

    at: float
    deadline: float | None
    budget: float | None
    trials: int = 0


Event: TypeAlias = (
    RunStarted
    | InstanceLaunched
    | InstanceBooting
    | NodeJoined
    | NodeLost
    | InterruptionNotice
    | RebalanceRecommended
    | InstanceGone
    | LaunchFailed
    | TrialStarted
    | EpochDone
    | TrialStopped
    | TrialFailed
    | TrialLost
    | TimerFired
    | RunResumed
    | RunContinued
    | Interrupted
)


def first_event(
    at: float,
    *,
    begun: bool,
    within: tuple[float | None, float | None] | None = None,
    more: int = 0,
) -> Event:
    """Return the first event of a controller, at that second of the run.

    `begun` says whether the run has begun before; `within` is the new deadline (seconds) and budget
    (dollars) of a run that is resumed after its end, with `more` trials.
    """
    if within is not None:
        return RunContinued(at, *within, more)
    return RunResumed(at) if begun else RunStarted(at)

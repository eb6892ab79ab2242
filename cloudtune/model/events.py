"""Everything that can happen to a run. `at` is in seconds since the run began.

A closed union: every `match` over it ends in `assert_never`, so that a new event breaks the type
check in each driver until it is handled there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cloudtune.model.trial import Parallel

# Why a cloud refuses a launch. `capacity`: none of that type are available in that market and zone
# now. `quota`: the account has as many as it may have, in any zone. `busy`: the cloud limits the
# rate of calls. `denied`: this account or these credentials lack permission. Each cloud's provider
# sorts its own errors into these.
RefusalKind: TypeAlias = Literal["capacity", "quota", "busy", "denied", "unknown"]
# The reason of an InstanceGone whose time is only when it was noticed.
FORGOTTEN = "the cloud has no record of it any more"


@dataclass(frozen=True)
class RunStarted:
    """The world is ready to take commands."""

    at: float


@dataclass(frozen=True)
class InstanceLaunched:
    """The cloud says that the instance of an intent exists, and bills from `launched_at`."""

    at: float
    intent: str
    instance: str
    launched_at: float


@dataclass(frozen=True)
class InstanceBooting:
    """What a booting instance does, in its boot script's words, or why it waits, for people."""

    at: float
    intent: str
    line: str


@dataclass(frozen=True)
class NodeJoined:
    """The instance has joined the cluster and takes trials."""

    at: float
    intent: str


@dataclass(frozen=True)
class NodeLost:
    """The node has left the cluster and takes no trials; its instance may exist and bill."""

    at: float
    intent: str
    reason: str


@dataclass(frozen=True)
class InterruptionNotice:
    """The cloud says that it will interrupt the instance at `due`, in seconds of the run."""

    at: float
    intent: str
    due: float


@dataclass(frozen=True)
class RebalanceRecommended:
    """The cloud says that it may soon interrupt the instance; most often a notice follows."""

    at: float
    intent: str


@dataclass(frozen=True)
class InstanceGone:
    """The cloud says that the instance is shutting down, and stopped billing at `gone_at`.

    If it never joined, `console` is the end of what it printed, and where the rest is.
    """

    at: float
    intent: str
    gone_at: float
    reason: str
    console: str = ""


@dataclass(frozen=True)
class LaunchFailed:
    """The cloud refused the launch.

    `code` and `message` are the cloud's own words, for people; the policy only uses `kind`.
    `permanent`: another request would be refused too (no permission, no such image).
    """

    at: float
    intent: str
    code: str
    message: str
    permanent: bool = False
    kind: RefusalKind = "unknown"


@dataclass(frozen=True)
class TrialStarted:
    """All workers of a session are set up, and its next epoch begins."""

    at: float
    session: str


@dataclass(frozen=True)
class EpochReport:
    """One epoch of one trial, as rank 0 reports it.

    - `checkpoint`: where the epoch's checkpoint was stored, if the script passed one.
    - `seconds`: how long the epoch took, without waiting for a grant; 0 if unknown. `saving` of
      them the checkpoint held up training, and for `waited` rank 0 waited for a core.
    - `in_sync`: whether the parameters are equal, bit for bit, on all ranks; None with one rank, or
      if unknown.
    - `memory_mib`: the peak GPU memory of rank 0; None without a GPU.
    - `unsaved`: why the checkpoint could not be saved; "" if it was, or if there was none. Its
      files may then be `held` in a folder of the node.
    - `parallel`: how several workers share the model; "" if the script doesn't leave that to the
      run.
    - `texts`: what the script reported that is no number; it is shown, and compares nothing.
    - `between`: how many reports since the last epoch's compare nothing, as of parts of an epoch.
    - `of_epoch`: where the script reported nothing, the epoch of its next report, whose metrics
      these are; 0 for a report.

    A report of epoch 0 isn't an epoch: a save waits for room in a full storage.
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
    held: str = ""
    between: int = 0
    parallel: Parallel = ""
    of_epoch: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)


# What a node says to the controller that no ledger needs.
_OF_NODES: Final = frozenset({"held", "between"})


@dataclass(frozen=True)
class EpochDone:
    """A session finished an epoch.

    It has the fields of `EpochReport` except `held` and `between`, plus the time and the session.
    """

    at: float
    session: str
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

    @classmethod
    def of(cls, at: float, session: str, report: EpochReport) -> "EpochDone":
        fields = {name: value for name, value in vars(report).items() if name not in _OF_NODES}
        return cls(at, session, **fields)


@dataclass(frozen=True)
class TrialStopped:
    """A session's workers are gone and its GPUs are free.

    `by_itself`: nothing stopped it; the script has ended without an error, after a report.
    """

    at: float
    session: str
    by_itself: bool = False


@dataclass(frozen=True)
class TrialFailed:
    """A session ended by an error of the user's code or of a worker; its GPUs are free.

    `out_of_memory`: it needed more memory than its share of the GPU has. `unsynced`: its workers
    don't train one model, so more GPUs are of no use to it.
    """

    at: float
    session: str
    error: str
    traceback: str
    out_of_memory: bool = False
    unsynced: bool = False


@dataclass(frozen=True)
class TrialLost:
    """A session's workers died, not by the user's code (a vanished node); its GPUs are free.

    `blameless`: the reason says nothing about the script, such as a restarted controller.
    """

    at: float
    session: str
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

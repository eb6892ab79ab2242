"""Everything that can happen to a run. `at` is in seconds since the run began.

A closed union: every `match` over it ends in `assert_never`, so that a new event breaks the type
check in each driver until it is handled there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cloudtune.model.trial import Parallel

# Why a cloud refuses a launch.
# `capacity`: there is none of that type in that market and zone just now. `quota`: the account has
# as many as it may have, in whatever zone. `busy`: the cloud answers too many calls. `denied`: this
# account or these credentials may not. Each cloud's provider sorts its own errors into these.
RefusalKind: TypeAlias = Literal["capacity", "quota", "busy", "denied", "unknown"]
# The reason of an InstanceGone that is as late as it was noticed.
FORGOTTEN = "the cloud has no record of it any more"


@dataclass(frozen=True)
class RunStarted:
    """The world is ready to take commands."""

    at: float


@dataclass(frozen=True)
class InstanceLaunched:
    """The cloud says that the instance of a launch intent exists, and bills since `launched_at`."""

    at: float
    intent: str
    instance: str
    launched_at: float


@dataclass(frozen=True)
class InstanceBooting:
    """What an instance that is to join does just now, in its boot script's words; for people."""

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
    """The node has left the cluster, and takes no trials; its instance may exist and bill."""

    at: float
    intent: str
    reason: str


@dataclass(frozen=True)
class InterruptionNotice:
    """The cloud says that it will take the instance back at `due`, in seconds of the run."""

    at: float
    intent: str
    due: float


@dataclass(frozen=True)
class RebalanceRecommended:
    """The cloud says that it may soon take the spot instance back; most often a notice follows."""

    at: float
    intent: str


@dataclass(frozen=True)
class InstanceGone:
    """The cloud says that the instance is shutting down, and bills no longer since `gone_at`.

    `console` is the end of what it printed, where it never joined, and where the rest is.
    """

    at: float
    intent: str
    gone_at: float
    reason: str
    console: str = ""


@dataclass(frozen=True)
class LaunchFailed:
    """The cloud refused the launch.

    `code` and `message` are the cloud's own words, for people; `kind` is what a policy goes by.
    `permanent`: asking again would be refused again (no permission, no such image).
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

    `checkpoint` is where the epoch's checkpoint was stored, if the script gave one. `seconds` is
    how long the epoch took, without waiting for a grant; 0 where unknown. Of these the checkpoint
    held training up for `saving`, and rank 0 waited for a core for `waited`. `in_sync`: whether the
    parameters are equal, bit for bit, on all ranks; None at one rank, or where they aren't known.
    `memory_mib` is the most GPU memory that rank 0 has had; None without a GPU. `unsaved` says why
    the checkpoint could not be saved, "" where it was, or the script gave none; its files may then
    be `held` in a folder of the node. `parallel` is how several workers share the model, "" where
    the script doesn't leave that to the run. A report of epoch 0 is of no epoch: a save waits for
    room in a full storage.
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
    parallel: Parallel = ""


@dataclass(frozen=True)
class EpochDone:
    """A session finished an epoch.

    Its fields are those of the `EpochReport` but `held`, besides the time and the session.
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

    @classmethod
    def of(cls, at: float, session: str, report: EpochReport) -> "EpochDone":
        fields = {name: value for name, value in vars(report).items() if name != "held"}
        return cls(at, session, **fields)


@dataclass(frozen=True)
class TrialStopped:
    """A session's workers are gone and its GPUs are free."""

    at: float
    session: str


@dataclass(frozen=True)
class TrialFailed:
    """A session ended by an error of the user's code or of a worker; its GPUs are free.

    `out_of_memory`: it asked for more memory than its share of the GPU has. `unsynced`: its workers
    don't train one model, so that more GPUs are of no use to it.
    """

    at: float
    session: str
    error: str
    traceback: str
    out_of_memory: bool = False
    unsynced: bool = False


@dataclass(frozen=True)
class TrialLost:
    """A session's workers died and not by the user's code (a vanished node); its GPUs are free.

    `blameless`: for a reason that says nothing of the script, such as a controller that restarted.
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
    """Another controller has taken the run over; what it missed is reported after this."""

    at: float


@dataclass(frozen=True)
class Interrupted:
    """A person asked the run to stop."""

    at: float


@dataclass(frozen=True)
class RunContinued:
    """A run that had ended goes on within these limits, both from the run's first begin.

    None is no limit. What the run has trained counts, and so does what it has spent. `trials` are
    tried besides those that it was to try.
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
    """Return what a controller hears first, at that second of the run.

    `begun` says whether the run has begun before; `within` is the new deadline (seconds) and budget
    (dollars) of one that goes on after its end, with `more` trials.
    """
    if within is not None:
        return RunContinued(at, *within, more)
    return RunResumed(at) if begun else RunStarted(at)

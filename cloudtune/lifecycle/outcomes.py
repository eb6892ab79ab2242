"""What the steps of a run come to, as reporters get it."""

from dataclasses import dataclass
from pathlib import Path

from cloudtune.errors import CleanupError
from cloudtune.infra.heads.launch import Remote
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import EndReason


@dataclass(frozen=True)
class Measured:
    """The profile of a script on one instance type, and the dollars spent on measuring it.

    `notes` say what isn't in the profile, and which configurations failed. `ending` is why it ended
    early, if it did.
    """

    profile: ScalingProfile
    dollars: float
    notes: tuple[str, ...] = ()
    ending: EndReason | None = None


@dataclass(frozen=True)
class HeadRun:
    """A run that a head controls: its local folder, its remote location, and its head's id."""

    folder: Path
    remote: Remote
    head: str


@dataclass(frozen=True)
class Swept:
    """The result of a cloud's check after a run, at `checked_at` (Unix time): is anything left?

    `unconfirmed` names what is or may be left; None if the cloud confirmed that nothing is.
    """

    checked_at: float
    unconfirmed: CleanupError | None = None

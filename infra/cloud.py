"""Opening a run's cloud (AWS, emulated or local), and making sure that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.errors import CleanupError, UsageError
from cloudtune.infra.ec2 import Ec2, Endpoint, ids
from cloudtune.infra.emulator import ensure_emulator, find_emulator, stop_emulator
from cloudtune.infra.errors import TROUBLE, is_denied

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudtune.infra.autoscaler import Journal
    from cloudtune.infra.ec2 import Instance

EMULATED_IMAGE = "ami-0c1000000000emul8"
PACE_TAG = "cloudtune:pace"
PRICE_TAG = "cloudtune:usd-per-hour"
"""What an instance costs that no price table knows."""
_NO_ACCOUNT = "emulated"
_SWEEP_SECONDS = 90.0
_LISTED_SECONDS = 20.0


@dataclass(frozen=True)
class Cloud:
    """Where instances are rented, and how they are asked for.

    `emulator` is the emulator's home, None on AWS. `request` goes to RunInstances as it is.
    """

    endpoint: Endpoint
    request: Mapping[str, Any]
    tags: Mapping[str, str]
    emulator: Path | None = None

    def close(self) -> None:
        """End the emulator, if nobody has an instance there any more."""
        if self.emulator is not None:
            stop_emulator(self.emulator, only_if_idle=True)


def emulated(home: Path, region: str, *, pace: int | None) -> Cloud:
    """Return the emulated cloud of `home`, started if it doesn't run.

    `pace` seeds the noise on the speed curve by which machines pace training; None turns the
    pacing off.
    """
    emulator = ensure_emulator(home)
    tags = {PACE_TAG: "off" if pace is None else str(pace)}
    return Cloud(
        Endpoint(region, emulator.endpoint, _NO_ACCOUNT), {"ImageId": EMULATED_IMAGE}, tags, home
    )


def local(home: Path, region: str, usd_per_hour: float, *, adopt: bool = False) -> Cloud:
    """Return this machine as a cloud of one instance; its own EC2 is started in `home`.

    `adopt` is for a run that goes on with an instance that it has already.

    Raises:
        UsageError: another run has the machine.
    """
    # Started afresh, it has the environment of this command, not of an earlier one.
    if not stop_emulator(home, only_if_idle=True) and not adopt:
        raise UsageError(
            "another run has this machine (`cloudtune status` shows it); wait for its end, or free "
            "the machine with `cloudtune gc` if that run has died"
        )
    emulator = ensure_emulator(home, boot_seconds=0.0)
    tags = {PACE_TAG: "off", PRICE_TAG: repr(usd_per_hour)}
    return Cloud(
        Endpoint(region, emulator.endpoint, _NO_ACCOUNT), {"ImageId": EMULATED_IMAGE}, tags, home
    )


def running_emulator(home: Path, region: str) -> Cloud | None:
    """Return the emulated cloud of `home`, if it runs."""
    emulator = find_emulator(home)
    if emulator is None:
        return None
    return Cloud(Endpoint(region, emulator.endpoint, _NO_ACCOUNT), {}, {}, home)


def aws(region: str, request: Mapping[str, Any]) -> Cloud:
    """Return EC2 in a region, with the credentials that boto3 finds."""
    return Cloud(Endpoint(region), request, {})


def keep_records(ec2: Ec2, run: str, path: Path) -> None:
    """Write down what EC2 says there was of a run, if it can say: in an hour it has forgotten."""
    with contextlib.suppress(*TROUBLE, OSError):
        records = [vars(instance) for instance in ec2.ours(run)]
        path.write_text(json.dumps(records, indent=1), encoding="utf-8")


def sweep(
    ec2: Ec2, run: str, journal: Journal, *, patience: float = _SWEEP_SECONDS
) -> list[Instance]:
    """Give back whatever a run has left, and return what still bills when patience ends.

    Asks EC2 by tag, so it finds what no record knows of. EC2 may not list an instance in its first
    seconds: what the journal says was launched, or asked for without an answer, is waited for.

    Raises:
        CleanupError: EC2 couldn't be asked until patience ended.
    """
    give_up = time.monotonic() + patience
    listed_by = time.time() + _LISTED_SECONDS
    while True:
        try:
            found = ec2.ours(run)
            left = [instance for instance in found if instance.billing]
            ec2.terminate(ids(left))
        except TROUBLE as error:
            if is_denied(error) or time.monotonic() > give_up:
                raise CleanupError(_unasked(run, journal, error), _launched(journal)) from error
        else:
            if not left and not (time.time() < listed_by and _may_appear(journal, found)):
                return []
            if time.monotonic() > give_up:
                return left
        time.sleep(0.5)


def _launched(journal: Journal) -> list[str]:
    return [note.instance for note in journal.read() if note.what == "launched"]


def _may_appear(journal: Journal, found: list[Instance]) -> bool:
    """Whether an instance may exist that EC2 doesn't list yet."""
    notes = list(journal.read())
    answered = {note.intent for note in notes if note.what in {"launched", "refused"}}
    asked = {note.intent for note in notes if note.what == "asking"}
    unanswered = asked - answered - {instance.intent for instance in found}
    unseen = set(_launched(journal)) - {instance.id for instance in found}
    return bool(unanswered or unseen)


def _unasked(run: str, journal: Journal, error: Exception) -> str:
    launched = ", ".join(_launched(journal)) or "none"
    return (
        f"EC2 can't be asked what is left of run {run}: {error}. It launched: {launched}. "
        "Run `cloudtune gc` when EC2 answers again, or look into the EC2 console."
    )

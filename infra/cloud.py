"""Opening the cloud of a run, AWS or emulated, and making sure that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from cloudtune.errors import CleanupError
from cloudtune.infra.ec2 import Ec2, Endpoint, ids
from cloudtune.infra.emulator import ensure_emulator, find_emulator, stop_emulator

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudtune.infra.ec2 import Instance

EMULATED_IMAGE = "ami-0c1000000000emul8"
PACE_TAG = "cloudtune:pace"
_NO_ACCOUNT = "emulated"
_SWEEP_SECONDS = 90.0


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
    with contextlib.suppress(ClientError, BotoCoreError):
        records = [vars(instance) for instance in ec2.ours(run)]
        path.write_text(json.dumps(records, indent=1), encoding="utf-8")


def sweep(ec2: Ec2, run: str, *, patience: float = _SWEEP_SECONDS) -> list[Instance]:
    """Give back whatever a run has left, and return what still bills when patience ends.

    Asks EC2 by tag, so it needs no local state and finds what no record knows of.

    Raises:
        CleanupError: EC2 couldn't be asked until patience ended.
    """
    give_up = time.monotonic() + patience
    while True:
        try:
            left = ec2.ours(run, ended=False)
            if not left:
                return []
            ec2.terminate(ids(left))
        except (ClientError, BotoCoreError) as error:
            if time.monotonic() > give_up:
                raise CleanupError(
                    f"EC2 can't be asked what is left of run {run}: {error}. "
                    "Run `cloudtune gc` when it answers again.",
                    [],
                ) from error
        else:
            if time.monotonic() > give_up:
                return left
        time.sleep(0.5)

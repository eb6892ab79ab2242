"""The head of a run as an instance: launched once, found by its tags, gone when its run is."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudtune.errors import CloudtuneError
from cloudtune.infra.environments.bootstrap import Foundation
from cloudtune.infra.environments.delivery import Delivery
from cloudtune.infra.node.boot import uploading
from cloudtune.infra.node.lease import first_lease
from cloudtune.infra.processes import write_atomically
from cloudtune.infra.provider import (
    INTENT_TAG,
    LEASE_TAG,
    PRICE_TAG,
    RUN_TAG,
    Calls,
    HeadOffer,
    Instance,
    launch_token,
)
from cloudtune.model.serialization import decode

# In the folder of a run that a head carries: where that is. Written before the head is asked for.
REMOTE = "remote.json"
INTENT = "head"
_TAIL = ".head"
_TRIES = 4
# Of EC2's message to an account on the free plan, whose code says only that it may not be so.
_FREE_PLAN = "eligible for Free Tier"
_PAUSE_SECONDS = 3.0


@dataclass(frozen=True)
class Remote:
    """Where a run is carried: its storage (STORAGE/RUN), its cloud, and when it must be over.

    `until` is the hard end of its head (Unix time), `attempt` how many heads it has had, this one
    included, `asked_at` when this one was asked for. `foundation` is what a head makes its own
    environment from where its image has no cloudtune (`environments.foundation`).
    """

    storage: str
    provider: str
    region: str
    until: float
    asked_at: float
    usd_per_hour: float
    attempt: int = 1
    foundation: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, folder: Path) -> "Remote | None":
        """Return where the run in a folder is carried; None for one that this machine carries.

        Raises:
            CloudtuneError: its record is damaged.
        """
        path = folder / REMOTE
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (TypeError, ValueError) as error:
            raise CloudtuneError(f"{path} is damaged: {error}") from None

    def keep(self, folder: Path) -> None:
        write_atomically(folder / REMOTE, json.dumps(asdict(self)))


def head_of(run: str) -> str:
    """Return what the head of a run has in the tag of instances that says whose they are.

    The run's own name isn't it: what a run has left is given back by that, and its head is what
    gives it back.
    """
    return run + _TAIL


def run_of(tag: str) -> str | None:
    """Return the run whose head has this tag; None if it is no head's."""
    return tag.removesuffix(_TAIL) if tag.endswith(_TAIL) else None


def user_data(remote: Remote, boot_log: str = "") -> str:
    """Return the script that a head runs at boot: its lease first, as of every instance.

    What it prints goes to the console, and to the address `boot_log` if there is one.
    """
    lease = first_lease(remote.asked_at, remote.until)
    laid = remote.foundation
    python = Delivery() if laid is None else decode(Foundation, laid)
    return (
        "#!/bin/bash\n"
        f"{lease}"
        "export HOME=/root\n"
        f"{uploading(boot_log)}"
        f"{python.lines()}"
        f"\"$python\" -m cloudtune.infra.heads.head_runner --at '{remote.storage}' "
        f"--until {remote.until:.0f}\n"
        'end "it ended with $?"\n'
    )


def launch(
    calls: Calls,
    run: str,
    remote: Remote,
    offer: HeadOffer,
    request: Callable[[str], Mapping[str, object]],
    *,
    boot_log: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Launch a run's head, and return its id; asked again for the same attempt, the same one.

    `request(user data)` is what a launch needs besides `offer.request`; `boot_log` is an address to
    which the head may upload what it prints as it boots. `remote` must be kept by now: whoever asks
    again asks for the same. `say` reports another type than the offer's.

    Raises:
        CloudtuneError: the cloud refused, and nothing was launched; or gave no answer, and the head
            may be there: the message says so.
    """
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(remote.until))
    tags = {
        **offer.tags,
        RUN_TAG: head_of(run),
        INTENT_TAG: INTENT,
        LEASE_TAG: end,
        PRICE_TAG: f"{offer.usd_per_hour:g}",
        "Name": f"cloudtune {run}",
    }
    wanted = {**offer.request, **request(user_data(remote, boot_log))}
    instance_type = offer.instance_type
    left = _TRIES
    while True:
        token = launch_token(head_of(run), f"{INTENT}-{remote.attempt}", instance_type, "", "")
        try:
            return calls.run_instance(token, tags, {**wanted, "InstanceType": instance_type})
        except calls.errors as error:
            sure = calls.is_definite(error)
            is_permanent = sure and calls.is_permanent(calls.code(error))
            left -= 1
            if left and not is_permanent:
                time.sleep(_PAUSE_SECONDS)
                continue
            is_of_type = not is_permanent or _FREE_PLAN in str(error)
            if not (sure and is_of_type) or instance_type == (offer.second_type or instance_type):
                if sure:
                    raise CloudtuneError(
                        f"the head was refused: {error}; nothing was launched"
                    ) from None
                raise CloudtuneError(
                    f"the head can't be had: {error}; it may have been launched: `cloudtune "
                    "status` tells, and its lease ends it"
                ) from None
            say(f"note: no head of type {instance_type}: {error}; {offer.second_type} then")
            instance_type = offer.second_type
            left = _TRIES


def live_heads(calls: Calls, run: str) -> list[Instance]:
    """Return the heads of a run that still bill; more than one only if somebody forced it."""
    return [head for head in calls.ours(head_of(run), ended=False) if head.billing]

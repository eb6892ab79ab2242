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
from cloudtune.infra.heads.sealed import KEY_VARIABLE
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
    at_place,
    launch_token,
)
from cloudtune.model.serialization import decode

# The file, in the folder of a run, that says which head carries it. Written before the request.
REMOTE = "remote.json"
INTENT = "head"
_TAIL = ".head"
_TRIES = 4
# A part of EC2's message to an account on the free plan, whose code isn't specific.
_FREE_PLAN = "eligible for Free Tier"
_PAUSE_SECONDS = 3.0


@dataclass(frozen=True)
class Remote:
    """The place of a run carried by a head: its storage (STORAGE/RUN), its cloud, and its end.

    `until` is the hard end of its head (Unix time), `attempt` the number of its heads including
    this one, `asked_at` when this one was requested. `foundation` is what a head builds its own
    environment from, if its image has no cloudtune (`environments.bootstrap`).
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
        """Return the place of the run in a folder; None for one that this machine carries.

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


def head_tag(run: str) -> str:
    """Return the value of a head's tag `cloudtune:run`.

    It isn't the run's own name: instances of the run are returned by that name, and the head is
    what returns them.
    """
    return run + _TAIL


def parse_tag(tag: str) -> str | None:
    """Return the run whose head has this tag; None if it isn't a head's."""
    return tag.removesuffix(_TAIL) if tag.endswith(_TAIL) else None


def user_data(remote: Remote, boot_log: str = "", key: str = "", index: str = "") -> str:
    """Return the script that a head runs at boot; it first sets the lease, as on every instance.

    Its output goes to the console, and to the address `boot_log` if there is one. `key` opens the
    variables that the head was sent, if any; `index` are lines that name a package index.
    """
    lease = first_lease(remote.asked_at, remote.until)
    laid = remote.foundation
    exported = f"export {KEY_VARIABLE}={key}\n" if key else ""
    python = Delivery() if laid is None else decode(Foundation, laid)
    return (
        "#!/bin/bash\n"
        f"{lease}"
        "export HOME=/root\n"
        f"{uploading(boot_log)}"
        f"{index}"
        f"{python.lines()}"
        f"{exported}"
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
    key: str = "",
    index: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Launch a run's head, and return its id; for the same attempt again, the same one.

    `request(user data)` returns the launch's request on top of `offer.request`; `boot_log` is an
    address to which the head may upload its boot output. `remote` must have been saved before, so
    that a repeated call is identical. `key` opens the variables that the head was sent, if any;
    `index` are lines that name a package index. `say` reports each place that had none.

    Raises:
        CloudtuneError: the cloud refused, and nothing was launched; or it gave no answer, and the
            head may exist: the message says so.
    """
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(remote.until))
    tags = {
        **offer.tags,
        RUN_TAG: head_tag(run),
        INTENT_TAG: INTENT,
        LEASE_TAG: end,
        PRICE_TAG: f"{offer.usd_per_hour:g}",
        "Name": f"cloudtune {run}",
    }
    wanted = {**offer.request, **request(user_data(remote, boot_log, key, index))}
    types = dict.fromkeys([offer.instance_type, offer.second_type or offer.instance_type])
    attempts = [(kind, zone) for kind in types for zone in offer.places or ("",)]
    for instance_type, zone in attempts:
        is_last = (instance_type, zone) == attempts[-1]
        asked = {**at_place(wanted, offer.places, zone), "InstanceType": instance_type}
        token = launch_token(head_tag(run), f"{INTENT}-{remote.attempt}", instance_type, "", zone)
        try:
            return _ask(calls, token, tags, asked, tries=_TRIES)
        except calls.errors as error:
            sure = calls.is_definite(error)
            is_permanent = sure and calls.is_permanent(calls.code(error))
            is_of_type = not is_permanent or _FREE_PLAN in str(error)
            if not sure:
                raise CloudtuneError(
                    f"the head can't be had: {error}; it may have been launched: `cloudtune "
                    "status` tells, and its lease ends it"
                ) from None
            if is_last or not is_of_type:
                raise CloudtuneError(
                    f"the head was refused: {error}; nothing was launched"
                ) from None
            where = f" in {zone}" if zone else ""
            say(f"note: no head of type {instance_type}{where}: {error}")
    raise AssertionError("the last attempt returns or raises")


def _ask(
    calls: Calls, token: str, tags: Mapping[str, str], request: Mapping[str, Any], *, tries: int
) -> str:
    """Launch a head; ask again with the same token while that may help."""
    while True:
        try:
            return calls.run_instance(token, tags, request)
        except calls.errors as error:
            tries -= 1
            is_permanent = calls.is_definite(error) and calls.is_permanent(calls.code(error))
            if is_permanent or not tries:
                raise
        time.sleep(_PAUSE_SECONDS)


def live_heads(calls: Calls, run: str) -> list[Instance]:
    """Return the heads of a run that still bill; more than one only if it was forced."""
    return [head for head in calls.ours(head_tag(run), ended=False) if head.billing]

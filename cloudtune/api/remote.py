"""A run that a head carries, from a machine that can't carry it: sent, followed, gone on with."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.infra.environments.foundation import lay
from cloudtune.infra.environments.spec import requirement_files
from cloudtune.infra.heads import launch
from cloudtune.infra.heads.carrier import ERRORS, OUTPUT
from cloudtune.infra.heads.known import OVER, RUN
from cloudtune.infra.heads.launch import REMOTE, Remote
from cloudtune.infra.heads.parcel import Order, packed
from cloudtune.infra.heads.store import ORDER, PARCEL, STATE, STOP, HeadStore, fetch
from cloudtune.infra.provider import calls_to, provider_named
from cloudtune.jobs import home, runner
from cloudtune.jobs.planning import LEASE_GRACE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.infra.heads.store import State
    from cloudtune.infra.provider import Calls, HeadOffer

LONGEST_SECONDS = 14 * 24 * 3600.0
"""Without a deadline a head has so long: its run ends by itself, by its budget or its trials."""
_LOOK_SECONDS = 2.0
_DEAD_SECONDS = 15.0
_GONE_SECONDS = 120.0
_BOOT_SECONDS = 900.0


@dataclass(frozen=True)
class Sent:
    """A run that a head carries, as known here: its folder, where it is, and its head's id."""

    folder: Path
    remote: Remote
    head: str


def head_for(wanted: Experiment) -> HeadOffer | None:
    """Return what would carry a run of this experiment; None where this machine can.

    Raises:
        UsageError: nobody knows what that costs.
    """
    return provider_named(wanted.cloud.provider).head(wanted, home.home())


def with_head(wanted: Experiment, offer: HeadOffer | None) -> Experiment:
    """Return an experiment with an hour of its head among its charges: the budget pays for it."""
    if offer is None:
        return wanted
    per_hour = (wanted.charges.per_hour or 0.0) + offer.usd_per_hour
    charges = wanted.charges.model_copy(update={"per_hour": per_hour})
    return wanted.model_copy(update={"charges": charges})


def experiment_file(wanted: Experiment) -> tuple[Path, bytes]:
    """Return the file of an experiment as its head has it, beside its script: where, and what."""
    fields = wanted.to_json()
    fields.pop("directory")
    return wanted.directory / f".cloudtune-{wanted.name}.yaml", json.dumps(fields).encode()


def send(
    wanted: Experiment, offer: HeadOffer, arguments: Sequence[str], files: Mapping[Path, bytes]
) -> Sent:
    """Launch a head that runs `cloudtune` with these arguments, and has these files; return it.

    Nothing is launched before all that the head needs is in the storage.

    Raises:
        CloudtuneError: it couldn't be launched; the message says whether anything was.
    """
    began = time.time()
    provider_named(wanted.cloud.provider).check(wanted)
    if not wanted.setup.builds:  # or the head does it, by the environment that it builds
        runner.check_script(wanted)
    runner.check_storage(wanted)
    needed = {path: path.read_bytes() for path in requirement_files(wanted)}
    parcel = packed(wanted.train_folder, {**needed, **files}, home.home())
    storage = home.storage(wanted.storage).rstrip("/")
    laid = lay(storage)
    folder = home.new_run(wanted.name)
    remote = Remote(
        storage=f"{storage}/{folder.name}",
        provider=wanted.cloud.provider,
        region=wanted.cloud.region,
        until=_end(wanted, began),
        asked_at=began,
        usd_per_hour=offer.usd_per_hour,
        foundation=laid.to_json(),
    )
    HeadStore(remote.storage).write(PARCEL, parcel)
    return _launched(folder, wanted, remote, offer, arguments)


def resend(folder: Path, wanted: Experiment, offer: HeadOffer, arguments: Sequence[str]) -> Sent:
    """Launch another head for a run whose head is gone; it goes on from what is in the storage.

    Raises:
        UsageError: a head carries it.
        CloudtuneError: it couldn't be launched; the message says whether anything was.
    """
    before = Remote.of(folder)
    assert before is not None
    if alive := launch.living(_calls(before), folder.name):
        raise UsageError(
            f"run {folder.name} is carried by {alive[0].id}; `cloudtune watch {folder.name}` shows "
            "it, and `cloudtune stop` ends it"
        )
    now = time.time()
    store = HeadStore(before.storage)
    store.remove(STOP)
    store.remove(STATE)
    (folder / OVER).unlink(missing_ok=True)
    remote = replace(before, until=_end(wanted, now), asked_at=now, attempt=before.attempt + 1)
    return _launched(folder, wanted, remote, offer, arguments)


def _end(wanted: Experiment, began: float) -> float:
    return began + (wanted.limits.deadline or LONGEST_SECONDS) + 2 * LEASE_GRACE_SECONDS


def _launched(
    folder: Path, wanted: Experiment, remote: Remote, offer: HeadOffer, arguments: Sequence[str]
) -> Sent:
    order = Order(
        run=folder.name,
        arguments=tuple(arguments),
        folder=str(wanted.directory),
        began=remote.asked_at,
        until=remote.until,
        environment={},
        attempt=remote.attempt,
    )
    store = HeadStore(remote.storage)
    store.write(ORDER, order.to_bytes())
    store.write(REMOTE, json.dumps(asdict(remote)).encode())
    remote.keep(folder)  # before the call: from then on there may be a head

    def request(user_data: str) -> Mapping[str, object]:
        return {"InstanceType": offer.instance_type, "UserData": user_data}

    head = launch.launch(_calls(remote), folder.name, remote, offer, request)
    return Sent(folder, remote, head)


def follow(sent: Sent, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Tell what a head's command prints as it does; return its exit code once the head is gone.

    Raises:
        CloudtuneError: the head died, or never came up; the message says how to go on.
        CleanupError: its cloud didn't confirm its end.
    """
    store, calls = HeadStore(sent.remote.storage), _calls(sent.remote)
    printed = [_Printed(sent.folder / OUTPUT, out), _Printed(sent.folder / ERRORS, err)]
    asked_at = time.monotonic()
    while True:
        state = store.state()
        fetch(store, sent.folder, RUN)
        for each in printed:
            each.go_on()
        if state is not None and state.attempt == sent.remote.attempt and state.code is not None:
            break
        if time.monotonic() >= asked_at + _DEAD_SECONDS:
            asked_at = time.monotonic()
            _refuse_dead(sent, calls, state)
        time.sleep(_LOOK_SECONDS)
    for name in ("profiles", "knowledge"):
        fetch(store, home.home() / name, f"{name}/")
    _await_gone(sent, calls)
    return state.code


def ask_to_stop(remote: Remote) -> None:
    """Ask a run's head to end it in order.

    Raises:
        StorageError: its storage can't be written.
    """
    HeadStore(remote.storage).write(STOP, b"stop\n")


def _refuse_dead(sent: Sent, calls: Calls, state: State | None) -> None:
    """Pass if the head is there, or may still come up."""
    name, known = sent.folder.name, calls.ours(launch.head_of(sent.folder.name))
    if any(each.billing for each in known):
        return
    young = time.time() - sent.remote.asked_at < _BOOT_SECONDS
    if state is None and young and not any(each.id == sent.head for each in known):
        return  # the cloud doesn't list it yet
    console = calls.console(sent.head).strip().splitlines()[-5:]
    told = "".join(f"\n  {line}" for line in console)
    raise CloudtuneError(
        f"the head {sent.head} of run {name} is gone{'; its last words:' if told else ''}{told}\n"
        "What it has left ends with its leases, in 15 minutes at most: `cloudtune status --region "
        f"{sent.remote.region}` shows it. `cloudtune resume {name}` goes on with the run"
    )


def _await_gone(sent: Sent, calls: Calls) -> None:
    give_up = time.monotonic() + _GONE_SECONDS
    while launch.living(calls, sent.folder.name):
        if time.monotonic() > give_up:
            calls.terminate([sent.head])
            raise CleanupError(
                f"EC2 did not confirm the end of the head, {sent.head}; it was told to end once "
                "more. Look with `cloudtune status`, or in the EC2 console",
                [sent.head],
            )
        time.sleep(_LOOK_SECONDS)


def _calls(remote: Remote) -> Calls:
    provider = provider_named(remote.provider)
    (cloud,) = provider.found(home.home(), (), remote.region)
    return calls_to(cloud.endpoint)


class _Printed:
    """Prints what is added to a file."""

    def __init__(self, path: Path, out: Callable[[str], None]) -> None:
        self._path, self._out, self._at = path, out, 0

    def go_on(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        self._at += len(data)
        if data:
            self._out(data.decode(errors="replace"))

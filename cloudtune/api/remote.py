"""A run that a head carries, from a machine that can't carry it: sent, followed, gone on with."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtune.api.experiments import with_head
from cloudtune.api.watching import followed
from cloudtune.errors import CleanupError, CloudtuneError, UsageError
from cloudtune.infra.environments.bootstrap import lay
from cloudtune.infra.environments.spec import requirement_files
from cloudtune.infra.heads import launch
from cloudtune.infra.heads.bundle import Order, packed
from cloudtune.infra.heads.head_runner import ERRORS, OUTPUT
from cloudtune.infra.heads.launch import REMOTE, Remote
from cloudtune.infra.heads.remote_runs import OVER, RUN
from cloudtune.infra.heads.store import ORDER, PARCEL, STATE, STOP, HeadStore, fetch
from cloudtune.infra.provider import calls_to, provider_named
from cloudtune.planning.make import LEASE_GRACE_SECONDS
from cloudtune.running import runner
from cloudtune.runs import control, home
from cloudtune.runs.job import job_of_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from cloudtune.experiment import Experiment
    from cloudtune.infra.heads.store import State
    from cloudtune.infra.provider import Calls, HeadOffer
    from cloudtune.policy.run import RunPolicy
    from cloudtune.running.runner import Watch
    from cloudtune.runs.job import Job

    Watching: TypeAlias = Callable[[Job, RunPolicy], AbstractContextManager[Watch]]

LONGEST_SECONDS = 14 * 24 * 3600.0
"""Without a deadline a head has so long: its run ends by itself, by its budget or its trials."""
_CARRIED = ("--here", "--yes")
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


def send(
    wanted: Experiment, offer: HeadOffer, words: Sequence[str], plan: bytes | None = None
) -> Sent:
    """Launch a head that runs an experiment, or the saved `plan` of it; return it.

    `words` are further options of `cloudtune run`; a profile that they name as a file goes with it.
    Nothing is launched before all that the head needs is in the storage.

    Raises:
        CloudtuneError: it couldn't be launched; the message says whether anything was.
    """
    began = time.time()
    provider_named(wanted.cloud.provider).check(wanted)
    if not wanted.setup.builds:  # or the head does it, by the environment that it builds
        runner.check_script(wanted)
    runner.preflight(wanted, offer)
    words, files = _with_profile(words)
    path = wanted.directory / f".cloudtune-{wanted.name}.{'plan' if plan else 'yaml'}"
    files[path] = _written(with_head(wanted, offer)) if plan is None else plan
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
    return _launched(folder, wanted, remote, offer, ["run", str(path), *_CARRIED, *words])


def resend(folder: Path, wanted: Experiment, offer: HeadOffer, words: Sequence[str]) -> Sent:
    """Launch another head for a run whose head is gone; it goes on from what is in the storage.

    `words` are further options of `cloudtune resume`.

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
    return _launched(folder, wanted, remote, offer, ["resume", folder.name, *_CARRIED, *words])


def _written(wanted: Experiment) -> bytes:
    """Return an experiment as its head has it, in a file beside its script."""
    fields = wanted.to_json()
    fields.pop("directory")
    return json.dumps(fields).encode()


def _with_profile(words: Sequence[str]) -> tuple[list[str], dict[Path, bytes]]:
    """Return the words with a profile's file by its whole path, and that file with what is in it.

    What is no file is the name of published figures.
    """
    kept, files = [], {}
    for word in words:
        name, _, value = word.partition("=")
        path = Path(value).absolute()
        if name == "--profile" and path.is_file():
            files[path] = path.read_bytes()
            kept.append(f"{name}={path}")
        else:
            kept.append(word)
    return kept, files


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


class Following:
    """What a head's run does, brought here as it does it."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self._store, self._calls = HeadStore(sent.remote.storage), _calls(sent.remote)
        self._asked_at = time.monotonic()
        self._looked_at = -math.inf
        self._code: int | None = None

    def look(self) -> int | None:
        """Bring what is new; return the exit code of the head's command once it has ended.

        Asked more often, it looks every two seconds.

        Raises:
            CloudtuneError: the head died, or never came up; the message says how to go on.
        """
        if self._code is None and time.monotonic() >= self._looked_at + _LOOK_SECONDS:
            self._code = self._look()
            self._looked_at = time.monotonic()
        return self._code

    def _look(self) -> int | None:
        state = self._store.state()
        fetch(self._store, self.sent.folder, RUN)
        if state is not None and state.attempt == self.sent.remote.attempt and state.over:
            return state.code
        if time.monotonic() >= self._asked_at + _DEAD_SECONDS:
            self._asked_at = time.monotonic()
            _refuse_dead(self.sent, self._calls, state)
        return None

    def end(self) -> None:
        """Bring what later runs learn from, and wait until the head is gone.

        Raises:
            CleanupError: its cloud didn't confirm its end.
        """
        for name in ("profiles", "knowledge"):
            fetch(self._store, home.home() / name, f"{name}/")
        _await_gone(self.sent, self._calls)


def follow(sent: Sent, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Tell what a head's command prints as it does; return its exit code once the head is gone.

    Raises:
        CloudtuneError: the head died, or never came up; the message says how to go on.
        CleanupError: its cloud didn't confirm its end.
    """
    following = Following(sent)
    printed = [_Printed(sent.folder / OUTPUT, out), _Printed(sent.folder / ERRORS, err)]
    while True:
        code = following.look()
        for each in printed:
            each.go_on()
        if code is not None:
            following.end()
            return code
        time.sleep(_LOOK_SECONDS)


def look_on(sent: Sent, watching: Watching, *, seen: int = 0) -> int:
    """Tell of a head's run by its events; return its exit code once the head is gone.

    The first `seen` of its entries are known. An interrupt asks the run to end in order, and what
    becomes of that is told.

    Raises:
        CloudtuneError: the head died, or never came up; the message says how to go on.
        CleanupError: its cloud didn't confirm its end.
    """
    following, ledger = Following(sent), sent.folder / home.LEDGER

    def goes_on() -> bool:
        return following.look() is None

    with control.interruptible() as interruption:
        interruption.tell(lambda: ask_to_stop(sent.remote))
        while goes_on() and not ledger.exists():
            time.sleep(_LOOK_SECONDS)
        if ledger.exists():
            job = job_of_ledger(ledger)
            policy = job.policy()
            with watching(job, policy) as watch:
                for number, entry in enumerate(followed(ledger, lambda: False, goes_on)):
                    policy.handle(entry.event)
                    if number >= seen:
                        watch(entry.event, tuple(entry.commands))
        code = following.look()
        assert code is not None, "that it has ended doesn't change"
        following.end()
    return code


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

"""Send, follow and resume a run that a head controls, from a machine that can't control it."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from cloudtune.errors import CleanupError, CloudtuneError, DetachedError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.forecast.make import LEASE_GRACE_SECONDS
from cloudtune.forecast.problem import stored_profiles
from cloudtune.infra.environments.bootstrap import lay
from cloudtune.infra.environments.imports import missing_imports
from cloudtune.infra.environments.index import (
    CERTIFICATES,
    export_lines,
    hosts,
    index_variables,
    read_certificates,
)
from cloudtune.infra.environments.spec import requirement_files
from cloudtune.infra.heads import launch
from cloudtune.infra.heads.bundle import Order, pack
from cloudtune.infra.heads.head_runner import ERRORS, OUTPUT
from cloudtune.infra.heads.launch import REMOTE, Remote
from cloudtune.infra.heads.remote_runs import OVER, RUN
from cloudtune.infra.heads.sealed import seal
from cloudtune.infra.heads.store import (
    BOOT,
    ORDER,
    PARCEL,
    STATE,
    STOP,
    VARIABLES,
    HeadStore,
    State,
    fetch,
)
from cloudtune.infra.node.boot import SCRIPT_SAYS, UPLOAD_SECONDS, telling_lines
from cloudtune.infra.provider import Calls, HeadOffer, calls_to, find_provider
from cloudtune.infra.sent_files import IGNORE_FILE, secrets_in
from cloudtune.lifecycle import dry_run, runner
from cloudtune.lifecycle.contact import Contact, hourly_cost
from cloudtune.lifecycle.data import with_data
from cloudtune.lifecycle.following import EventReports
from cloudtune.lifecycle.heads import with_head
from cloudtune.lifecycle.outcomes import HeadRun
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.lifecycle.variables import own_values
from cloudtune.model.serialization import encode
from cloudtune.runs import control, home
from cloudtune.runs.control import to_stderr
from cloudtune.train.storage import upload_address

T = TypeVar("T")

# Lifetime of a head without a deadline; its run ends earlier, by its budget or its trials.
LONGEST_SECONDS = 14 * 24 * 3600.0
_CARRIED = ("--here", "--yes")
# Between two looks at what the head has written; each is a request to the storage.
_LOOK_SECONDS = 2.0
# Between two questions to EC2 whether the head still lives.
_DEAD_SECONDS = 15.0
# For how long EC2 is asked after the end of a run whether its head is gone.
_GONE_SECONDS = 120.0
# A head that was asked for so recently may still come, though EC2 doesn't list it.
_BOOT_SECONDS = 900.0


def send(
    wanted: Experiment, offer: HeadOffer, words: Sequence[str], plan: bytes | None = None
) -> HeadRun:
    """Launch a head that runs an experiment, or its saved `plan`; return it.

    `words` are further options of `cloudtune run`; a profile's file that they name is sent along.
    The head is launched once everything that it needs is in the storage.

    Raises:
        CloudtuneError: the launch failed; the message says whether an instance may be running.
    """
    began = time.time()
    find_provider(wanted.cloud.provider).check(wanted)
    options = dict(word.partition("=")[::2] for word in words)
    profile = options.get("--profile")
    has_run = plan is not None or bool(stored_profiles(wanted, profile, note=str))
    dry_run.check_script(wanted, has_run=has_run, carried=True)
    _check_imports(wanted)
    runner.preflight(wanted, offer)
    wanted = with_data(wanted)
    words, files = _with_profile(words)
    path = wanted.directory / f".cloudtune-{wanted.name}.{'plan' if plan else 'yaml'}"
    files[path] = _written(with_head(wanted, offer)) if plan is None else plan
    needed = {path: path.read_bytes() for path in requirement_files(wanted)}
    if secrets := secrets_in(wanted.train_folder):
        to_stderr(
            f"note: not sent: {', '.join(secrets)}, as they look like secrets; `!{secrets[0]}` in "
            f"{IGNORE_FILE} sends one"
        )
    parcel = pack(wanted.train_folder, {**needed, **files}, home.home())
    storage = home.storage(wanted.storage).rstrip("/")
    bootstrap = lay(storage)
    folder = home.new_run(wanted.name)
    remote = Remote(
        storage=f"{storage}/{folder.name}",
        provider=wanted.cloud.provider,
        region=wanted.cloud.region,
        until=_end(wanted, began),
        asked_at=began,
        usd_per_hour=offer.usd_per_hour,
        foundation=encode(bootstrap),
    )
    HeadStore(remote.storage).write(PARCEL, parcel)
    return _launch(folder, wanted, remote, offer, ["run", str(path), *_CARRIED, *words])


def resend(folder: Path, wanted: Experiment, offer: HeadOffer, words: Sequence[str]) -> HeadRun:
    """Launch another head for a run whose head is gone; it resumes from the storage.

    `words` are further options of `cloudtune resume`.

    Raises:
        UsageError: the run has a live head.
        CloudtuneError: the launch failed; the message says whether an instance may be running.
    """
    before = Remote.of(folder)
    assert before is not None
    if alive := launch.live_heads(_calls(before), folder.name):
        raise UsageError(
            f"{alive[0].id} is running {folder.name}: follow it with `cloudtune watch "
            f"{folder.name}`, or stop it with `cloudtune stop {folder.name}`"
        )
    own_values(wanted)  # refuses to go on without them, before anything has changed
    now = time.time()
    store = HeadStore(before.storage)
    store.remove(STOP)
    store.remove(STATE)
    (folder / OVER).unlink(missing_ok=True)
    remote = replace(before, until=_end(wanted, now), asked_at=now, attempt=before.attempt + 1)
    return _launch(folder, wanted, remote, offer, ["resume", folder.name, *_CARRIED, *words])


def _check_imports(wanted: Experiment) -> None:
    """Pass if the head and its nodes will have what the script imports.

    Raises:
        UsageError: they won't; the message has the lines of the imports.
    """
    missing = missing_imports(wanted)
    if missing and wanted.setup.builds and not wanted.setup.commands:
        raise UsageError("\n".join(missing))
    for line in missing:  # the image or the commands may bring it
        to_stderr(f"note: {line}, unless the image or setup.commands bring it")


def _written(wanted: Experiment) -> bytes:
    """Return an experiment as its head gets it, in a file beside its script."""
    fields = wanted.to_json()
    fields.pop("directory")
    fields["log_to"] = []  # the machine that follows the run logs it
    return json.dumps(fields).encode()


def _with_profile(words: Sequence[str]) -> tuple[list[str], dict[Path, bytes]]:
    """Return the words with a profile's file as an absolute path, and that file with its content.

    A value that isn't a file is the name of a published profile.
    """
    expanded = []
    files = {}
    for word in words:
        name, _, value = word.partition("=")
        path = Path(value).absolute()
        if name == "--profile" and path.is_file():
            files[path] = path.read_bytes()
            expanded.append(f"{name}={path}")
        else:
            expanded.append(word)
    return expanded, files


def _end(wanted: Experiment, began: float) -> float:
    return began + (wanted.limits.deadline or LONGEST_SECONDS) + 2 * LEASE_GRACE_SECONDS


def _launch(
    folder: Path, wanted: Experiment, remote: Remote, offer: HeadOffer, arguments: Sequence[str]
) -> HeadRun:
    values = own_values(wanted)
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
    store.write(ORDER, json.dumps(asdict(order)).encode())
    store.write(REMOTE, json.dumps(asdict(remote)).encode())
    remote.keep(folder)  # before the call, after which there may be a head

    store.remove(BOOT)  # of the head before this one
    key = _sealed_into(store, values)
    index = _write_index(store)
    with control.interruptible() as interruption:  # an interrupt waits for the head's id
        head = launch.launch(
            _calls(remote),
            folder.name,
            remote,
            offer,
            lambda user_data: {"UserData": user_data},
            boot_log=upload_address(store.make_uri(BOOT), UPLOAD_SECONDS),
            key=key,
            index=index,
            say=to_stderr,
        )
    run = HeadRun(folder, remote, head)
    if interruption.pending:
        raise _detachment(run)
    return run


def _sealed_into(store: HeadStore, values: Mapping[str, str]) -> str:
    """Write values into a store for its head; return the key that opens them, "" for none."""
    if not values:
        store.remove(VARIABLES)
        return ""
    sealed, key = seal(values)
    store.write(VARIABLES, sealed)
    return key


def _write_index(store: HeadStore) -> str:
    """Return the lines that name this machine's package index to a head; "" without one."""
    variables = index_variables(os.environ)
    if not variables:
        return ""
    to_stderr(
        f"note: the head installs from the index of this machine: {', '.join(hosts(variables))}"
    )
    certificates = read_certificates(os.environ)
    if not certificates:
        return export_lines(variables)
    store.write(CERTIFICATES, certificates)
    return export_lines(variables, store.make_uri(CERTIFICATES))


class Following:
    """Copies the output of a head's run to this machine while it runs."""

    def __init__(self, run: HeadRun) -> None:
        self.run = run
        self._store = HeadStore(run.remote.storage)
        self._calls = _calls(run.remote)
        self._contact = Contact(run.folder, self._calls.errors)
        self._boot_lines = 0
        self._has_begun = False
        self._asked_at = time.monotonic()
        self._looked_at = -math.inf
        self._code: int | None = None

    def look(self) -> int | None:
        """Copy new output; return the exit code of the head's command once it has ended.

        Looks at most every two seconds, however often it is called. Without network or credentials
        it is None until they are back.

        Raises:
            CloudtuneError: the head died or never started; the message says how to continue.
        """
        if self._code is None and time.monotonic() >= self._looked_at + _LOOK_SECONDS:
            self._code = self._contact.ask(self._look, None)
            self._looked_at = time.monotonic()
        return self._code

    def _look(self) -> int | None:
        state = self._store.state()
        if state is not None and state.attempt != self.run.remote.attempt:
            state = None  # of the head before this one
        if not self._has_begun:
            lines = _boot_log(self._store)
            for line in lines[self._boot_lines :]:
                if match := SCRIPT_SAYS.match(line):
                    to_stderr(f"head: {line[match.end() :]}")
            self._boot_lines = len(lines)
            self._has_begun = state is not None and self._boot_lines > 0  # uploaded every 3 s
        fetch(self._store, self.run.folder, RUN)
        if state is not None and state.code is not None:
            return state.code
        if time.monotonic() >= self._asked_at + _DEAD_SECONDS:
            self._asked_at = time.monotonic()
            _refuse_dead(self.run, self._calls, self._store, state)
        return None

    def end(self) -> None:
        """Copy profiles and histories for later runs, and wait until the head has terminated.

        Raises:
            CleanupError: its cloud didn't confirm its termination.
        """
        try:
            self._ask(self._fetch_experience)
            give_up = time.monotonic() + _GONE_SECONDS
            while self._ask(lambda: launch.live_heads(self._calls, self.run.folder.name)):
                if time.monotonic() > give_up:
                    self._ask(lambda: self._calls.terminate([self.run.head]))
                    raise self._cleanup_error("requested it again")
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            raise self._cleanup_error("the run has ended, and you interrupted the wait") from None

    def _fetch_experience(self) -> None:
        for name in ("profiles", "knowledge"):
            fetch(self._store, home.home() / name, f"{name}/")

    def _ask(self, question: Callable[[], T]) -> T:
        """Return the answer to a question, however long network or credentials are away.

        Raises:
            CleanupError: they were still away when the head had to be gone.
        """
        while True:
            answer = self._contact.ask(lambda: (question(),), None)
            if answer is not None:
                return answer[0]
            if time.time() > self.run.remote.until:
                raise self._cleanup_error("its lease has ended it by now")
            time.sleep(_LOOK_SECONDS)

    def _cleanup_error(self, why: str) -> CleanupError:
        head = self.run.head
        return CleanupError(
            f"EC2 did not confirm that head {head} terminated; {why}. Check with `cloudtune status`"
            ", or in the EC2 console",
            [head],
        )


def follow(run: HeadRun, reporter: Reporter, *, seen: int = 0) -> int:
    """Report what a head's run prints and does; return its exit code once the head has terminated.

    Skips the first `seen` events of its ledger.

    Raises:
        DetachedError: an interrupt; the run continues.
        CloudtuneError: the head died or never started; the message says how to continue.
        CleanupError: its cloud didn't confirm its termination.
    """
    following = Following(run)
    events = EventReports(run.folder, reporter, seen=seen)
    streams = [
        (_additions(run.folder / OUTPUT), reporter.on_head_output),
        (_additions(run.folder / ERRORS), reporter.on_head_errors),
    ]
    try:
        while True:
            code = following.look()
            for additions, on_text in streams:
                if text := next(additions):
                    on_text(text)
            events.report_new()
            if code is not None:
                break
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        raise _detachment(run) from None
    finally:
        reporter.on_run_end()
    following.end()
    reporter.on_head_end(run)
    return code


def _detachment(run: HeadRun) -> DetachedError:
    name = run.folder.name
    return DetachedError(
        f"Run {name} continues without this machine, controlled by head {run.head}, and bills "
        f"until it ends, within its limits{hourly_cost(run.folder)}. Follow it with `cloudtune "
        f"watch {name}`, stop it with `cloudtune stop {name}`.",
        name,
    )


def ask_to_stop(remote: Remote) -> None:
    """Ask a run's head to stop it gracefully.

    Raises:
        StorageError: its storage can't be written.
    """
    HeadStore(remote.storage).write(STOP, b"stop\n")


def _boot_log(store: HeadStore) -> list[str]:
    """Return the whole lines that a head has uploaded of its boot."""
    text = (store.read(BOOT) or b"").decode(errors="replace")
    return text.rpartition("\n")[0].splitlines()


def _refuse_dead(run: HeadRun, calls: Calls, store: HeadStore, state: State | None) -> None:
    """Refuse to continue if the head is gone, unless it may still start."""
    name = run.folder.name
    instances = calls.ours(launch.head_tag(name))
    if any(instance.billing for instance in instances):
        return
    young = time.time() - run.remote.asked_at < _BOOT_SECONDS
    if state is None and young and not any(instance.id == run.head for instance in instances):
        return  # the cloud doesn't list it yet
    console = (_boot_log(store) or telling_lines(calls.console(run.head)))[-5:]
    last_lines = "".join(f"\n  {line}" for line in console)
    raise CloudtuneError(
        f"head {run.head} of run {name} is gone{'; its last output:' if last_lines else ''}"
        f"{last_lines}\n"
        "Instances that it left end with their leases, within 15 minutes: see `cloudtune status "
        f"--region {run.remote.region}`. Resume the run with `cloudtune resume {name}`"
    )


def _calls(remote: Remote) -> Calls:
    provider = find_provider(remote.provider)
    (cloud,) = provider.clouds_in_use(home.home(), (), remote.region)
    return calls_to(cloud.endpoint)


def _additions(path: Path) -> Iterator[str]:
    """Yield what was added to a file since the last look, "" for nothing, without an end."""
    at = 0
    while True:
        data = b""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(at)
            data = file.read()
        at += len(data)
        yield data.decode(errors="replace")

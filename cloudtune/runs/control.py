"""The process that drives a run: one at a time, visible to others, ended in order by signals.

Beside a run's ledger:

    controller.json    the process that drives it, and its cloud; kept when the run is over
    controller.lock    locked while a process drives the run: the system releases it when that
                       process ends, however it ends
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from cloudtune.errors import UsageError
from cloudtune.file_locks import try_lock
from cloudtune.infra.processes import DamagedRecordError, ProcessGroup
from cloudtune.model.plain_text import clean

CONTROLLER = "controller.json"
LOCK = "controller.lock"
_OVER = "over"
# Seconds for which a process that only looks (`is_driven`) may hold the lock.
_GLANCE_SECONDS = 1.0


@contextlib.contextmanager
def driving(folder: Path, where: Mapping[str, str]) -> Iterator[None]:
    """Drive a run for as long as the context lasts; `where` is its provider and region.

    Raises:
        UsageError: another process drives it.
    """
    with (folder / LOCK).open("a") as lock:
        if not _acquire(lock) or _recorded_alive(folder):
            other = _driver(folder)
            process = "another process" if other is None else f"process {other.pid}"
            raise UsageError(
                f"run {folder.name} is driven by {process}; only a run whose process has died can "
                "be resumed"
            )
        driver = ProcessGroup.of(os.getpid())
        driver.record(folder / CONTROLLER, extra=where)
        try:
            yield
        finally:  # a notebook lives on, but no longer drives the run
            with contextlib.suppress(OSError):
                driver.record(folder / CONTROLLER, extra={**where, _OVER: "yes"})


def is_driven(folder: Path) -> bool:
    """Whether a process on this machine, or a head, drives a run, even with damaged records.

    Raises:
        StorageError: a head carries the run, and its storage can't be reached.
    """
    from cloudtune.infra.heads.remote_runs import is_carried  # noqa: PLC0415  storage takes long

    carried = is_carried(folder)
    if carried is not None:
        return carried
    try:
        with (folder / LOCK).open("r") as lock:
            if not try_lock(lock, shared=True):
                return True
    except OSError:  # a run of an older version, or one that was never driven
        pass
    return _recorded_alive(folder)


def read_place(folder: Path) -> tuple[str, str]:
    """Return the provider and the region of a run; "" if they aren't recorded."""
    from cloudtune.infra.heads.launch import Remote  # noqa: PLC0415  storage takes long

    remote = Remote.of(folder)
    if remote is not None:
        return remote.provider, remote.region
    try:
        recorded = ProcessGroup.recorded(folder / CONTROLLER)
    except DamagedRecordError:
        return "", ""
    where = {} if recorded is None else recorded[1]
    provider = where.get("provider")
    region = where.get("region")
    return (
        provider if isinstance(provider, str) else "",
        region if isinstance(region, str) else "",
    )


def _acquire(lock: IO[str]) -> bool:
    give_up = time.monotonic() + _GLANCE_SECONDS
    while not try_lock(lock):
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.05)
    return True


def _recorded_alive(folder: Path) -> bool:
    """Whether the recorded process lives and isn't this one, which knows what it drives."""
    driver = _driver(folder)
    return driver is not None and driver.pid != os.getpid() and driver.alive()


def _driver(folder: Path) -> ProcessGroup | None:
    try:
        recorded = ProcessGroup.recorded(folder / CONTROLLER)
    except DamagedRecordError:
        return None
    return None if recorded is None or _OVER in recorded[1] else recorded[0]


class Interruption:
    """Turns Ctrl-C and SIGTERM into an event for the policy, so that a run ends in order.

    They are held back until there is a world to pass them to, and while its instances are swept: a
    lost instance is worse than a few seconds of patience.

    SIGHUP arrives when the terminal goes away, for example with a broken connection. It ends
    nothing: the run continues without a terminal.
    """

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._signals = signals
        self._tell: Callable[[], None] | None = None
        self._pending = False

    @property
    def pending(self) -> bool:
        """Whether a signal has come."""
        return self._pending

    def install(self) -> None:
        """Install the signal handlers."""
        for number in self._signals:
            signal.signal(number, _unheard if number is signal.SIGHUP else self._heard)

    def tell(self, listener: Callable[[], None]) -> None:
        """Pass signals on to a listener, also if they have come already."""
        self._tell = listener
        if self._pending:
            listener()

    def _heard(self, *_: object) -> None:
        self._pending = True
        if self._tell is not None:
            self._tell()


def _unheard(*_: object) -> None:
    """Do nothing; unlike SIG_IGN it isn't passed on to the processes that are started."""


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handle the signals that end a run with the yielded object, in place of earlier handlers."""
    with _handlers((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) as taken:
        interruption = Interruption(taken)
        interruption.install()
        yield interruption


@contextlib.contextmanager
def outliving_its_terminal() -> Iterator[None]:
    """Ignore SIGHUP, also between a measurement and its run."""
    with _handlers((signal.SIGHUP,)) as taken:
        for number in taken:
            signal.signal(number, _unheard)
        yield


@contextlib.contextmanager
def _handlers(signals: Sequence[signal.Signals]) -> Iterator[tuple[signal.Signals, ...]]:
    """Yield those signals that aren't ignored (as under nohup); restore their handlers.

    Only the main thread may handle signals: in another, yield none.
    """
    if threading.current_thread() is not threading.main_thread():
        signals = ()
    kept = {number: signal.getsignal(number) for number in signals}
    kept = {number: handler for number, handler in kept.items() if handler is not signal.SIG_IGN}
    try:
        yield tuple(kept)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler or signal.SIG_DFL)


def to_stderr(text: str) -> None:
    """Print a line to standard error at once."""
    sys.stderr.write(f"{clean(text)}\n")
    sys.stderr.flush()

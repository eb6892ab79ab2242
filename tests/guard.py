"""No test leaves a thread or a process behind, and none keeps pytest from ending.

A plugin of pytest, which `conftest.py` loads. A test that leaves something fails with its names;
the processes among it are ended, by their ids. What is left at the end of all tests is reported
before pytest's closing line, which stays the last one: a thread that is still busy some seconds
later no longer holds the interpreter. A run beyond its limit is interrupted.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from cloudtune.infra.processes import is_running

PATIENCE: Final = 20.0
"""Seconds in which what is already ending may end."""

LAST_SECONDS: Final = 5.0
"""How long the interpreter may take to end after pytest has."""

LIMIT: Final = 75 * 60.0
"""Seconds for the whole run, where pytest-timeout's limits (pyproject.toml) can't end it."""

LIMIT_PATIENCE: Final = 60.0
"""Seconds in which an interrupted run must have ended in order."""

_ended_key: Final = pytest.StashKey[threading.Event]()
_before_key: Final = pytest.StashKey[set[psutil.Process]]()
_left_key: Final = pytest.StashKey[list[str]]()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread or a process, once its own fixtures are done.

    A plugin's own fixture is the first of those of a test and the last to end, and comes after
    those of a module or of the session: what they have started isn't the test's.
    """
    if "leaves_nothing" in request.fixturenames:
        yield
    else:
        yield from watched()


@pytest.fixture(scope="module")
def leaves_nothing() -> Iterator[None]:
    """Look at the end of a module instead: its fixtures start processes whenever they like."""
    yield from watched()


def watched() -> Iterator[None]:
    """Fail where threads or processes are left that weren't there; the processes are ended."""
    threads, processes = _threads(), _processes()
    yield
    left = _wait_for_none(lambda: _list_leftovers(_threads() - threads, _processes() - processes))
    if left:
        _end(_processes() - processes)
        pytest.fail("\n".join(["left behind:", *left]), pytrace=False)


def is_alive(pid: int) -> bool:
    try:
        return is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note what ran before any test, and watch over the run from now on."""
    session.config.stash[_before_key] = _processes()
    ended = session.config.stash[_ended_key] = threading.Event()
    watch = threading.Thread(target=_watch, args=(session, ended), name="guard", daemon=True)
    watch.start()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the processes that are left once all fixtures are done; they are a failure as well."""
    before = session.config.stash[_before_key]
    left = _wait_for_none(
        lambda: _list_leftovers(
            {_thread for _thread in _threads() if not _thread.daemon}, _processes() - before
        )
    )
    _end(_processes() - before)
    if (result := getattr(session.config, "workeroutput", None)) is not None:
        result["left"] = left  # a worker of pytest-xdist: who has the terminal hears of it
    left = session.config.stash[_left_key] = [*left, *_left_so_far(session.config)]
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take down what a worker of pytest-xdist has left."""
    left = getattr(node, "workeroutput", {}).get("left", [])
    node.config.stash[_left_key] = [*_left_so_far(node.config), *left]


def _left_so_far(config: pytest.Config) -> list[str]:
    return config.stash.get(_left_key, [])


class Running:
    """The tests that have begun and not ended; of all workers, where there are some."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._began.pop(nodeid, None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        now = time.monotonic()
        for nodeid, began in self._began.items():
            terminalreporter.line(f"interrupted after {now - began:.0f} s: {nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Running())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left := _left_so_far(config):
        terminalreporter.section("left behind by the tests", red=True)
        for line in left:
            terminalreporter.line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if ended := config.stash.get(_ended_key, None):
        ended.set()


def _watch(session: pytest.Session, ended: threading.Event) -> None:
    """Interrupt a run beyond its limit; let no thread and no exit handler hold its process."""
    if not ended.wait(LIMIT):
        os.kill(os.getpid(), signal.SIGINT)
        if not ended.wait(LIMIT_PATIENCE):
            os._exit(pytest.ExitCode.INTERRUPTED)
    threading.main_thread().join()  # as it can be once the interpreter begins to end
    time.sleep(LAST_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(session.exitstatus))


def _threads() -> set[threading.Thread]:
    """Return the threads that Python has started, but for the main one.

    A thread of a library's native code appears as a dummy as soon as it calls Python, and never
    goes away.
    """
    return {
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)
    }


def _processes() -> set[psutil.Process]:
    """Return the running descendants of this process.

    But for the tracker of Python's multiprocessing, which ends with this process.
    """
    tracker = getattr(resource_tracker, "_resource_tracker")._pid  # noqa: B009
    if _children() <= {tracker}:  # most tests have no other, and all of /proc takes milliseconds
        return set()
    return {
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid != tracker and _runs(process)
    }


def _children() -> set[int]:
    """Return the ids of the processes that threads of this one have started."""
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208  a third of the time
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            pids.update(map(int, Path("/proc/self/task", thread, "children").read_text().split()))
    return pids


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _list_leftovers(threads: set[threading.Thread], processes: set[psutil.Process]) -> list[str]:
    return sorted([*map(_thread_line, threads), *map(_process_line, processes)])


def _thread_line(thread: threading.Thread) -> str:
    kind = "daemon thread" if thread.daemon else "thread"
    stack = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))
    result = [item for item in stack if item.filename != threading.__file__] or stack
    return (
        f"{kind} {thread.name!r}, in {result[-1].name} ({result[-1].filename}:{result[-1].lineno})"
    )


def _process_line(process: psutil.Process) -> str:
    try:
        return f"process {process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"process {process.pid}"


def _wait_for_none(look: Callable[[], list[str]]) -> list[str]:
    give_up = time.monotonic() + PATIENCE
    while (left := look()) and time.monotonic() < give_up:
        time.sleep(0.02)
    return left


def _end(processes: set[psutil.Process]) -> None:
    for act in (psutil.Process.terminate, psutil.Process.kill):
        for process in filter(_runs, processes):
            act(process)
        _, left = psutil.wait_procs(processes, timeout=PATIENCE)
        processes = set(left)

"""`pytest --quick` (`make quick`): what can be checked in a few minutes, without other processes.

A plugin of pytest, which `conftest.py` loads. It leaves out whole runs, and what `not_quick.txt`
lists: slow tests, tests that start a process, and fixtures that do so for several tests. Properties
are tried with 10 examples instead of their own number.

`pytest --quick --find-slow [FILE...]` runs all of these too, and brings the list up to date for the
tests that it ran.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

EXAMPLES: Final = 10
WHOLE_RUNS: Final = (
    *("tests/architecture/test_checks.py", "tests/architecture/test_installed.py"),
    *("tests/e2e/", "tests/gpu/"),
)
"""Beginnings of the ids of tests that do little else but wait for processes."""
MARKERS: Final = ("cluster", "gpu")
LIST: Final = Path(__file__).with_name("not_quick.txt")
"""Ids of tests without their parameters, and names of fixtures as `fixture:name`."""
SLOW_SECONDS: Final = 1.0
"""CPU time of a test with all its parameters, from which on it is slow."""
STARTS: Final = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}
)
"""Python's audit events of a process that starts."""
_SETTINGS: Final = "_hypothesis_internal_use_settings"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="Run no slow tests and no processes.")
    parser.addoption("--find-slow", action="store_true", help="Update tests/not_quick.txt.")


def pytest_configure(config: pytest.Config) -> None:
    """Look for slow tests if asked to."""
    if config.getoption("--find-slow"):
        config.pluginmanager.register(_Finder())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out, and limit the examples of the others."""
    if not config.getoption("--quick"):
        return
    listed = set() if config.getoption("--find-slow") else set(LIST.read_text("utf-8").split())
    left_out = {
        item for item in items if _is_whole_run(item) or not listed.isdisjoint(_names(item))
    }
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)  # of a class
        own: settings | None = getattr(test, _SETTINGS, None)
        if own is not None and own.max_examples > EXAMPLES:
            setattr(test, _SETTINGS, settings(own, max_examples=EXAMPLES))


def _is_whole_run(item: pytest.Item) -> bool:
    has_marker = any(item.get_closest_marker(name) for name in MARKERS)
    return has_marker or item.nodeid.startswith(WHOLE_RUNS)


def _names(item: pytest.Item) -> Iterator[str]:
    yield _test(item)
    for fixture in getattr(item, "fixturenames", ()):
        yield f"fixture:{fixture}"


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


class _Finder:
    """Finds the tests that are slow or start a process, and the fixtures that start one."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started: set[str] = set()
        self._starter = ""  # who is to blame for a process that starts now
        sys.addaudithook(self._audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure one test, its fixtures included."""
        begun = time.process_time()
        self._starter = _test(item)
        try:
            return (yield)
        finally:
            self._starter = ""
            self._seconds[_test(item)] += time.process_time() - begun

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Blame a fixture of a module or a session for what it starts."""
        before = self._starter
        if fixturedef.scope != "function":
            self._starter = f"fixture:{fixturedef.argname}"
        try:
            return (yield)
        finally:
            self._starter = before

    def _audit(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if event in STARTS and self._starter:
            self._started.add(self._starter)

    def pytest_sessionfinish(self) -> None:
        """Write the list; what wasn't run keeps its line."""
        slow = {test for test, seconds in self._seconds.items() if seconds > SLOW_SECONDS}
        listed = set(LIST.read_text("utf-8").split()) if LIST.exists() else set()
        lines = sorted((listed - self._seconds.keys()) | slow | self._started)
        LIST.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

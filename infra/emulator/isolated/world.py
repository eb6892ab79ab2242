"""An isolated cloud from the outside: started, used from computers of its own, and ended.

Everything of it is in namespaces whose first process ends with the one that started it, and with
it all the others: nothing outlives it, and nothing of it is seen on this machine's network.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from cloudtune.errors import CloudtuneError
from cloudtune.infra.emulator.isolated import network
from cloudtune.infra.emulator.isolated.computer import RUNNING, folder_of
from cloudtune.infra.emulator.service import Emulator, find_emulator

if TYPE_CHECKING:
    from types import TracebackType

_READY = "ready"
_START_SECONDS = 60.0
_MODULE = "cloudtune.infra.emulator.isolated"


class World:
    """An isolated cloud whose files are in `home`; a context manager.

    `options` go to the emulator (`python -m cloudtune.infra.emulator.service`).

    Raises:
        CloudtuneError: this machine has no namespaces for us (`network.unavailable` says why), or
            the emulator doesn't come up.
    """

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home.absolute()
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> World:
        if why := network.unavailable():
            raise CloudtuneError(why)
        self.home.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [
                *(*network.cloud_command(), sys.executable, "-m", f"{_MODULE}.world"),
                *("--home", str(self.home), *self._options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != _READY:
            self._end()
            raise CloudtuneError(f"the isolated cloud didn't come up: see {self.home}/emulator.log")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def command(self, *words: str) -> list[str]:
        """Return what runs a command beside the emulator: in its namespaces, with its network."""
        assert self._process is not None
        (first,) = psutil.Process(self._process.pid).children()
        entered = ("--user", "--net", "--mount", "--pid", "--preserve-credentials")
        return ["nsenter", f"--target={first.pid}", *entered, *words]

    def on(self, computer: str, *words: str) -> list[str]:
        """Return what runs a command on a computer outside the cloud."""
        place = ("--home", str(self.home), "--name", computer)
        return self.command(sys.executable, "-m", f"{_MODULE}.computer", *place, "--", *words)

    def cut(self, computer: str) -> None:
        """End all that runs on a computer at once, as when somebody closes it for good."""
        for noted in (folder_of(self.home, computer) / RUNNING).iterdir():
            subprocess.run(self.command("kill", "-KILL", noted.name), check=True)

    def _end(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> int:
    """Be the first process of a cloud: start its emulator, and end it when stdin does."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}.world")
    parser.add_argument("--home", type=Path, required=True)
    given, options = parser.parse_known_args()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with (given.home / "emulator.log").open("ab") as log:
        command = [sys.executable, "-m", "cloudtune.infra.emulator.service", "--isolated"]
        emulator = subprocess.Popen(
            [*command, "--home", str(given.home), "--idle-exit", "86400", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    if _found(given.home, emulator) is None:
        return 1
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    sys.stdin.read()
    emulator.terminate()
    return emulator.wait()


def _found(home: Path, emulator: subprocess.Popen[bytes]) -> Emulator | None:
    give_up = time.monotonic() + _START_SECONDS
    while emulator.poll() is None and time.monotonic() < give_up:
        found = find_emulator(home)
        if found is not None:
            return found
        time.sleep(0.05)
    return None


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)  # as the first process of a pid namespace: all others end with it

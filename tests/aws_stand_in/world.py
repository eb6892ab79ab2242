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
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

import psutil

from cloudtune.errors import CloudtuneError
from cloudtune.infra.emulator.service import find_emulator
from tests.aws_stand_in import network
from tests.aws_stand_in.computer import RUNNING, computer_folder
from tests.aws_stand_in.names import LOG as NAMES_LOG

_READY = "ready"
_START_SECONDS = 60.0
_PARTS = [sys.executable, str(Path(__file__).with_name("__main__.py"))]


class World:
    """An isolated cloud whose files are in `home`; a context manager.

    `options` go to the emulator.

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
            [*network.CLOUD, *_PARTS, "cloud", "--home", str(self.home), *self._options],
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
        return self.command(*_PARTS, "computer", *place, "--", *words)

    def cut(self, computer: str) -> None:
        """End all that runs on a computer at once, as when somebody closes it for good."""
        for running in (computer_folder(self.home, computer) / RUNNING).iterdir():
            subprocess.run(self.command("kill", "-KILL", running.name), check=True)

    def network(self, computer: str, state: Literal["up", "down"]) -> None:
        """Take the network away from all that runs on a computer, or bring it back."""
        for running in (computer_folder(self.home, computer) / RUNNING).iterdir():
            inside = ("nsenter", f"--net=/proc/{running.name}/ns/net")
            asked = self.command(*inside, "ip", "-4", "-o", "addr", "show", "eth0")
            result = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            number = result.split("10.78.")[1].partition(".")[0]
            subprocess.run(self.command("ip", "link", "set", f"c{number}", state), check=True)

    def variables(self) -> set[str]:
        """Return the environment variables of all that runs on machines of the cloud."""
        assert self._process is not None
        first, *others = psutil.Process(self._process.pid).children(recursive=True)
        names: set[str] = set()
        for process in others:
            with contextlib.suppress(psutil.Error):
                if network.namespace(str(process.pid)) != network.namespace(str(first.pid)):
                    names.update(process.environ())
        return names

    def asked(self) -> dict[str, set[str]]:
        """Return which names of AWS each instance has asked for, by its address."""
        lines = (self.home / NAMES_LOG).read_text().splitlines()
        asked: dict[str, set[str]] = {}
        for address, name in map(str.split, lines):
            if address.startswith(network.INSTANCES):
                asked.setdefault(address, set()).add(name)
        return asked

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


def main(arguments: Sequence[str]) -> int:
    """Be the first process of a cloud: start its emulator, and end it when stdin does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    given, options = parser.parse_known_args(arguments)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with (given.home / "emulator.log").open("ab") as log:
        emulator = subprocess.Popen(
            [*_PARTS, "isolated", "--home", str(given.home), "--idle-exit", "86400", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    code = 1
    if _comes_up(given.home, emulator):
        print(_READY, flush=True)  # noqa: T201
        sys.stdin.read()
        emulator.terminate()
        code = emulator.wait()
    os._exit(code)  # as the first process of a pid namespace: all others end with it


def _comes_up(home: Path, emulator: subprocess.Popen[bytes]) -> bool:
    give_up = time.monotonic() + _START_SECONDS
    while emulator.poll() is None and time.monotonic() < give_up:
        if find_emulator(home) is not None:
            return True
        time.sleep(0.05)
    return False

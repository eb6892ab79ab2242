"""Processes that train or misbehave on a GPU: started together, spoken to by lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.results import PATH, python_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READY_SECONDS = 120.0
_END_SECONDS = 5.0


class GoneError(Exception):
    """A client has ended or says nothing; the text has its last words."""


class Client:
    """A Python process with an environment of its own, which says lines of JSON."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, PATH: python_path(), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, seconds: float = READY_SECONDS) -> dict[str, Any]:
        """Return its next line.

        Raises:
            GoneError: none came in that time.
        """
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            if readable:  # it has closed its output, and is about to end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_END_SECONDS)
            raise GoneError(self.last_words())
        words: dict[str, Any] = json.loads(line)
        return words

    def tell(self, line: str = "go") -> None:
        """Send it a line; one that is gone misses it."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def last_words(self) -> str:
        """Return how it ended, and the last line of its errors."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        code = self.process.poll()
        state = "runs, and says nothing" if code is None else f"exit code {code}"
        return f"{state}: {lines[-1][:300] if lines else 'no words'}"

    def end(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
        self.process.wait()
        self._errors.close()


def train_together(
    load: str, environments: Sequence[Mapping[str, str]], seconds: float, *, fused: int = 0
) -> list[dict[str, Any]]:
    """Return what clients did that train at the same time, one with each environment.

    With `fused` each client trains that number of trials as one model.

    Raises:
        GoneError: one of them ended.
    """
    arguments = ["-m", "benchmarks.gpu.loads", load, "--seconds", str(seconds)]
    arguments += ["--fused", str(fused)] if fused else []
    clients: list[Client] = []
    try:
        clients += [Client(arguments, environment) for environment in environments]
        for client in clients:
            client.hear()
        for client in clients:
            client.tell()
        return [client.hear(seconds + READY_SECONDS) for client in clients]
    finally:
        for client in clients:
            client.end()


def waited(condition: Any, seconds: float) -> bool:
    """Return whether something came to be so in time."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def short_folder() -> Path:
    """Return a new folder with a path short enough for sockets."""
    return Path(tempfile.mkdtemp(prefix="g", dir="/tmp"))

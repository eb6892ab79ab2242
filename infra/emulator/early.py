"""An emulator's process that starts while its run is still planned: it imports moto, and waits.

It serves and writes nothing until it is told to whom it belongs, and ends with the process that
started it. `python -m` is that process.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

_MODULE = "cloudtune.infra.emulator.early"


class EarlyEmulator:
    """A process that has imported what an emulator needs, or soon will have.

    `environment` is what it imports in.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # an interrupt is for the run, not for its emulator
        )

    def begin(self, options: Sequence[str], environment: Mapping[str, str], log: str) -> int | None:
        """Let it serve with the options of `service.main`; return the pid, None if it has died.

        The emulator is a child of init, and its output goes to the end of a file.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pid = ""
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps([list(options), dict(environment), log]))
            self._process.stdin.close()
            pid = self._process.stdout.read()
        self.end()
        return int(pid) if pid else None

    def end(self) -> None:
        """End the process, but not an emulator that has begun."""
        self._process.kill()
        with self._process:  # closes the pipes, and waits
            pass


_waiting: list[EarlyEmulator] = []


@contextlib.contextmanager
def started_early(environment: Mapping[str, str]) -> Iterator[None]:
    """Have a process ready for the next emulator that starts; unused, it ends with the context."""
    early = EarlyEmulator(environment)
    _waiting.append(early)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # taken
            _waiting.remove(early)
            early.end()


def take() -> EarlyEmulator | None:
    """Return a process that is ready, or soon will be, to be used once; None if there is none."""
    with contextlib.suppress(IndexError):
        return _waiting.pop()
    return None


def main() -> None:
    """Import, wait for the order, and leave it to a child of init; do nothing without an order."""
    from cloudtune.infra.emulator import server, service  # noqa: PLC0415 - loads moto: two seconds

    assert server
    order = sys.stdin.read()
    if not order:
        return
    options, environment, log = json.loads(order)
    pid = os.fork()
    if pid:
        sys.stdout.write(str(pid))
        return
    os.setsid()
    os.umask(0o077)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    service.main(options)


if __name__ == "__main__":
    main()

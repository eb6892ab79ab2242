"""An emulator's process that starts while its run is still planned: it imports moto, and waits.

It serves and writes nothing until it is told to whom it belongs, and ends with the process that
started it. Its own side is `service.serve_when_told`.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

# The option of `service` with which it waits.
OPTION = "--when-told"
_COMMAND = (sys.executable, "-m", "cloudtune.infra.emulator.service", OPTION)


class EarlyEmulator:
    """A process that has imported what an emulator needs, or soon will have.

    `environment` is what it imports in.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            _COMMAND,
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

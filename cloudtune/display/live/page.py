"""The live page of a run, from the process that reports the run."""

import json
import subprocess
import sys
from typing import Any

from cloudtune.errors import UsageError


class LivePage:
    """A process that serves the page of a run (`page_server`) until `end`.

    If the process that started it dies, it ends too: its standard input does.
    """

    def __init__(self, run: str, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cloudtune.display.live.page_server", run, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the run's
        )

    def address(self) -> str:
        """Return the address of the page once it is served. Call it once.

        Raises:
            UsageError: the port is taken.
        """
        started = self._read()
        if "url" not in started:
            raise UsageError(f"--html: no page: {started.get('error', 'it could not be served')}")
        return str(started["url"])

    def end(self) -> dict[str, str]:
        """Show the run's end on the page, end it, and return by what the run is to be extended.

        Its keys are options of `resume`: deadline and budget.
        """
        assert self._process.stdin is not None
        with self._process:
            self._process.stdin.close()
            extension = self._read()
        return {name: str(value) for name, value in extension.items()}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else {}

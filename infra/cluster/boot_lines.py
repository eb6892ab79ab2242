"""The boot output of instances, passed on while the run waits for them."""

import contextlib
import re
import threading
from collections.abc import Callable
from functools import partial

from cloudtune.infra.cluster.trial_session import Emit
from cloudtune.infra.node.boot import SCRIPT_SAYS
from cloudtune.model import events
from cloudtune.train.storage import StorageError, content

# Seconds between looks: an instance uploads its boot output every three seconds.
_LOOK_SECONDS = 4.0
# Maximum length of a line: pip can print a thousand characters.
_LETTERS = 200


class BootLines:
    """Reports what the first of the booting instances does; the others do the same.

    A line is reported once per run, whatever its figures. Logs are read in a separate thread, so
    that a stalling storage blocks nothing else.
    """

    def __init__(self, uri_of: Callable[[str], str], emit: Emit) -> None:
        """`uri_of(intent)` is where the instance of an intent uploads its boot output."""
        self._uri_of = uri_of
        self._emit = emit
        self._booting: dict[str, int] = {}  # lines read so far, by intent
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="boot-lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def begin(self, intent: str) -> None:
        """Start reading the log of a booting instance."""
        with self._lock:
            self._booting[intent] = 0

    def end(self, intent: str) -> None:
        """Stop reading it: the instance has joined, or is gone."""
        with self._lock:
            self._booting.pop(intent, None)

    def _read_on(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Report new lines in the log of the first booting instance."""
        with self._lock:
            intent = next(iter(self._booting), None)
        if intent is None:
            return
        lines: list[str] = []
        with contextlib.suppress(StorageError):  # nothing is uploaded yet
            text = content(self._uri_of(intent)).decode(errors="replace")
            lines = text.rpartition("\n")[0].splitlines()
        with self._lock:
            if intent not in self._booting:
                return
            new = lines[self._booting[intent] :]
            self._booting[intent] = len(lines)
        for line in new:
            match = SCRIPT_SAYS.match(line)
            kind = re.sub(r"\d+", "", line)
            if match and kind not in self._reported:
                self._reported.add(kind)
                text = line[match.end() :][:_LETTERS]
                self._emit(partial(events.InstanceBooting, intent=intent, line=text))

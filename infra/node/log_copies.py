"""Copies of the output of workers, kept beside the checkpoints: an instance loses its disk."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudtune.infra.processes import replace_file
from cloudtune.train.storage import filesystem, write_file

# The maximum size of a copy, with the beginning and the end of the log.
MOST_BYTES = 1024 * 1024
_FIRST_BYTES = 128 * 1024
_LOOK_SECONDS = 1.0
_NEAR_SECONDS = 1.0
_FAR_SECONDS = 15.0
_ZYGOTE = "zygote.log"


class LogCopies:
    """Copies the logs in a folder to a storage as they grow, in its own thread.

    A growing log is copied every second to a folder, and every 15 s to another storage, where each
    request costs money. A failing storage only costs copies.

    Args:
        folder: the node's logs, <session>.<rank>.log, and zygote.log.
        uri: the destination, under the same names; zygote.log as nodes/<node>.log.
        node: the name of the node.
        hide: returns output without what no copy may have.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        node: str,
        *,
        hide: Callable[[bytes], bytes] = lambda output: output,
    ) -> None:
        self._hide = hide
        self._folder = folder
        self._uri = uri
        self._node = node
        self._near = "://" not in uri
        self._copied: dict[str, tuple[int, float]] = {}  # the bytes of each log, and when
        self._place: tuple[Any, str] | None = None
        self._failed = False
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._copying = threading.Lock()
        self._thread = threading.Thread(target=self._go_on, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Copy new output at once: a session has ended, or its node is about to."""
        self._wanted.set()

    def close(self, seconds: float = 1.0) -> None:
        """Copy new output, and end, without waiting longer than `seconds` for the storage."""
        self._closing.set()
        self._wanted.set()
        self._thread.join(seconds)

    def copy(self, *, at_once: bool = False) -> None:
        """Copy the logs that have grown and are due; with `at_once`, all that have grown."""
        pause = _NEAR_SECONDS if self._near else _FAR_SECONDS
        with self._copying, contextlib.suppress(FileNotFoundError):
            for path in sorted(self._folder.glob("*.log")):
                size = path.stat().st_size
                copied, at = self._copied.get(path.name, (0, -math.inf))
                if size != copied and (at_once or time.monotonic() >= at + pause):
                    self._keep(path, size)

    def _keep(self, path: Path, size: int) -> None:
        name = f"nodes/{self._node}.log" if path.name == _ZYGOTE else path.name
        at = time.monotonic()
        self._copied[path.name] = size, at
        try:
            data = self._hide(shorten(path))
            if self._near:
                replace_file(Path(self._uri, name), data)  # readers never see half of it
            else:
                self._place = self._place or filesystem(self._uri)
                fs, root = self._place
                write_file(fs, f"{root}/{name}", data)
        except (OSError, ValueError) as error:  # pyarrow raises these two
            self._copied[path.name] = -1, at  # retried when it is due
            if not self._failed:
                self._failed = True
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(f"logs are not copied to {self._uri}: {error}\n")
        else:
            self._failed = False

    def _go_on(self) -> None:
        while not self._closing.is_set():
            hurried = self._wanted.wait(_LOOK_SECONDS)
            self._wanted.clear()
            self.copy(at_once=hurried)
        self.copy(at_once=True)


def shorten(path: Path, most: int = MOST_BYTES, first: int = _FIRST_BYTES) -> bytes:
    """Return a log; if it has more than `most` bytes, its beginning and its end.

    A note says how many bytes are left out between them.
    """
    with path.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(0)
        if size <= most:
            return log.read(most)
        begin = log.read(first)
        log.seek(size - (most - first))
        end = log.read(most - first)
    begin = begin[: begin.rfind(b"\n") + 1] or begin
    end = end[end.find(b"\n") + 1 :] or end
    left_out = size - len(begin) - len(end)
    return begin + f"[cloudtune: {left_out} bytes are left out here]\n".encode() + end

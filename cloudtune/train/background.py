"""Work that goes on in a thread of its own while its owner does something else, one at a time."""

import threading
from collections.abc import Callable


class Deliveries:
    """Does one piece of work at a time; begun by one thread, waited for by any."""

    def __init__(self) -> None:
        self._under_way: threading.Thread | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Do this once what was begun before is done; returns as soon as it has begun.

        `work` raises nothing. A process that ends doesn't wait for it: call `wait` before.
        """
        self.wait()
        thread = threading.Thread(target=work, name="deliveries", daemon=True)
        thread.start()
        self._under_way = thread  # not before: only a started thread can be joined

    def wait(self, seconds: float | None = None) -> None:
        """Wait up to `seconds` until what was begun is done."""
        if self._under_way is not None:
            self._under_way.join(seconds)

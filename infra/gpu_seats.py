"""Which GPUs of one machine each worker gets: whole ones, or a share of one.

The policy says how much of a machine a trial has, and which shares sit on one GPU; the machine
decides which of its GPUs that is.
"""

from __future__ import annotations

_EPSILON = 1e-6  # 1/3 + 1/3 + 1/3 fit on one GPU


def shares(gpus: float) -> tuple[float, ...]:
    """Return the share of a GPU that each worker of a slice has: whole GPUs are one each."""
    return (min(1.0, gpus),) * max(1, round(gpus))


class GpuSeats:
    """The GPUs of a machine, by index, and the sessions that sit on them."""

    def __init__(self, gpus: int) -> None:
        self._gpus = range(gpus)
        self._taken: dict[str, tuple[tuple[int, ...], float]] = {}
        self._shared: dict[int, tuple[int, list[str]]] = {}

    def take(self, session: str, gpus: float, number: int = -1) -> tuple[int, ...] | None:
        """Seat a session's workers; return the GPU of each, or None where there is no room now.

        Whole GPUs are the lowest free ones. Shares of the same `number` sit on the same GPU, which
        is theirs alone until all of them have gone; no GPU ever holds more than one whole.
        """
        each = shares(gpus)
        chosen = self._for_share(number, each[0]) if each[0] < 1.0 else self.free()[: len(each)]
        if len(chosen) < len(each):
            return None
        self._taken[session] = (tuple(chosen), each[0])
        if each[0] < 1.0:
            self._shared.setdefault(number, (chosen[0], []))[1].append(session)
        return tuple(chosen)

    def give(self, session: str) -> None:
        """Make the seats of a session free; of one that has none as well."""
        self._taken.pop(session, None)
        for number, (_, sessions) in list(self._shared.items()):
            if session in sessions:
                sessions.remove(session)
            if not sessions:
                del self._shared[number]

    def free(self) -> list[int]:
        """Return the GPUs on which nothing sits."""
        busy = {gpu for gpus, _ in self._taken.values() for gpu in gpus}
        return [gpu for gpu in self._gpus if gpu not in busy]

    def _for_share(self, number: int, share: float) -> list[int]:
        if number not in self._shared:
            return self.free()[:1]
        gpu, sessions = self._shared[number]
        used = sum([self._taken[session][1] for session in sessions])
        return [gpu] if used + share <= 1 + _EPSILON else []

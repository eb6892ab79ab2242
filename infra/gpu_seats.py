"""Which GPUs of one machine each worker gets: whole ones, or a share of one.

The policy knows how much of a machine a trial has; the machine decides which of its GPUs that is.
"""

from __future__ import annotations

import math

_EPSILON = 1e-6  # 1/3 + 1/3 + 1/3 fit on one GPU


def shares(gpus: float) -> tuple[float, ...]:
    """Return the share of a GPU that each worker of a slice has: whole GPUs are one each."""
    return (min(1.0, gpus),) * max(1, round(gpus))


class GpuSeats:
    """The GPUs of a machine, by index, and the sessions that sit on them."""

    def __init__(self, gpus: int) -> None:
        self._free = [1.0] * gpus
        self._taken: dict[str, list[tuple[int, float]]] = {}

    def take(self, session: str, gpus: float) -> tuple[int, ...] | None:
        """Seat a session's workers; return the GPU of each, or None where there is no room now.

        Whole GPUs are the lowest free ones. A share goes on the fullest GPU that has room for it,
        so that another is opened only where none has, and no GPU ever holds more than one whole.
        """
        share = shares(gpus)[0]
        if share < 1.0:
            found = self._fullest(share)
            chosen = [] if found is None else [found]
        else:
            chosen = self.free()[: len(shares(gpus))]
        if len(chosen) < len(shares(gpus)):
            return None
        self._taken[session] = [(gpu, share) for gpu in chosen]
        for gpu in chosen:
            self._free[gpu] -= share
        return tuple(chosen)

    def give(self, session: str) -> None:
        """Make the seats of a session free; of one that has none as well."""
        for gpu, share in self._taken.pop(session, []):
            self._free[gpu] += share
            if math.isclose(self._free[gpu], 1.0, abs_tol=_EPSILON):
                self._free[gpu] = 1.0

    def free(self) -> list[int]:
        """Return the GPUs on which nothing sits."""
        return [gpu for gpu, free in enumerate(self._free) if free == 1.0]

    def _fullest(self, share: float) -> int | None:
        room = [gpu for gpu, free in enumerate(self._free) if free >= share - _EPSILON]
        return min(room, key=lambda gpu: (self._free[gpu], gpu), default=None)

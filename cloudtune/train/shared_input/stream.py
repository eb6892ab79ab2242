"""What a loading process loads next, how long it keeps it, and which readers it waits for.

Batches are numbered across epochs. A reader requests one at a time; the stream runs a few ahead of
the first reader, and keeps the last ones for those behind. It waits for those behind, at most a
tenth of an epoch in each epoch; then it continues without them, and their later requests are loaded
elsewhere. It reads no clock: callers pass the time.
"""

import math
from dataclasses import dataclass, field
from typing import Final

# Batches loaded ahead of requests, per loader.
AHEAD: Final = 4
# The maximum number of kept batches, and their memory; those loaded ahead are always kept.
KEPT = 32
KEPT_BYTES = 512 * 2**20
# Loading begins this long after the first request: others may want an earlier batch.
GATHER_SECONDS = 0.1
# The share of an epoch for which to wait for others in it, and its bounds; the least in the first.
WAIT_SHARE = 0.1
WAIT_SECONDS = (0.1, 5.0)


@dataclass(eq=False)
class StreamSeat:
    """A reader.

    `wants` is the batch that it has requested and not received; `next` the one that it will want,
    None if it reads nothing now; `late`: the stream doesn't wait for it.
    """

    wants: int | None = None
    next: int | None = None
    late: bool = False


@dataclass(eq=False)
class Stream:
    """One pass over the epochs that readers request.

    Args:
        length: the number of batches of an epoch.
        loaders: the number of loaders at once.
    """

    length: int
    loaders: int = 1
    seats: list[StreamSeat] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    """The batches that are loaded and kept, with their bytes."""
    loading: set[int] = field(default_factory=set)
    _epochs: list[int] = field(default_factory=list)  # those of the stream, in its order
    _floor: int = 0  # earlier batches are gone
    _began: float = math.inf
    _epoch_began: float = 0.0
    _epoch_seconds: float | None = None
    _held: float = 0.0  # seconds of this epoch spent waiting for readers
    _held_since: float | None = None

    def ask(self, seat: StreamSeat, epoch: int, number: int, now: float) -> bool:
        """Record a reader's request; False if the batch must come from elsewhere."""
        at = self._index(seat, epoch, number)
        if at is None:
            seat.wants = seat.next = None
            return False
        if seat not in self.seats:
            self.seats.append(seat)
        self._began = min(self._began, now)
        seat.wants = at
        seat.next = at
        seat.late = False
        return True

    def give(self, seat: StreamSeat) -> int | None:
        """Return the batch that a reader waits for, if it is there, and hand it over."""
        if seat.wants not in self.sizes:
            return None
        at = seat.wants
        seat.wants = None
        seat.next = at + 1
        return at

    def rest(self, seat: StreamSeat) -> None:
        """Record that a reader wants no more of this epoch."""
        if seat.next is not None:
            seat.wants = None
            seat.next = -(-seat.next // self.length) * self.length

    def leave(self, seat: StreamSeat) -> None:
        if seat in self.seats:
            self.seats.remove(seat)

    def place(self, at: int) -> tuple[int, int]:
        """Return the epoch of a batch, and its number in it."""
        return self._epochs[at // self.length], at % self.length

    def due(self, now: float) -> tuple[int | None, float | None]:
        """Return the batch to load now; or None and the seconds until the next call."""
        awaited = self._awaited
        if awaited and now < self._began + GATHER_SECONDS:
            return None, self._began + GATHER_SECONDS - now
        at = self._missing(awaited)
        room = min(map(_next, awaited), default=0) + self._kept
        if at is None or at < room:
            self._wait_no_more(now)
            return at, None
        behind = [seat for seat in awaited if seat.wants is None and _next(seat) + self._kept <= at]
        if not behind or all(seat.wants is None for seat in awaited):
            self._wait_no_more(now)
            return None, None
        if self._held_since is None:
            self._held_since = now
        least, most = WAIT_SECONDS
        patience = min(most, max(least, WAIT_SHARE * (self._epoch_seconds or 0.0)))
        left = patience - self._held - (now - self._held_since)
        if left > 0:
            return None, left
        for seat in behind:
            seat.late = True
        return self.due(now)

    def note_begin(self, at: int, now: float) -> None:
        if at % self.length == 0 and at >= self.length:
            self._epoch_seconds = now - self._epoch_began
            self._held = 0.0
        if at % self.length == 0:
            self._epoch_began = now
        self.loading.add(at)

    def note_load(self, at: int, size: int) -> list[int]:
        """Record a loaded batch; return those to drop."""
        self.loading.discard(at)
        self.sizes[at] = size
        self._floor = max(self._floor, max(self.sizes) + 1 - self._kept)
        self._floor = min([self._floor, *map(_next, self._awaited)])
        old = [batch for batch in self.sizes if batch < self._floor]
        for batch in old:
            del self.sizes[batch]
        return old

    def _index(self, seat: StreamSeat, epoch: int, number: int) -> int | None:
        """Return the batch's number in the stream; None if it isn't in it, or too far ahead."""
        if not self._epochs:
            self._epochs.append(epoch)
            self._floor = max(0, number + 1 - self._kept)
            return number
        if epoch in self._epochs:
            at = self._epochs.index(epoch) * self.length + number
            first = max([self._floor, *self.sizes, *map(_next, self._awaited)])
            return at if self._floor <= at <= first + self._kept else None
        start = len(self._epochs) * self.length
        if number or any(
            _next(other) + self._kept < start for other in self._awaited if other is not seat
        ):
            return None
        self._epochs.append(epoch)
        return start

    @property
    def _awaited(self) -> list[StreamSeat]:
        return [seat for seat in self.seats if seat.next is not None and not seat.late]

    @property
    def _ahead(self) -> int:
        return AHEAD * self.loaders

    @property
    def _kept(self) -> int:
        most = max(self.sizes.values(), default=1)
        return max(self._ahead + 1, min(KEPT, KEPT_BYTES // max(1, most)))

    def _missing(self, awaited: list[StreamSeat]) -> int | None:
        """Return the first missing batch that a reader wants or soon will."""
        if not awaited:
            return None
        first = max(self._floor, min(map(_next, awaited)))
        last = max(map(_next, awaited)) + self._ahead
        wanted_range = range(first, min(last + 1, len(self._epochs) * self.length))
        present = self.sizes.keys() | self.loading
        return next((at for at in wanted_range if at not in present), None)

    def _wait_no_more(self, now: float) -> None:
        if self._held_since is not None:
            self._held += now - self._held_since
            self._held_since = None


def _next(seat: StreamSeat) -> int:
    assert seat.next is not None
    return seat.next

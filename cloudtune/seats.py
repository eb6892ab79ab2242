"""Which GPUs are free on the instances that take trials, kept up to date slice by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from cloudtune.placement import Room, place
from cloudtune.trial import Slice

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from cloudtune.catalog import Offer
    from cloudtune.trial import Width

    Seat: TypeAlias = tuple[Offer, tuple[Slice, ...]]


class Seats:
    """The free GPUs of every instance, by offer; slices of instances that have gone are ignored."""

    def __init__(self, widths: Mapping[Offer, Container[Width]] | None = None) -> None:
        """`widths` are those that can be had on an offer; any, where it isn't given."""
        self._widths = widths
        self.free: dict[Offer, dict[str, Room]] = {}
        self.offers: dict[str, Offer] = {}  # by instance

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(offer.gpus for offer in self.offers.values())

    @property
    def free_gpus(self) -> float:
        """Those on which nothing sits, and the rest of those that are shared."""
        return sum([room.free for free in self.free.values() for room in free.values()])

    def follow(self, usable: Mapping[str, Offer], taken: Iterable[Slice]) -> None:
        """Take note of which instances there are now, and what is taken on new ones."""
        if usable == self.offers:
            return
        pieces = tuple(taken)
        for instance in self.offers.keys() - usable.keys():
            del self.free[self.offers[instance]][instance]
        for instance, offer in usable.items():
            if instance not in self.offers:
                room = self.free.setdefault(offer, {})[instance] = Room(offer.gpus)
                for piece in pieces:
                    if piece.instance == instance:
                        room.take(piece)
        self.offers = dict(usable)

    def give(self, pieces: Iterable[Slice]) -> None:
        """Make slices free."""
        for piece in pieces:
            if piece.instance in self.offers:
                self.free[self.offers[piece.instance]][piece.instance].give(piece)

    def take(self, pieces: Iterable[Slice]) -> None:
        """Have something sit on slices."""
        for piece in pieces:
            if piece.instance in self.offers:
                self.free[self.offers[piece.instance]][piece.instance].take(piece)

    def find(self, width: Width, first: Offer | None = None) -> Seat | None:
        """Return a seat of that width, on instances of `first` if there is one; it stays free."""
        offers = self.free if first is None else (first, *(o for o in self.free if o != first))
        for offer in offers:
            if self._widths is not None and width not in self._widths[offer]:
                continue
            found = place(width, offer.gpus, self.free.get(offer, {}))
            if found is not None:
                return offer, found
        return None

    def move(
        self, width: Width, offer: Offer, placed: tuple[Slice, ...]
    ) -> tuple[Seat, tuple[Slice, ...]] | None:
        """Return a seat of another width for what sits at `placed`, and what it needs besides.

        Its own slices count as free for it. What it needs besides is taken on return.
        """
        self.give(placed)
        seat = self.find(width, offer)
        self.take(placed)
        if seat is None:
            return None
        rooms, own = self.free[seat[0]], {piece.instance: piece for piece in placed}
        needed: list[Slice] = []
        for piece in seat[1]:
            # One on several instances finds them empty, so no GPU of them may go to others.
            wanted = Slice(piece.instance, float(seat[0].gpus)) if len(seat[1]) > 1 else piece
            mine = own.get(piece.instance)
            needed += (wanted,) if mine is None else rooms[piece.instance].besides(mine, wanted)
        self.take(needed)
        return seat, tuple(needed)

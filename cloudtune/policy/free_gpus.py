"""Which GPUs are free on the instances that take trials, updated slice by slice."""

from collections.abc import Collection, Container, Iterable, Mapping
from typing import TypeAlias

from cloudtune.model.catalog import Offer
from cloudtune.model.placement import Room, place
from cloudtune.model.trial import Slice, Width

Placement: TypeAlias = tuple[Offer, tuple[Slice, ...]]


class FreeGpus:
    """The free GPUs of every instance, by offer; slices of instances that are gone are ignored.

    `widths` are the allowed ones by offer; any width for an offer that isn't in it. Instances
    `at_risk` are used last.
    """

    def __init__(self, widths: Mapping[Offer, Container[Width]] | None = None) -> None:
        self._widths = widths
        self.rooms: dict[Offer, dict[str, Room]] = {}
        self.offers: dict[str, Offer] = {}  # by instance
        self.at_risk: Collection[str] = ()

    def limit(self, widths: Mapping[Offer, Container[Width]]) -> None:
        self._widths = widths

    @property
    def gpus(self) -> int:
        return sum(offer.gpus for offer in self.offers.values())

    @property
    def free_gpus(self) -> float:
        """The empty GPUs, plus the free shares of GPUs partly in use."""
        return sum([room.free for rooms in self.rooms.values() for room in rooms.values()])

    def follow(self, usable: Mapping[str, Offer], taken: Iterable[Slice]) -> None:
        """Record which instances take trials now, and what is in use on new ones."""
        if usable == self.offers:
            return
        pieces = tuple(taken)
        for instance in self.offers.keys() - usable.keys():
            del self.rooms[self.offers[instance]][instance]
        for instance, offer in usable.items():
            if instance not in self.offers:
                room = self.rooms.setdefault(offer, {})[instance] = Room(offer.gpus)
                for piece in pieces:
                    if piece.instance == instance:
                        room.take(piece)
        self.offers = dict(usable)

    def stays(self, pieces: Iterable[Slice]) -> bool:
        """Whether these slices may stay in use: none is on an instance that is about to go."""
        return all(piece.instance in self.offers for piece in pieces)

    def give(self, pieces: Iterable[Slice]) -> None:
        for piece in pieces:
            if piece.instance in self.offers:
                self.rooms[self.offers[piece.instance]][piece.instance].give(piece)

    def take(self, pieces: Iterable[Slice]) -> None:
        """Mark slices as in use."""
        for piece in pieces:
            if piece.instance in self.offers:
                self.rooms[self.offers[piece.instance]][piece.instance].take(piece)

    def find(
        self, width: Width, first: Offer | None = None, *, only: Offer | None = None
    ) -> Placement | None:
        """Return where a trial of that width fits, on instances of `first` if it fits there.

        With `only`, on instances of that offer alone, at any width. Takes no GPU.
        """
        safe = self._find(width, first, only, self.at_risk) if self.at_risk else None
        return safe or self._find(width, first, only, ())

    def _find(
        self, width: Width, first: Offer | None, only: Offer | None, without: Collection[str]
    ) -> Placement | None:
        offers = self.rooms if first is None else (first, *(o for o in self.rooms if o != first))
        allowed = self._widths if only is None else None
        for offer in offers if only is None else (only,):
            if allowed is not None and width not in allowed.get(offer, ()):
                continue
            rooms: Mapping[str, Room] = self.rooms.get(offer, {})
            if without:
                rooms = {name: room for name, room in rooms.items() if name not in without}
            slices = place(width, offer.gpus, rooms)
            if slices is not None:
                return offer, slices
        return None

    def risks(self, pieces: Iterable[Slice]) -> bool:
        """Whether any of these slices is on an instance that is at risk."""
        return any(piece.instance in self.at_risk for piece in pieces)

    def could_hold(self, width: Width) -> bool:
        """Whether a trial of that width would fit if all present instances were empty."""
        return any(
            width <= offer.gpus * len(rooms)
            and (self._widths is None or width in self._widths.get(offer, ()))
            for offer, rooms in self.rooms.items()
        )

    def move(
        self, width: Width, offer: Offer, placed: tuple[Slice, ...]
    ) -> tuple[Placement, tuple[Slice, ...]] | None:
        """Return where the trial at `placed` fits at another width, and the extra slices it needs.

        The slices in `placed` count as free for the search, and stay in use. The extra slices are
        in use when this returns, so that no other trial gets them before this one has moved.
        """
        self.give(placed)
        placement = self.find(width, offer)
        self.take(placed)
        if placement is None:
            return None
        rooms = self.rooms[placement[0]]
        own = {piece.instance: piece for piece in placed}
        needed: list[Slice] = []
        for piece in placement[1]:
            # A trial on several instances needs them empty, so none of their GPUs may go to others.
            wide = len(placement[1]) > 1
            wanted = Slice(piece.instance, float(placement[0].gpus)) if wide else piece
            mine = own.get(piece.instance)
            needed += (wanted,) if mine is None else rooms[piece.instance].besides(mine, wanted)
        self.take(needed)
        return placement, tuple(needed)

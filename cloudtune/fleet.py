"""The instances of a run as the policy knows them, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.catalog import Offer


@dataclass
class Rented:
    """One launch intent, from the request until the cloud says that the instance is going."""

    intent: str
    offer: Offer
    requested_at: float
    instance: str | None = None
    launched_at: float | None = None
    joined: bool = False
    surplus: bool = False
    released: bool = False
    released_at: float = 0.0
    gone_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether nothing of it can bill any more."""
        return self.gone_at is not None

    @property
    def launched(self) -> bool:
        """Whether it was launched, or may have been: a request that isn't answered yet may be."""
        return self.launched_at is not None or not self.over

    @property
    def began_at(self) -> float:
        """When it was launched; before that is known, when it was requested."""
        return self.requested_at if self.launched_at is None else self.launched_at

    @property
    def usable(self) -> bool:
        """Whether trials may be started on it."""
        return self.joined and not (self.surplus or self.released or self.over)

    def dollars(self, at: float) -> float:
        """Return what it has cost if it is given back at that time.

        A request that isn't answered yet counts from when it was made: it may exist already.
        """
        if not self.launched:
            return 0.0
        end = at if self.gone_at is None else self.gone_at
        return self.offer.charge(max(0.0, end - self.began_at))


@dataclass
class Trouble:
    """What has gone wrong with launches of one offer.

    Those of one round are one answer: what comes before `relaunch_at` isn't counted again, and
    until then the offer isn't asked for. After a refusal `for_good` it never is.
    """

    refusals: int = 0
    no_shows: int = 0
    relaunch_at: float = 0.0
    for_good: bool = False

    def note(self, at: float, pause: float, *, refused: bool) -> None:
        """Take note of a refusal, or of an instance that ended before it joined."""
        if at >= self.relaunch_at:
            self.refusals += refused
            self.no_shows += not refused
        self.relaunch_at = at + pause

    def used_up(self, rounds: int) -> bool:
        """Whether asking for it again is pointless."""
        return self.for_good or max(self.refusals, self.no_shows) >= rounds


@dataclass
class FleetBook:
    """Every intent of a run, in the order of the requests."""

    rented: dict[str, Rented] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Rented]:
        return iter(self.rented.values())

    def __getitem__(self, intent: str) -> Rented:
        return self.rented[intent]

    def request(self, offer: Offer, at: float) -> Rented:
        """Return a new intent, with an id of its own."""
        rented = Rented(f"i{len(self.rented):03d}", offer, at)
        self.rented[rented.intent] = rented
        return rented

    def of(self, instance: str) -> Rented:
        """Return what is known of an instance.

        Raises:
            KeyError: it is none of this run's.
        """
        for rented in self:
            if rented.instance == instance:
                return rented
        raise KeyError(instance)

    def alive(self) -> list[Rented]:
        """Return what exists or may exist, and bills."""
        return [r for r in self if not r.over]

    def wanted(self) -> list[Rented]:
        """Return what is alive and is to stay."""
        return [r for r in self if not (r.over or r.surplus or r.released)]

    def held(self) -> Counter[Offer]:
        """Return how many are to stay, by offer."""
        return Counter(r.offer for r in self.wanted())

    def usable(self) -> list[Rented]:
        """Return what trials may be started on."""
        return [r for r in self if r.usable]

    @property
    def launches(self) -> int:
        """How many were launched, or may have been."""
        return sum(r.launched for r in self)

    def dollars(self, at: float) -> float:
        """Return the bill for all instances if everything is given back at that time."""
        return sum(r.dollars(at) for r in self)

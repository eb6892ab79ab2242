"""The instances of a run as the policy knows them, and what they cost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cloudtune.model.catalog import Offer


@dataclass
class Rented:
    """One launch intent, from the request until the cloud says that the instance is going.

    `zone` is where the instance was requested: the offer's zone, or one picked for an offer without
    a zone; "" left it to the cloud. `surplus`: it should go. `being_lost`: it goes because the
    cloud takes it, from the notice on, or because it never worked; `late` if it didn't join in its
    time. `at_risk`: the cloud may soon take it. It isn't returned before `kept_until` (run
    seconds), as a person wants to look at it; 0 if nobody does. `last_words` is the end of its
    console, if it never joined.
    """

    intent: str
    offer: Offer
    requested_at: float
    zone: str = ""
    instance: str | None = None
    launched_at: float | None = None
    joined: bool = False
    surplus: bool = False
    being_lost: bool = False
    late: bool = False
    at_risk: bool = False
    kept_until: float = 0.0
    released: bool = False
    released_at: float = 0.0
    gone_at: float | None = None
    last_words: str = ""
    book: "FleetBook | None" = field(default=None, repr=False, compare=False)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self.book is not None:
            self.book.forget(self)

    @property
    def over(self) -> bool:
        """Whether the instance can't bill any more."""
        return self.gone_at is not None

    @property
    def launched(self) -> bool:
        """Whether the instance was launched, or may have been: its request is unanswered."""
        return self.launched_at is not None or not self.over

    @property
    def began_at(self) -> float:
        """When the instance was launched; before that is known, when it was requested."""
        return self.requested_at if self.launched_at is None else self.launched_at

    @property
    def usable(self) -> bool:
        """Whether trials may be started on the instance."""
        return self.joined and not (self.surplus or self.released or self.over)

    def dollars(self, at: float) -> float:
        """Return the dollars that the instance has cost if it is returned at that time.

        An unanswered request counts from when it was made: the instance may exist already.
        """
        if not self.launched:
            return 0.0
        end = at if self.gone_at is None else self.gone_at
        return self.offer.charge(max(0.0, end - self.began_at))


@dataclass
class LaunchBackoff:
    """The failed launches of one offer, and when it may be requested again.

    Refusals come in rounds: `round` has the zones that have refused in the present one, and once
    every zone has, that counts as one of `refusals`. Until `relaunch_at` (run seconds) the offer
    isn't requested, and further failures don't count: they answer the same requests. `avoided` says
    until when each zone is left alone. `empty_since` is when the cloud first had no capacity, if it
    has had none since, `empty_at` when it last said so. `no_shows` counts instances that were
    launched and never joined. After a refusal `for_good` the offer is never requested again.
    """

    refusals: int = 0
    no_shows: int = 0
    relaunch_at: float = 0.0
    for_good: bool = False
    empty_since: float | None = None
    empty_at: float = 0.0
    avoided: dict[str, float] = field(default_factory=dict)
    round: set[str] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether the cloud had no capacity when it was last asked."""
        return self.empty_since is not None

    def refuse(self, zones: Sequence[str], among: Sequence[str], at: float, pause: float) -> None:
        """Record a refusal in `zones`; the offer is sold in all of `among`.

        `at` is in run seconds; these zones are left alone for `pause` seconds.
        """
        for zone in zones:
            self.avoided[zone] = at + pause
        self.round.update(zones)
        if self.round.issuperset(among):
            self.round.clear()
            self.refusals += at >= self.relaunch_at
        soonest = min(self.avoided.get(zone, 0.0) for zone in among)
        self.relaunch_at = max(self.relaunch_at, soonest)

    def note_empty(self, at: float) -> None:
        """Record that there was no capacity, if so in all zones."""
        if at < self.relaunch_at:
            self.empty_since = at if self.empty_since is None else self.empty_since
            self.empty_at = at

    def note_launch(self) -> None:
        """Record that the cloud has the offer."""
        self.refusals = 0
        self.empty_since = None

    def zone(self, among: Sequence[str]) -> str:
        """Return the zone to ask next: one that hasn't refused, or else did longest ago."""
        return min(among, key=lambda zone: self.avoided.get(zone, 0.0))

    def note_end(self, at: float, pause: float) -> None:
        """Record an instance that ended before it joined."""
        self.no_shows += at >= self.relaunch_at
        self.relaunch_at = at + pause

    def note_no_show(self, zone: str, among: Sequence[str], at: float, pause: float) -> None:
        """Record an instance that never joined; after the second, its zone is left alone.

        Where no zone remains, that is the offer.
        """
        self.no_shows += 1
        if self.no_shows > 1:
            self.avoided[zone] = at + pause
            soonest = min(self.avoided.get(name, 0.0) for name in among)
            self.relaunch_at = max(self.relaunch_at, soonest)

    def used_up(self, rounds: int) -> bool:
        """Whether requesting it again is pointless."""
        return self.for_good or max(self.refusals, self.no_shows) >= rounds


class FleetBook:
    """Every intent of a run, in the order of the requests.

    Properties that are read at every event return the same object until an instance changes; don't
    modify it.
    """

    def __init__(self) -> None:
        self.rented: dict[str, Rented] = {}
        self._instances: dict[str, Rented] = {}
        self._going_on: list[Rented] = []  # all that aren't over, and some that are
        self._settled: set[str] = set()  # those that are over, and in the next two
        self._settled_dollars = 0.0
        self._settled_launches: list[Rented] = []
        self._alive: list[Rented] | None = None
        self._staying: list[Rented] | None = None
        self._usable: list[Rented] | None = None
        self._held: Counter[Offer] | None = None
        self._returning: bool | None = None
        self._pending: bool | None = None
        self.changes = 0  # of any instance so far

    def forget(self, changed: Rented | None = None) -> None:
        """Drop the cached properties: an instance has changed."""
        self.changes += 1
        if changed is not None and changed.intent in self._settled:
            self._settled.clear()
            self._settled_dollars = 0.0
            self._settled_launches.clear()
            self._going_on = list(self.rented.values())
        self._alive = self._staying = self._usable = self._held = None
        self._returning = self._pending = None

    def __iter__(self) -> Iterator[Rented]:
        return iter(self.rented.values())

    def __getitem__(self, intent: str) -> Rented:
        return self.rented[intent]

    def request(self, offer: Offer, at: float, zone: str = "") -> Rented:
        """Return a new intent with its own id."""
        rented = Rented(f"i{len(self.rented):03d}", offer, at, zone or offer.zone, book=self)
        self.rented[rented.intent] = rented
        self._going_on = [*self._going_on, rented]
        self.forget()
        return rented

    def of(self, instance: str) -> Rented:
        """Return an instance by its id.

        Raises:
            KeyError: it isn't one of this run's.
        """
        rented = self._instances.get(instance)
        if rented is None or rented.instance != instance:
            self._instances = {r.instance: r for r in reversed(self.rented.values()) if r.instance}
        return self._instances[instance]

    def last_words(self, instance: str | None = None) -> str:
        """Return the end of the console of an instance that never joined, to append to a message.

        Of the last such instance if none is named; "" if there is none.
        """
        words = [r.last_words for r in self if r.last_words and instance in {None, r.instance}]
        return f"; its console ends with: {words[-1]}" if words else ""

    def alive(self) -> list[Rented]:
        """Return the instances that exist or may exist, and bill."""
        if self._alive is None:
            # Skip those that are over, so that a long run doesn't slow down.
            for rented in self._going_on:
                if rented.over:
                    self._settled.add(rented.intent)
                    self._settled_dollars += rented.dollars(0.0)
                    if rented.launched:
                        self._settled_launches.append(rented)
            self._going_on = [r for r in self._going_on if not r.over]
            self._alive = self._going_on
        return self._alive

    def staying(self) -> list[Rented]:
        if self._staying is None:
            self._staying = [r for r in self.alive() if not (r.surplus or r.released)]
        return self._staying

    def held(self) -> Counter[Offer]:
        """Return how many instances stay, by offer."""
        if self._held is None:
            self._held = Counter(r.offer for r in self.staying())
        return self._held

    def usable(self) -> list[Rented]:
        """Return the instances on which trials may be started."""
        if self._usable is None:
            self._usable = [r for r in self.alive() if r.usable]
        return self._usable

    def returning(self) -> bool:
        """Whether any instance should go and hasn't been released yet."""
        if self._returning is None:
            self._returning = any(r.surplus and not r.released for r in self.alive())
        return self._returning

    def has_pending(self) -> bool:
        """Whether any instance has yet to join, or was released and isn't gone."""
        if self._pending is None:
            self._pending = any(not r.joined or r.released for r in self.alive())
        return self._pending

    @property
    def launches(self) -> int:
        """How many instances were launched, or may have been."""
        return len(self.alive()) + len(self._settled_launches)

    def launched(self) -> Iterator[Rented]:
        """Yield the instances that were launched, or may have been: all that cost anything."""
        alive = self.alive()  # first: it settles those that are over
        yield from self._settled_launches
        yield from alive

    def dollars(self, at: float) -> float:
        """Return the bill for all instances if everything is returned at that time."""
        alive = sum([r.dollars(at) for r in self.alive()])
        return self._settled_dollars + alive

    def settled_dollars(self) -> float:
        """Return the bill for the instances that can't bill any more."""
        self.alive()
        return self._settled_dollars

"""Fleet rules of runs without planned stages: how many instances there should be."""

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.model.catalog import Offer
from cloudtune.strategies.base import FleetRule, View
from cloudtune.strategies.offers import Offers
from cloudtune.strategies.spending import Spending
from cloudtune.strategies.worth import ROUND

if TYPE_CHECKING:
    from cloudtune.model.plans import Rentable

# Spot replaces on-demand if this many times its time and money for the move are left.
MOVES = 6.0
# More GPUs than any fleet has.
_MANY = 1e9


class Unplanned:
    """The base of rules without stages, which don't know what a run will cost in the end."""

    stage = 0

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return nothing beyond the present target."""
        return ()

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        """Whether there is any instance: a trial that doesn't fit gets fewer GPUs."""
        return any(instances.values())

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return nothing: an instance goes when it is empty."""
        return ()

    def dollars_to_come(self, view: View, at: float) -> float | None:
        """Return None: results decide what trains, and for how long."""
        return None

    def grows_at(self, view: View) -> float:
        """Return inf: the fleet depends on what happens, not on the time."""
        return math.inf


@dataclass(frozen=True)
class ConstantFleet(Unplanned):
    """The same instances from the start of a run to its end.

    If the cloud refuses the offer, the first of `standins` that isn't refused takes its place.
    """

    offer: Offer
    instances: int
    standins: tuple[Offer, ...] = ()
    name: str = "constant"

    def could_ask(self, view: View) -> Collection[Offer]:
        """Return the offer and those that may stand in for it."""
        return (self.offer, *self.standins)

    def max_gpus(self, view: View) -> int:
        return self.instances * self.offer.gpus

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the whole fleet, whatever is needed."""
        return substitute(view, (self.offer, *self.standins), self.max_gpus(view))


@dataclass(frozen=True)
class NaiveFleet(ConstantFleet):
    """A constant fleet whose idle instances are returned, and rented again when needed.

    With `consolidates`, trials move together after their next epoch to empty instances.
    """

    name: str = "naive"
    consolidates: bool = False

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return as many instances as are needed, up to the fleet's size."""
        wanted = min(needed, self.max_gpus(view))
        return substitute(view, (self.offer, *self.standins), wanted)

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return the emptiest surplus instances, if their trials fit elsewhere."""
        return tuple(surplus_to_empty(view, self.target(view, needed))) if self.consolidates else ()


class _FleetPlan(NamedTuple):
    """A fleet, what of it is requested now, and what stays until it is there."""

    fleet: Mapping[Offer, int]
    asked: Mapping[Offer, int]
    staying: Mapping[Offer, int]


class SpendingFleet(Unplanned):
    """As many instances as the planned dollars per second pay for.

    Held instances of any offer count, best first; the rest are of the planned offer, or of the next
    that isn't refused. Money that doesn't pay for another of these buys smaller ones. With
    `returns_idle` there are no more GPUs than trials need; with `moves_together` trials of surplus
    instances move to the others as their epochs end.

    While a run finds out which GPU model is worth its price (`scouting.py`), the fleet may be a
    single instance, and a scout joins it. Instances of a GPU model that was left stay until those
    that take their place have joined, as far as the cap admits both.
    """

    def __init__(
        self,
        spending: Spending,
        name: str,
        *,
        returns_idle: bool = False,
        moves_together: bool = False,
    ) -> None:
        self.name = name
        self.offers = spending.offers
        self._spending = spending
        self._returns_idle = returns_idle
        self._moves_together = moves_together
        self._question: tuple[object, ...] = ()
        self._plans: dict[float, _FleetPlan] = {}  # the answers, by the GPUs that are needed

    def could_ask(self, view: View) -> Collection[Offer]:
        return self.offers.in_order

    def max_gpus(self, view: View) -> int:
        """Return the GPUs of the planned fleet, without those that stay until it is there."""
        fleet = self._plan(view, math.inf).fleet
        return sum([offer.gpus * count for offer, count in fleet.items()])

    def grows_at(self, view: View) -> float:
        """Return when a fleet that is held back is requested at the latest; inf if it isn't."""
        offers = self.offers
        return (
            offers.scouting.grows_at(view, offers.chosen.offer)
            if offers.scouting.small
            else math.inf
        )

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the planned fleet, and what stays until it is there."""
        plan = self._plan(view, needed)
        return Counter(plan.asked) + Counter(plan.staying) if plan.staying else plan.asked

    def _plan(self, view: View, needed: float) -> _FleetPlan:
        """Plan the fleet, unless nothing has changed: each round reads it several times."""
        spending = self._spending
        count = spending.instances(view)
        scouting = self.offers.scouting
        planned = self.offers.chosen.offer
        willing = self._willing(view, planned)
        gpus = needed if self._returns_idle else math.inf
        scouted = scouting.small, scouting.scouts, len(scouting.left), len(view.fleet.usable())
        question = (
            planned,
            count,
            willing,
            view.held,
            spending.unspent(view),
            scouted if scouting.on else None,
            [offer for offer, backoff in view.backoffs.items() if backoff.is_empty],
            # A fleet that follows its trials also looks for what the cloud may have again.
            [offer for offer in view.backoffs if self._returns_idle and view.avoided(offer)],
        )
        if question != self._question:
            self._question = question
            self._plans.clear()
        if gpus not in self._plans:
            fleet = self._fit(view, planned, count, willing, gpus)
            asked = {
                offer: min(count, self._request_limit(view, offer))
                for offer, count in fleet.items()
            }
            going = [offer for offer in view.held if self._is_going(view, offer)]
            self._plans[gpus] = self._in_waves(view, fleet, asked, going)
        return self._plans[gpus]

    def _request_limit(self, view: View, offer: Offer) -> int:
        """Return how many instances to ask for: of a pool that was empty, one until it comes.

        A pool that is away for hours is asked every few minutes.
        """
        held = view.held.get(offer, 0)
        backoff = view.backoffs.get(offer)
        if backoff is None or not backoff.is_empty:
            return self.offers.rentable(offer).most
        asked = [rented for rented in view.fleet.staying() if rented.launched_at is None]
        return held + (offer not in [rented.offer for rented in asked])

    def _fit(
        self, view: View, planned: Offer, count: int, willing: Offer, gpus: float
    ) -> Mapping[Offer, int]:
        if planned.usd_per_second == 0:
            return self._free(planned, count, gpus)
        if count == 0:
            return {}
        scouting = self.offers.scouting
        unspent = self._spending.unspent(view)
        if scouting.small:
            count = 1
            unspent = 0.0
        if math.isinf(unspent):  # no budget bounds the fleet
            gpus = min(gpus, count * planned.gpus)
        rate = count * planned.usd_per_second + unspent
        fleet = Counter[Offer]()
        scouts = [scout for scout in scouting.scouts if self._has_room(view, scout)]
        for scout in scouts if gpus > 0 else ():
            fleet[scout] = 1  # first, so that the cap leaves it a place
            gpus -= scout.gpus * self._returns_idle
        for offer in filter(view.held.__contains__, self.offers.in_order):
            if offer in scouts or self._is_going(view, offer):
                continue
            room = min(_paid(rate, offer), _instances(offer, gpus))
            fleet[offer] = min(view.held[offer], room)
            rate -= fleet[offer] * offer.usd_per_second
            gpus -= fleet[offer] * offer.gpus
        more = min(_paid(rate, willing), _instances(willing, gpus))
        more = self._limit_to_caps(view, willing, more, fleet)
        if fleet.total() == len(scouts) and gpus > 0:
            more = max(1, more)  # the cloud may refuse it, but a run of no instance would hang
        fleet[willing] += more
        rate -= more * willing.usd_per_second
        gpus -= more * willing.gpus
        if not scouting.small:
            self._fill(view, fleet, rate, gpus)
        return {offer: instances for offer, instances in fleet.items() if instances > 0}

    def _has_room(self, view: View, scout: Offer) -> bool:
        """Whether the trials that begin now have room on one instance of an offer."""
        width = self._spending.width(view)
        epochs = view.profiled(scout).profile.epoch
        return width in epochs and scout.gpus >= width and not view.avoided(scout)

    def _is_going(self, view: View, offer: Offer) -> bool:
        """Whether instances of an offer go once others have taken their place."""
        return self.offers.scouting.is_left(offer) or self.offers.is_too_dear(view, offer)

    def _in_waves(
        self,
        view: View,
        fleet: Mapping[Offer, int],
        asked: Mapping[Offer, int],
        going: Sequence[Offer],
    ) -> _FleetPlan:
        """Return what to request now of a fleet, and what of `going` stays until it is there.

        Where the cap doesn't admit both, as many go at a time as have come of the others, and one
        at first: so the cloud shows that it has them.
        """
        if all(offer in fleet for offer in going):
            return _FleetPlan(fleet, asked, {})
        joined = Counter(rented.offer for rented in view.fleet.usable())
        wave = Counter[Offer]()
        for offer, count in asked.items():
            wave[offer] = min(count, max(1, view.held.get(offer, 0), 2 * joined[offer]))
        coming = sum(
            max(0, count - joined[offer]) * offer.usd_per_second for offer, count in fleet.items()
        )
        staying = Counter[Offer]()
        for offer in going:
            if offer not in fleet:
                count = min(view.held[offer], math.ceil(coming / offer.usd_per_second))
                while count and not view.admits(wave + staying + Counter({offer: count})):
                    count -= 1
                staying[offer] = count
                coming -= count * offer.usd_per_second
        for offer, count in asked.items():
            wave[offer] += self._limit_to_caps(view, offer, count - wave[offer], wave + staying)
        return _FleetPlan(fleet, wave, +staying)

    def _fill(self, view: View, fleet: Counter[Offer], rate: float, gpus: float) -> None:
        """Add smaller instances for the dollars per second that are left.

        Only those that train more for that money than the planned offer does later on.
        """
        width = self._spending.width(view)
        for rentable in self.offers.by_price:
            offer = rentable.offer
            if gpus <= 0 or rate < offer.usd_per_second or offer.usd_per_second == 0:
                continue
            fits = offer.gpus >= width and width in view.profiled(offer).profile.epoch
            if not fits or view.avoided(offer):
                continue
            paid = math.floor(min(rate / offer.usd_per_second, _MANY))
            more = self._limit_to_caps(view, offer, min(paid, _instances(offer, gpus)), fleet)
            if more > 0 and self.offers.fills(view, rentable, more):
                fleet[offer] += more
                rate -= more * offer.usd_per_second
                gpus -= more * offer.gpus

    def _limit_to_caps(self, view: View, offer: Offer, more: int, fleet: Counter[Offer]) -> int:
        """Return how many of so many more instances of an offer the cap and the quotas admit."""
        offers = self.offers
        total = offers.means.instances - fleet.total()
        more = int(max(0, min(more, offers.rentable(offer).most - fleet[offer], total)))

        def is_too_many(more: int) -> bool:
            return not view.admits(fleet + Counter({offer: more}))

        if more == 0 or not is_too_many(more):
            return more
        return bisect.bisect_left(range(1, more), True, key=is_too_many)

    def _free(self, planned: Offer, count: int, gpus: float) -> Mapping[Offer, int]:
        """Return instances that cost nothing: all of them, if all of the planned offer are."""
        offers = self.offers
        fleet = {planned: min(count, _instances(planned, gpus))}
        gpus -= fleet[planned] * planned.gpus
        others = [rentable for rentable in offers.rentables if rentable.offer != planned]
        for rentable in others if count >= offers.rentable(planned).most else ():
            fleet[rentable.offer] = min(rentable.most, _instances(rentable.offer, gpus))
            gpus -= fleet[rentable.offer] * rentable.gpus
        return {offer: instances for offer, instances in fleet.items() if instances > 0}

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return the emptiest surplus instances, if their trials fit elsewhere.

        Those of a GPU model that was left, and those that are too dear, go in any case, when they
        are empty.
        """
        if not self._moves_together and not self.offers.scouting.on:
            return ()
        target = self.target(view, needed)
        if all(held <= target.get(offer, 0) for offer, held in view.held.items()):
            return ()
        going = dict.fromkeys(surplus_to_empty(view, target) if self._moves_together else ())
        for offer, held in view.held.items():
            if self._is_going(view, offer):
                going |= dict.fromkeys(_emptiest(view, offer, held - target.get(offer, 0)))
        return tuple(going)

    def _willing(self, view: View, planned: Offer) -> Offer:
        """Return the planned offer, also if it is worth a wait, or the best that isn't refused."""
        if not view.avoided(planned) or self.offers.may_wait(view):
            return planned
        willing = (offer for offer in self.offers.in_order if not view.avoided(offer))
        return next(willing, planned)


def _paid(rate: float, offer: Offer) -> int:
    """Return how many instances `rate` dollars per second pay for, or a quarter short of it."""
    if offer.usd_per_second == 0 or math.isinf(rate):
        return int(_MANY)
    return max(0, math.floor(rate / offer.usd_per_second + ROUND))


def surplus_to_empty(view: View, target: Mapping[Offer, int]) -> Iterator[str]:
    """Yield the emptiest of the instances that exceed a target, if their trials fit elsewhere.

    Those whose GPUs cost most come first, and of an offer those at risk.
    """
    usable = [rented for rented in view.fleet.usable() if rented.instance]
    loads = _loads(view)
    load = {rented.instance: loads[rented.instance] for rented in usable if rented.instance}
    elsewhere = sum(rented.offer.gpus for rented in usable) - sum(load.values())
    for offer, held in sorted(view.held.items(), key=lambda item: -_gpu_price(item[0])):
        ranks = [
            (not r.at_risk, load[r.instance], r.instance)
            for r in usable
            if r.offer == offer and r.instance
        ]
        too_many = max(0, held - target.get(offer, 0))
        for _, _, name in sorted(ranks)[:too_many]:
            elsewhere -= offer.gpus - load[name]
            if load[name] > elsewhere:
                return
            elsewhere -= load[name]
            yield name


def _emptiest(view: View, offer: Offer, count: int) -> list[str]:
    """Return so many instances of an offer that take trials, the emptiest first."""
    loads = _loads(view)
    usable = [rented for rented in view.fleet.usable() if rented.offer == offer]
    names = sorted((loads[rented.instance or ""], rented.instance or "") for rented in usable)
    return [name for _, name in names[: max(0, count)]]


def _gpu_price(offer: Offer) -> float:
    return offer.usd_per_second / offer.gpus


def _loads(view: View) -> defaultdict[str, float]:
    loads: defaultdict[str, float] = defaultdict(float)
    for trial in view.running:
        for piece in trial.placement:
            loads[piece.instance] += piece.gpus
    return loads


def substitute(view: View, offers: Sequence[Offer], gpus: float) -> Mapping[Offer, int]:
    """Return how many instances of each offer make up `gpus` GPUs.

    Held instances count first, in the order of `offers`; missing GPUs come from the first offer
    that isn't refused now, or from the very first if all are.
    """
    target: dict[Offer, int] = {}
    for offer in offers:
        target[offer] = min(view.held.get(offer, 0), _instances(offer, gpus))
        gpus -= target[offer] * offer.gpus
    willing = next((offer for offer in offers if not view.avoided(offer)), offers[0])
    target[willing] += _instances(willing, gpus)
    return {offer: count for offer, count in target.items() if count > 0}


def _instances(offer: Offer, gpus: float) -> int:
    return max(0, math.ceil(min(gpus, _MANY) / offer.gpus - 1e-6))


class BackToSpot:
    """Another rule's fleet, in which spot takes over again from its on-demand stand-ins.

    For the GPUs held on demand, spot is requested too if it isn't refused now and the cap admits
    both. The on-demand instances stay until the spot ones take trials, which then move after their
    next epoch. Nothing is done if the limits pay for no more than a few such moves.
    """

    def __init__(self, rule: FleetRule, offers: Offers) -> None:
        self._rule = rule
        self.offers = offers
        self._by_price: Sequence[Rentable] = ()
        self._spot: tuple[Offer, ...] = ()
        self._others: tuple[Offer, ...] = ()

    def _sort(self) -> None:
        """Sort the offers by market, again if their prices of an epoch have changed."""
        if self._by_price is self.offers.by_price:
            return
        self._by_price = self.offers.by_price
        offers = [rentable.offer for rentable in self._by_price]
        dear = [number for number, offer in enumerate(offers) if not offer.spot]
        cheap = offers[: max(dear, default=0)]
        left = self.offers.scouting.is_left
        self._spot = tuple(o for o in cheap if o.spot and not left(o))
        self._others = tuple(offer for offer in offers if offer not in self._spot)

    @property
    def name(self) -> str:
        return self._rule.name

    @property
    def stage(self) -> int:
        return self._rule.stage

    def could_ask(self, view: View) -> Collection[Offer]:
        return self._rule.could_ask(view)

    def max_gpus(self, view: View) -> int:
        """Return the rule's number: the extra instances let no more trials train at once."""
        return self._rule.max_gpus(view)

    def can_train(self, view: View, instances: Mapping[Offer, int]) -> bool:
        return self._rule.can_train(view, instances)

    def dollars_to_come(self, view: View, at: float) -> float | None:
        return self._rule.dollars_to_come(view, at)

    def grows_at(self, view: View) -> float:
        return self._rule.grows_at(view)

    def target(self, view: View, needed: float) -> Mapping[Offer, int]:
        """Return the rule's fleet, plus the spot instances that can replace on-demand ones."""
        wanted = self._rule.target(view, needed)
        held = view.held
        if all(offer.spot for offer in held):
            return wanted
        self._sort()
        gpus = sum(offer.gpus * count for offer, count in wanted.items())
        usable = Counter(rented.offer for rented in view.fleet.usable())
        fleet = {offer: max(0, count - held[offer]) for offer, count in wanted.items()}
        coming = float(sum(offer.gpus * count for offer, count in fleet.items()))
        for offer in filter(held.__contains__, self._spot):
            staying = min(held[offer], _instances(offer, gpus))
            fleet[offer] = fleet.get(offer, 0) + staying
            gpus -= offer.gpus * min(staying, usable[offer])
            coming += offer.gpus * max(0, staying - usable[offer])
        for offer in filter(held.__contains__, self._others):
            staying = min(held[offer], _instances(offer, gpus))
            fleet[offer] = fleet.get(offer, 0) + staying
            gpus -= offer.gpus * staying
            coming -= offer.gpus * staying * (not offer.spot)
        if coming < 0 and (willing := self._willing(view)):
            fleet[willing] = fleet.get(willing, 0) + _instances(willing, -coming)
        return {offer: count for offer, count in fleet.items() if count > 0}

    def _willing(self, view: View) -> Offer | None:
        """Return the spot offer that may be requested now to replace on-demand instances."""
        if any(not rented.joined for rented in view.fleet.staying()):
            return None
        willing = next((offer for offer in self._spot if not view.avoided(offer)), None)
        if willing is None or not view.admits(view.held + Counter([willing])):
            return None
        return willing if self._pays(view, willing) else None

    def _pays(self, view: View, offer: Offer) -> bool:
        """Whether there is time and money for several moves to an offer and back.

        That is after the epochs that trials are granted now: further work is unknown.
        """
        rentable = next(candidate for candidate in view.rentables if candidate.offer == offer)
        profile = view.corrected(rentable, ()).profile
        delays = profile.launch.mean + profile.boot.mean + profile.resize.mean
        move = delays + max(epoch.mean for epoch in profile.epoch.values())
        held = sum(o.usd_per_second * count for o, count in view.held.items())
        paid = view.dollars_left / held if held > 0 else math.inf
        granted = (
            (view.until(t.id) - t.epoch) * view.epoch_seconds(t.id, t.offer, t.width)
            for t in view.running
            if t.offer is not None
        )
        return min(view.seconds_left, paid) - max(granted, default=0.0) > MOVES * move

    def leaving(self, view: View, needed: float) -> Collection[str]:
        """Return the on-demand instances whose trials have room on spot."""
        target = self.target(view, needed)
        held = Counter(view.held)
        too_many = {o for o, count in held.items() if count > target.get(o, 0)}
        if not too_many:
            return ()
        going = [
            name
            for name in self._rule.leaving(view, needed)
            if view.fleet.of(name).offer in too_many
        ]
        usable = [r for r in view.fleet.usable() if r.instance and r.instance not in going]
        loads = _loads(view)
        room = sum(
            rented.offer.gpus - loads[rented.instance or ""]
            for rented in usable
            if rented.offer in self._spot
        )
        for rented in usable:
            if rented.offer.spot or held[rented.offer] <= target.get(rented.offer, 0):
                continue
            load = loads[rented.instance or ""]
            if load <= room + 1e-6:
                held[rented.offer] -= 1
                room -= load
                going.append(rented.instance or "")
        return tuple(going)

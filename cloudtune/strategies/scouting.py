"""Which GPU model is worth its price for a script, as a run finds out while it trains.

Before a run only the ratios of other programs are known, and how far they may be off. One instance
of another GPU model, a scout, joins and trains trials like any other. It pays if what the rest of
the run may save is more than the scout costs,

    E[max(0, 1 - r exp(s Z))] x the remaining dollars  >  boot and minimum charge

where r is the expected dollars of an epoch there over those here, s the spread of that ratio, and Z
a standard normal: the value of an option (Black, 1976). What scouts that are out are expected to
save lowers the dollars here: another one saves less. Once a scout has trained enough epochs the
fleet moves to its GPU model, if what is left of the limits then buys more with the boots of a new
fleet; otherwise the scout goes. A GPU model that was left is never planned with again, unless all
others are refused: so a fleet can't go back and forth.

As long as nobody knows whether the script trains at all, and while scouts are out, the fleet is one
instance, if a second boot is short against the time that there is: a script that fails at once must
not cost the boots of a whole fleet, nor should these be paid for a GPU model that is then left.
Until then the choice is free: the better GPU model takes the other's place without any margin.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from cloudtune.model.scaling import ASSUMED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cloudtune.model.catalog import Offer
    from cloudtune.model.fleet import Rented
    from cloudtune.model.plans import Rentable
    from cloudtune.model.trial import Width
    from cloudtune.strategies.base import View
    from cloudtune.strategies.worth import Means

# A GPU model is known after this many epochs: the first are slow, and trials differ.
ENOUGH = 2
# The share of the dollars that all scouts together may cost.
SCOUTING = 0.05
# A fleet moves to what looks better, and back if that was wrong.
MOVES = 2
# It moves where that is expected to save this share. Where types are close, the other one's spot
# pool may be the emptier one.
MARGIN = 0.05
# The share of the time within which a fleet that is held back must be requested: for a first
# epoch, and for scouts if money bounds the fleet, which then is as much larger later on.
SECOND_BOOT = 0.05
WITH_SCOUTS = 0.15

_NORMAL = NormalDist()


def expected_saving(ratio: float, spread: float) -> float:
    """Return the share that is saved on average if the cheaper of two types is taken.

    An epoch on the other type costs `ratio` times as much as here; `spread` is how far that may be
    off, as a standard deviation of the logarithm.
    """
    if spread <= 0 or ratio <= 0:
        return max(0.0, 1 - ratio)
    cheaper = -math.log(ratio) / spread
    mean = ratio * math.exp(spread**2 / 2)
    return max(0.0, _NORMAL.cdf(cheaper) - mean * _NORMAL.cdf(cheaper - spread))


def choose_first(ranked: Sequence[Rentable], means: Means) -> Rentable:
    """Return the offer to begin with: the best, by what is known.

    If nothing is known of the script, one instance costs no more until it has trained than all
    scouts may: a large one would take a small budget before any other has trained.
    """
    room = SCOUTING * means.dollars
    tried = (each for each in ranked if _bill(each, each.cheapest_width) <= room)
    return next(tried, ranked[0]) if _is_assumed(ranked[0]) else ranked[0]


class Scouting:
    """The GPU models of a run: which is tried beside the chosen one, and which were left.

    `scouts` are the offers of which one instance joins, `left` the GPU models that were given up,
    with the run second. `small` says that the fleet is one instance for now, `moves` how often it
    has moved. To take a stand-in for an offer that the cloud refuses is no move, nor to go back.
    What the cloud refused is asked for again as long as it is worth it.
    """

    def __init__(self, chosen: Rentable, rentables: Sequence[Rentable]) -> None:
        priced = all(rentable.offer.usd_per_second > 0 for rentable in rentables)
        self.on = priced and any(rentable.profile.is_prior for rentable in rentables)
        self._assumed = _is_assumed(chosen)
        self.small = self.on and self._assumed
        self.scouts: tuple[Offer, ...] = ()
        self.left: dict[str, float] = {}
        self.moves = 0
        self._home = chosen.offer  # what it chose last, though another one may stand in
        self._is_back = False  # whether an instance of it came while another one stood in
        self._sent: dict[Offer, float] = {}  # all scouts so far, with the run second
        self._refused: tuple[Offer, ...] = ()  # scouts that the cloud refused
        self._measured = {each.offer.gpu_model for each in rentables if not each.profile.is_prior}
        self._news = -1  # as of the last decision
        self._worth_waiting = False  # whether it costs little to know more before the fleet grows

    def is_left(self, offer: Offer) -> bool:
        return offer.gpu_model in self.left

    def has_news(self, view: View, chosen: Offer) -> bool:
        """Whether to decide again: epochs have doubled, or a scout didn't come or took too long."""
        if not self.on:
            return False
        self.left.pop(chosen.gpu_model, None)
        there = tuple(scout for scout in self.scouts if not view.avoided(scout))
        refused = there != self.scouts
        # A refused one isn't given up: it may join later.
        self._refused += tuple(scout for scout in self.scouts if scout not in there)
        self.scouts = there
        again = not self.small and not all(map(view.avoided, self._refused))
        others = [scout for scout in there if scout != self._home]
        dear = bool(others) and self._spent(view, others) > SCOUTING * _budget(view)
        for scout in others if dear else ():
            self._leave(view, scout)
        back = self._is_news_of_home(view, chosen)
        return refused or again or dear or back or self._news != view.news

    def _is_news_of_home(self, view: View, chosen: Offer) -> bool:
        """Whether the offer that another one stands in for has just come back.

        While none of it is there, one instance is requested from time to time.
        """
        home = self._home
        if not self._stands_in(chosen) or self.small:
            self._is_back = False
            return False
        if not view.held.get(home, 0) and home not in self.scouts and not view.avoided(home):
            self.scouts += (home,)
        before = self._is_back
        self._is_back = any(rented.offer == home for rented in view.fleet.usable())
        return self._is_back and not before

    def decide(self, view: View, chosen: Offer, ranked: Sequence[Rentable], means: Means) -> Offer:
        """Return the offer to plan with, and set the scouts.

        `ranked` are the offers with the speeds that are expected now, by what `means` buy.
        """
        self._news = view.news
        self._refused = tuple(filter(view.avoided, self._refused))
        here = next(each for each in ranked if each.offer == chosen)
        best = next((each for each in ranked if self._may_move(view, here, each)), None)
        if best is not None and self._is_open(here, means):
            if _cost_ratio(here, best, means) < 1:
                # There is one instance of each, so nothing moves: the fleet will be of this one.
                self.scouts += (here.offer,)
                self._sent.setdefault(here.offer, 0.0)  # from now on it is paid for as a scout
                here = best
                self._home = here.offer
        elif best is not None and self._pays(here, best, means):
            if not _is_alike(here, best):
                self._leave(view, here.offer)
            self.moves += not self._stands_in(here.offer)
            here = best
            self._home = here.offer
        self.left.pop(here.offer.gpu_model, None)
        self._look_for_better(view, here, ranked, means)
        self.scouts = tuple(
            scout
            for scout in self.scouts
            if scout.gpu_model != here.offer.gpu_model or scout == self._home != here.offer
        )
        for scout in self.scouts:
            if not self._stays(view, here, scout, ranked, means):
                self._leave(view, scout)
        more = self._worth_sending(view, here, ranked, means)
        # If money bounds the fleet, it is as much larger after a wait.
        bounded = means.buy(here).instances < min(here.most, means.instances)
        self._worth_waiting = bounded and bool(self.scouts or more)
        # How long an epoch takes, and so what a scout costs, may be off by a factor until one came.
        if view.news > 0 or not self._assumed:
            self.scouts += more
            self._sent.update(dict.fromkeys(more, view.now))
        return here.offer

    def _look_for_better(
        self, view: View, here: Rentable, ranked: Sequence[Rentable], means: Means
    ) -> None:
        """Note the offer that `here` stands in for: one worth a move if the cloud had it."""

        def has_timing(there: Rentable) -> bool:
            same = there.offer.gpu_model == here.offer.gpu_model
            return same or self._is_known(view, there.offer)

        home = next(each for each in ranked if each.offer == self._home)
        if has_timing(home) and not self._pays(here, home, means):
            self._home = here.offer
        for there in ranked:
            empty = there.offer != here.offer and _was_empty(view, there.offer)
            if empty and has_timing(there) and self._pays(here, there, means):
                self._home = there.offer
                return

    def could_replace(self, view: View, one: Rentable, chosen: Rentable) -> bool:
        """Whether the chosen offer could stand for another one with the same GPU."""
        alike = one.offer != chosen.offer and _is_alike(one, chosen)
        return alike and not _is_empty(view, chosen.offer)

    def replaces(self, one: Rentable, chosen: Rentable, means: Means) -> bool:
        """Whether that is worth the boots of as many instances."""
        return _cost_ratio(one.booted, chosen, means) < 1 - MARGIN

    def _is_open(self, here: Rentable, means: Means) -> bool:
        """Whether most of the fleet is yet to come, of whichever offer is the best."""
        return self.small and means.buy(here).instances > 1

    def _without_boots(self, here: Rentable, means: Means) -> Rentable:
        """Return the chosen offer as from now on: its instances are there, if its fleet is."""
        return here if self._is_open(here, means) else here.booted

    def _leave(self, view: View, offer: Offer) -> None:
        """Give a GPU model up: its instances go, unless they are what the rest of money buys."""
        self.left[offer.gpu_model] = view.now
        self.scouts = tuple(scout for scout in self.scouts if scout.gpu_model != offer.gpu_model)

    def follow(self, view: View, chosen: Offer) -> None:
        """Let the fleet grow once its reasons to wait are over."""
        if not self.small:
            return
        grows_at = self.grows_at(view, chosen)
        waits = not all(self._is_known(view, scout) for scout in self.scouts)
        self.small = (waits or view.news == 0) and view.now < grows_at
        if not any(view.fleet):  # nothing is known before the first instance trains
            delays = [view.delay(chosen, "launch"), view.delay(chosen, "boot")]
            self.small &= sum(delays) + view.delay(chosen, "start") < grows_at

    def grows_at(self, view: View, chosen: Offer) -> float:
        """Return the run second at which a fleet that is held back is requested at the latest."""
        delay = view.delay(chosen, "launch") + view.delay(chosen, "boot")
        share = WITH_SCOUTS if self._worth_waiting else SECOND_BOOT
        return share * (view.now + view.seconds_left) - delay

    def _is_known(self, view: View, offer: Offer) -> bool:
        """Whether the speed of an offer's GPU model was measured before, or in this run."""
        return offer.gpu_model in self._measured or view.epochs_on(offer) >= ENOUGH

    def _spent(self, view: View, scouts: Iterable[Offer]) -> float:
        """Return the bill so far of scouts, and of those that were given up."""
        gpus = {*(each.gpu_model for each in scouts), *self.left}
        return sum(
            rented.dollars(view.now)
            for rented in view.fleet.launched()
            if rented.offer.gpu_model in gpus and self._was_scout(rented)
        )

    def _was_scout(self, rented: Rented) -> bool:
        """Whether an instance was requested as a scout, and not to train at its price later on."""
        sent = self._sent.get(rented.offer, math.inf)
        return sent <= rented.requested_at <= self.left.get(rented.offer.gpu_model, math.inf)

    def _may_move(self, view: View, here: Rentable, there: Rentable) -> bool:
        """Whether a fleet could move: both GPU models were timed, and the other isn't left."""
        free = self.moves < MOVES or self._stands_in(here.offer)
        others = free and (
            there.offer.gpu_model != here.offer.gpu_model or there.offer == self._home
        )
        timed = view.epochs_on(here.offer) > 0 and self._is_known(view, there.offer)
        moved = there.offer != here.offer and others and timed
        return moved and not _is_empty(view, there.offer)

    def _stands_in(self, chosen: Offer) -> bool:
        """Whether the chosen offer only stands in, as the cloud refused the one that it was."""
        return chosen != self._home

    def _pays(self, here: Rentable, there: Rentable, means: Means) -> bool:
        """Whether another offer is expected to buy more, though it has yet to boot."""
        return _cost_ratio(self._without_boots(here, means), there, means) < 1 - MARGIN

    def _stays(
        self, view: View, here: Rentable, scout: Offer, ranked: Sequence[Rentable], means: Means
    ) -> bool:
        """Whether a scout is worth as many more epochs as it has trained."""
        if view.epochs_on(scout) < ENOUGH:
            return True
        there = next(each for each in ranked if each.offer == scout)
        best = next(each for each in ranked if _is_alike(each, there))
        more = view.epochs_on(scout) * max(0.0, there.epoch_dollars - here.epoch_dollars)
        return self._gain(view, here, best, 0.0, means) > more

    def _worth_sending(
        self, view: View, here: Rentable, ranked: Sequence[Rentable], means: Means
    ) -> tuple[Offer, ...]:
        """Return the further scouts that are worth what they cost, the best first.

        Offers that the cloud has now come before those that it may have later. What one costs that
        it refuses now is kept for it.
        """
        spends = means.buy(here).dollars
        if not math.isfinite(spends):
            return ()
        width = here.cheapest_width
        spent = self._spent(view, ())
        room = SCOUTING * min(_budget(view), spends + spent) - spent
        now = here  # as cheap as it is expected to be with what the scouts find
        for each in ranked:
            if each.offer in self.scouts:
                room -= _bill(each, width)
                now = self._cheapened(view, now, each, means)
        willing = [each for each in ranked if self._may_join(view, each.offer)]
        empty = [each for each in ranked if _was_empty(view, each.offer)]
        worth = []
        for there in self._first_of_each_gpu(view, here, (*willing, *empty)):
            scout = _cheapest_scout(there, here, willing)
            scout = scout or _cheapest_scout(there, here, empty)
            if scout is not None:
                worth.append((self._worth(view, now, there, scout, means), there, scout))
        sent: tuple[Offer, ...] = ()
        for _, there, scout in sorted(worth, key=lambda each: -each[0]):
            bill = _bill(scout, width)
            pays = self._worth(view, now, there, scout, means) > 0
            fleet = view.held | Counter([*self.scouts, *sent, scout.offer])
            if pays and bill <= room and view.admits(fleet):
                room -= bill
                if self._may_join(view, scout.offer):
                    sent += (scout.offer,)
                    now = self._cheapened(view, now, there, means)
        return sent

    def _worth(
        self, view: View, here: Rentable, there: Rentable, scout: Rentable, means: Means
    ) -> float:
        """Return the dollars that a scout may save, less what its epochs cost more than here."""
        width = here.cheapest_width
        trained = ENOUGH * scout.gpus / width * here.epoch_dollars
        gain = self._gain(view, here, there, _finding(scout, width), means)
        return gain - max(0.0, _bill(scout, width) - trained)

    def _gain(
        self, view: View, here: Rentable, there: Rentable, finding: float, means: Means
    ) -> float:
        """Return the dollars that the rest of the run may save, once the speed there is known."""
        seconds = means.seconds - finding
        if seconds <= 0:
            return 0.0
        share = 1.0 if math.isinf(seconds) else seconds / means.seconds
        rest = means._replace(seconds=seconds, dollars=means.dollars * share)
        dollars = rest.buy(self._without_boots(here, means)).dollars
        return self._saving(view, here, there, rest) * dollars

    def _saving(self, view: View, here: Rentable, there: Rentable, means: Means) -> float:
        """Return the share of the dollars that is saved on average if the cheaper one is taken."""
        ratio = _cost_ratio(self._without_boots(here, means), there, means)
        return expected_saving(ratio, view.spread(here.offer, there.offer))

    def _cheapened(self, view: View, here: Rentable, there: Rentable, means: Means) -> Rentable:
        """Return the chosen offer with epochs as cheap as those of the cheaper one on average."""
        cost = 1 - self._saving(view, here, there, means)
        return replace(here, profile=here.profile.slow_down(cost))

    def _first_of_each_gpu(
        self, view: View, here: Rentable, possible: Sequence[Rentable]
    ) -> Iterator[Rentable]:
        """Yield the first of the possible offers of each GPU model that nobody has timed.

        Only those in the same market.
        """
        seen = {here.offer.gpu_model, *(scout.gpu_model for scout in self.scouts), *self.left}
        for each in possible:
            offer = each.offer
            known = offer.gpu_model in seen or self._is_known(view, offer)
            if not known and offer.market == here.offer.market:
                seen.add(offer.gpu_model)
                yield each

    def _may_join(self, view: View, offer: Offer) -> bool:
        """Whether a scout may be requested; one that was refused only once the fleet has grown.

        Until then the run would wait for it.
        """
        return not view.avoided(offer) and not (self.small and _is_empty(view, offer))


def _is_assumed(rentable: Rentable) -> bool:
    """Whether neither the script nor one like it has been timed."""
    profile = rentable.profile
    return profile.provenance.origin == ASSUMED and not profile.seen


def _is_empty(view: View, offer: Offer) -> bool:
    """Whether the cloud refused an offer when it was last asked."""
    backoff = view.backoffs.get(offer)
    return view.avoided(offer) or (backoff is not None and backoff.is_empty)


def _was_empty(view: View, offer: Offer) -> bool:
    """Whether the cloud had no capacity when it was last asked, and may have it later."""
    backoff = view.backoffs.get(offer)
    return backoff is not None and backoff.is_empty and not backoff.for_good


def _budget(view: View) -> float:
    return math.inf if view.limits.budget is None else view.limits.budget


def _cost_ratio(here: Rentable, there: Rentable, means: Means) -> float:
    """Return how many times as much an epoch costs on another offer, with all that it takes."""
    if math.isinf(means.seconds) or math.isinf(means.dollars):
        return there.epoch_dollars / here.epoch_dollars
    bought = _epochs_bought(there, means)
    return _epochs_bought(here, means) / bought if bought > 0 else math.inf


def _epochs_bought(rentable: Rentable, means: Means) -> float:
    """Return what means buy on an offer, as if they bought parts of instances beyond the first.

    Whole instances would move the fleet, and move it back, for what rounding leaves of the money.
    """
    profile = rentable.profile
    price = rentable.offer.usd_per_second
    billed = max(0.0, means.seconds - profile.launch.mean)
    paid = means.dollars / price
    count = min(rentable.most, means.instances, max(1.0, paid / max(billed, 1.0)))
    span = min(billed, paid / count) - rentable.idle_seconds
    return count * max(0.0, span) / max(rentable.epoch_instance_seconds, 1e-9)


def _is_alike(one: Rentable, other: Rentable) -> bool:
    """Whether two offers have the same GPU model and market."""
    same = one.offer.gpu_model == other.offer.gpu_model
    return same and one.offer.market == other.offer.market


def _cheapest_scout(there: Rentable, here: Rentable, ranked: Sequence[Rentable]) -> Rentable | None:
    """Return the offer of a GPU model that is the cheapest to try; None if none has room."""
    alike = [each for each in ranked if _is_alike(each, there) and _is_wide(each, here)]
    return min(alike, key=lambda each: _bill(each, here.cheapest_width), default=None)


def _is_wide(rentable: Rentable, here: Rentable) -> bool:
    """Whether trials of the chosen offer have room on one instance."""
    width = here.cheapest_width
    return width in rentable.profile.epoch and rentable.gpus >= width


def _finding(scout: Rentable, width: Width) -> float:
    """Return the seconds until a scout that is requested now has trained enough epochs."""
    profile = scout.profile
    trained = ENOUGH * profile.epoch_seconds(width)
    return profile.launch.mean + profile.boot.mean + profile.start.mean + trained


def _bill(scout: Rentable, width: Width) -> float:
    """Return what that costs."""
    profile = scout.profile
    seconds = _finding(scout, width) - profile.launch.mean + profile.release.mean
    return scout.offer.charge(seconds)

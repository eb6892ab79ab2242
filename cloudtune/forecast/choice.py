"""What a run may choose from where its experiment doesn't say: types, markets, and how many."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudtune.experiment import Experiment
from cloudtune.infra.provider import Provider, find_provider
from cloudtune.model.catalog import THIS_MACHINE, Offer
from cloudtune.model.plans import Limits, Rentable
from cloudtune.model.text import count_noun
from cloudtune.policy.registry import has_stages
from cloudtune.runs.job import max_trials
from cloudtune.strategies.worth import by_worth, means_within

# The largest fleet where no budget bounds it.
UNBOUNDED_FLEET = 4
# A fleet may be this many times as large as the money pays for until the deadline: a run that ends
# with few trials has more instances before.
_HEADROOM = 2.0
# A deadline that the user leaves out is at least this many trainings of one trial.
_TRAININGS = 3.0
# More instances have never been controlled at once: a run that wants them sets max_instances.
_LARGEST_FLEET = 100
# A quota is worth a line if without it there would be this many times as much training.
_NOTABLE = 1.1


@dataclass(frozen=True)
class FleetBounds:
    """How many instances may be alive at once, and the quotas that bound them."""

    max_instances: int
    vcpu_quotas: Mapping[str, int]

    def apply(self, experiment: Experiment) -> Experiment:
        """Return an experiment in which they are set."""
        fields = {"max_instances": self.max_instances, "vcpu_quotas": dict(self.vcpu_quotas)}
        cloud = experiment.cloud.model_copy(update=fields)
        return experiment.model_copy(update={"cloud": cloud})


def shared_offers(experiment: Experiment, offers: Sequence[Offer]) -> Sequence[Offer]:
    """Return the offers; where the experiment sets no bound, emulated ones share this machine."""
    cloud = experiment.cloud
    if cloud.max_instances is not None and THIS_MACHINE not in cloud.vcpu_quotas:
        return offers
    provider = find_provider(experiment.cloud.provider)
    return [_share_host(provider, offer) for offer in offers]


def _share_host(provider: Provider, offer: Offer) -> Offer:
    permille = provider.host_permille(offer.instance_type)
    if not permille:
        return offer
    return replace(offer, instance_type=replace(offer.instance_type, host_permille=permille))


def fleet_bounds(
    experiment: Experiment, rentables: Sequence[Rentable], limits: Limits
) -> FleetBounds:
    """Return the bounds that the experiment sets, or those that the limits and this machine do."""
    cloud = experiment.cloud
    quotas = dict(cloud.vcpu_quotas)
    shares = [rentable.offer.instance_type.host_permille for rentable in rentables]
    if any(shares):
        quotas[THIS_MACHINE] = 1000
    if cloud.max_instances is not None:
        return FleetBounds(cloud.max_instances, quotas)
    most = _most_useful(experiment, rentables, limits)
    if all(shares):
        most = min(most, max((1000 // share for share in shares), default=most))
    return FleetBounds(max(1, most), quotas)


def _most_useful(experiment: Experiment, rentables: Sequence[Rentable], limits: Limits) -> int:
    """Return the largest fleet that the limits pay for, and that the trials can use."""
    prices = [rentable.offer.usd_per_second for rentable in rentables]
    price = min(prices, default=0.0)
    if limits.budget is None or price == 0:
        most = UNBOUNDED_FLEET
    else:
        seconds = limits.deadline
        if seconds is None:
            cheapest = min(rentables, key=lambda rentable: rentable.epoch_dollars)
            epoch = cheapest.profile.epoch_seconds(cheapest.cheapest_width)
            seconds = _TRAININGS * experiment.span.max * epoch
        paid = _HEADROOM * limits.budget / (price * max(seconds, 60.0))
        most = min(_LARGEST_FLEET, max(UNBOUNDED_FLEET, math.ceil(paid)) + _scouts(rentables))
    trials = max_trials(experiment)
    if trials is None or not has_stages(experiment.strategy_name):
        return most
    # More instances than trials could only be used by trials that span several.
    return max(UNBOUNDED_FLEET, min(most, trials)) if limits.budget is not None else trials


def _scouts(rentables: Sequence[Rentable]) -> int:
    """Return how many GPU models a run may try beside the one that it chooses."""
    priors = [rentable for rentable in rentables if rentable.profile.is_prior]
    return max(0, len({rentable.offer.instance_type.gpu for rentable in priors}) - 1)


def choice_text(
    experiment: Experiment, considered: Sequence[Offer], usable: Iterable[Rentable]
) -> str:
    """Return what the run chooses from, in one line; "" if there is no choice."""
    types = {offer.instance_type.name for offer in considered}
    if not experiment.cloud.is_open or len(types) == 1:
        return ""
    names = {rentable.offer.instance_type.name for rentable in usable}
    markets = " and ".join(dict.fromkeys(offer.market for offer in considered))
    text = (
        f"{len(names)} of {count_noun(len(types), 'type')} in {experiment.cloud.region}, {markets}"
    )
    return f"{text}; chosen by what the limits buy, and again by what the run sees"


def in_the_way(
    rentables: Sequence[Rentable], limits: Limits, bounds: FleetBounds, last: int
) -> str:
    """Return which quota stands in the way of clearly more training; "" if none does.

    "with 96 more vCPUs of on-demand p: 2.1 times as much training".
    """
    means = means_within(limits, bounds.max_instances, last)
    if math.isinf(means.dollars) or math.isinf(means.seconds) or not rentables:
        return ""
    within = [_within_quota(rentable, bounds) for rentable in rentables]
    best = means.buy(by_worth(within, means)[0]).epochs
    more = means.buy(first := by_worth(rentables, means)[0])
    quota = first.offer.quota
    if more.epochs < _NOTABLE * best or quota not in bounds.vcpu_quotas or quota == THIS_MACHINE:
        return ""
    units = more.instances * first.offer.instance_type.quota_units - bounds.vcpu_quotas[quota]
    times = f"{more.epochs / best:.1f} times as much training" if best > 0 else "training at all"
    name = first.offer.instance_type.name
    return f"with {units} more vCPUs of the quota {quota} ({name}): {times}"


def _within_quota(rentable: Rentable, bounds: FleetBounds) -> Rentable:
    quota = bounds.vcpu_quotas.get(rentable.offer.quota)
    units = rentable.offer.instance_type.quota_units
    if quota is None or units == 0:
        return rentable
    return replace(rentable, most=min(rentable.most, quota // units))


def within_bounds(rentables: Sequence[Rentable], bounds: FleetBounds) -> tuple[Rentable, ...]:
    """Return the rentables of which at least one instance may be rented, and how many may be.

    Where that is none, all of them: planning then says what the quotas leave no room for.
    """
    most = bounds.max_instances
    capped = [replace(it, most=min(it.most, most)) for it in rentables]
    within = [_within_quota(it, bounds) for it in capped]
    return tuple([it for it in within if it.most > 0] or capped)


def left_out(before: Sequence[Rentable], after: Sequence[Rentable]) -> list[str]:
    """Return a line for each quota that has no room for a single instance of some types."""
    kept = {rentable.offer for rentable in after}
    lost = Counter[str]()
    for offer in dict.fromkeys(it.offer for it in before if it.offer not in kept):
        lost[offer.quota] += 1
    return [_lost_text(quota, count) for quota, count in lost.items()]


def _lost_text(quota: str, count: int) -> str:
    types = count_noun(count, "offer")
    if quota == THIS_MACHINE:
        return f"{types} left out: this machine can't train as many emulated GPUs at their pace"
    return f"{types} left out: the quota {quota} has no room for one"

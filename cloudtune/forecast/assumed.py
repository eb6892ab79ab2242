"""The speed that is assumed of a script that was never measured: by what its limits are meant for.

Somebody who sets a deadline and a budget expects that they train a model a few times, and not
thousands of times. That is all that is known before the first epoch, so it may be off by a wide
factor, which is the same for all machines. What is known of machines is published (`unmeasured`).
"""

import math
from collections.abc import Callable, Iterable

from cloudtune.experiment import Experiment
from cloudtune.infra.provider import Provider
from cloudtune.model.catalog import InstanceType, Offer
from cloudtune.model.scaling import ScalingProfile
from cloudtune.profiles import ratios
from cloudtune.profiles.unmeasured import REFERENCE, prior_profile

# The deadline is assumed to be this many times as long as the training of one trial on a V100 …
_TRAININGS_IN_A_ROW = 6.0
# … and the budget to pay for this many of them.
_TRAININGS_PAID = 30.0
# An epoch may take this many times as long as that, or as short.
_FACTOR = 4.0
# Seconds of an epoch on a V100 without any limit.
_EPOCH_SECONDS = 60.0


def assumed_epoch_seconds(experiment: Experiment, offers: Iterable[Offer]) -> float:
    """Return the seconds that an epoch is assumed to take on one V100.

    The budget is spent on the offer whose GPUs cost least for their published speed.
    """
    limits = experiment.limits
    trainings = []
    if limits.deadline is not None:
        trainings.append(limits.deadline / _TRAININGS_IN_A_ROW)
    price = min(filter(None, map(_reference_price, offers)), default=0.0)
    if limits.budget is not None and price > 0:
        trainings.append(limits.budget / _TRAININGS_PAID / price)
    if not trainings:
        return _EPOCH_SECONDS
    return min(trainings) / experiment.span.max


def _reference_price(offer: Offer) -> float:
    """Return the dollars for what a V100 trains in a second; 0 if that isn't known."""
    ratio = ratios.between(REFERENCE, offer.instance_type.gpu)
    if ratio is None or offer.gpus < 1:
        return 0.0
    return offer.usd_per_second / offer.gpus / ratio.ratio


def assumed_profiles(
    experiment: Experiment, offers: Iterable[Offer], provider: Provider
) -> Callable[[InstanceType], ScalingProfile]:
    """Return what gives the assumed profile of an experiment's script on an instance type."""
    seconds = assumed_epoch_seconds(experiment, offers)
    delays = provider.usual_delays()

    def assume_profile(machine: InstanceType) -> ScalingProfile:
        return prior_profile(machine, epoch_seconds=seconds, error=math.log(_FACTOR), delays=delays)

    return assume_profile

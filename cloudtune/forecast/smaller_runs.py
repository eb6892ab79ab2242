"""A smaller run that is played in place of a large one for its forecast.

A run of $100 has some 40,000 events, and a forecast plays many runs. A search does much the same
with a part of the money on a part of the GPUs: it begins a part of the trials. Machines of several
GPUs are cut into smaller ones: an eighth of a machine of eight GPUs costs an eighth, and trains a
trial as fast. Where trials are short, one that takes several times as long stands for several.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from cloudtune.experiment import Experiment
from cloudtune.forecast.staged_plans import Problem, Question
from cloudtune.model.catalog import Offer, pool
from cloudtune.model.plans import Limits, Machines, Rentable
from cloudtune.policy.registry import SEARCHES, STRATEGIES
from cloudtune.runs.figures import Figures
from cloudtune.strategies.best_rules import APART
from cloudtune.strategies.hyperband import bracket_shapes
from cloudtune.strategies.rungs import rung_epochs
from cloudtune.strategies.worth import Means, by_worth, means_within

# About how many reports a played run should have, if the best offer trains all of the time. Starts,
# stops and faster offers make several times as many events of them.
_REPORTS = 120
# Most trials of a search end at their first rungs, and so report more often than every `step`.
_EPOCHS_EACH = 8
# The same where its trials stand for several: that changes its figures less than another part.
_FEWEST_REPORTS = 40
# A smaller run has at least so many instances of the best offer, or so many parts of them.
_INSTANCES = 4
_SLICES = 2
# A whole training takes at most this share of the time on all GPUs of a smaller machine.
_TRAINING = 0.25
# Trials that stand for several start and train to their last epoch in this share of the time.
_SLOWEST = 0.1
# Trials report at least so often in a whole training.
_LEAST_REPORTS = 2
# Strategies that begin trials as long as there are GPUs, and so begin a part of them on a part.
_DIVISIBLE = frozenset({*SEARCHES, "asha", "asha-stopping", "random"})


@dataclass(frozen=True)
class SmallerRun:
    """How much smaller a run is than the one that it stands for.

    It has the `parts`-th part of the GPUs, dollars and trials. Where that is less than an instance,
    the instance is cut into as many smaller ones as `slices` has for its type. Its trials take
    `slowdown` times as long, each for as many that would follow one another. Between rungs they
    report every `step` epochs. At 1 it is the whole run.
    """

    parts: int = 1
    step: int = 1
    slowdown: float = 1.0
    slices: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, question: Question, rentables: Sequence[Rentable]) -> Self:
        """Return the run to play for a question, with about `_REPORTS` reports if it can be.

        `rentables` have the speeds that they have in that run.
        """
        experiment = question.problem.experiment
        strategy = experiment.strategy_name
        last = experiment.span.max
        if STRATEGIES[strategy].every_epoch or question.limits == Limits():
            return cls()
        means = _means(question)
        best = by_worth(rentables, means)[0]
        epochs = _epochs(question, best, means)
        if math.isinf(epochs):
            return cls()
        step = max(1, min(round(epochs / _REPORTS), last // _LEAST_REPORTS))
        reports = epochs / min(step, _EPOCHS_EACH)
        times = reports / _REPORTS
        shared = best.offer.instance_type.host_permille > 0  # one machine, on which few have room
        if strategy not in _DIVISIBLE or times <= 1 or shared:
            return cls(step=step)
        training = _TRAINING * means.seconds / last
        # A power of two divides most bounds of a fleet.
        parts = _power_of_two(min(round(times), _most_parts(best, means, training)))
        slices = {
            rentable.offer.instance_type.name: min(parts, _most_slices(rentable, training))
            for rentable in rentables
        }
        whole = best.profile.start.mean + last * best.epoch_seconds(best.cheapest_width)
        slowest = _SLOWEST * _training_seconds(best, means) / whole
        slowdown = max(1.0, min(reports / parts / _FEWEST_REPORTS, slowest))
        return cls(parts, step, slowdown, slices)

    @property
    def trials_each(self) -> float:
        """How many trials each of its trials stands for."""
        return self.parts * self.slowdown

    def question(self, question: Question) -> Question:
        """Return the question of the smaller run; no trial counts as stalled in it."""
        problem = question.problem
        experiment = problem.experiment
        cloud = experiment.cloud
        charges = experiment.charges
        trial = experiment.trial
        budget = question.limits.budget
        trials = experiment.trials
        concurrent = experiment.strategy.max_concurrent
        quotas = {name: self._part(vcpus) for name, vcpus in cloud.vcpu_quotas.items()}
        hourly = {
            name: None if value is None else value / self.parts
            for name, value in (("per_hour", charges.per_hour), ("head", charges.head))
        }
        changes: dict[str, object] = {
            "trials": None if trials is None else max(1, round(trials / self.trials_each)),
            "cloud": cloud.model_copy(
                update={"max_instances": self._most_instances(problem), "vcpu_quotas": quotas}
            ),
            "charges": charges.model_copy(update=hourly),
            "trial": trial.model_copy(
                update={"stall": trial.stall.model_copy(update={"factor": math.inf})}
            ),
        }
        if concurrent is not None:
            changes["strategy"] = experiment.strategy.model_copy(
                update={"max_concurrent": self._part(concurrent)}
            )
        smaller = replace(problem, experiment=experiment.model_copy(update=changes))
        limits = replace(question.limits, budget=None if budget is None else budget / self.parts)
        return replace(question, problem=smaller, limits=limits)

    def rentable(self, rentable: Rentable) -> Rentable:
        """Return a rentable as the smaller run may rent it."""
        slices = self._slices(rentable.offer)
        offer = _cut_offer(rentable.offer, slices)
        profile = rentable.profile.slow_down(self.slowdown)
        start = profile.start.scale(self.slowdown)
        resize = profile.resize.scale(self.slowdown)
        profile = replace(profile, start=start, resize=resize)
        most = self._part(rentable.most * slices)
        return replace(rentable, offer=offer, profile=profile, most=most)

    def whole(self, figures: Figures, fleet: Mapping[Offer, int]) -> Figures:
        """Return the figures of the whole run from those of the smaller one, and its fleet."""
        if self.parts == 1:
            return replace(figures, trials=round(figures.trials * self.slowdown))
        instances = sum(count * self.parts / self._slices(o) for o, count in fleet.items())
        return replace(
            figures,
            dollars=figures.dollars * self.parts,
            trials=round(figures.trials * self.trials_each),
            gpu_hours=figures.gpu_hours * self.parts,
            instances=math.ceil(instances),
        )

    def machines(self, fleet: Mapping[Offer, int], offers: Sequence[Offer]) -> list[Machines]:
        """Return the fleet of the whole run; `offers` are those of whole instances."""
        whole = {pool(offer): offer for offer in offers}
        return [
            Machines(whole[pool(offer)], math.ceil(count * self.parts / self._slices(offer)))
            for offer, count in fleet.items()
        ]

    def reports(self, experiment: Experiment) -> tuple[int, ...]:
        """Return the epochs at which trials report: every `step`, and all possible rungs.

        The other reports change nothing, and most events would be theirs.
        """
        first = experiment.span.min
        last = experiment.span.max
        if self.step == 1:
            return ()
        strategy = experiment.strategy_name
        factor = APART if strategy in SEARCHES else experiment.eta
        epochs = {1, *range(last, 0, -self.step), *rung_epochs(first, last, factor)}
        if strategy not in _DIVISIBLE:  # it may have brackets with rungs of their own
            for _, rungs in bracket_shapes(first, last, factor):
                epochs.update(rungs)
        return tuple(sorted(epochs))

    def _part(self, count: int) -> int:
        return max(1, count // self.parts)

    def _slices(self, offer: Offer) -> int:
        return self.slices.get(offer.instance_type.name, 1)

    def _most_instances(self, problem: Problem) -> int:
        """Return the cap on instances: of the smallest slices, as large fleets are of those."""
        return self._part(problem.max_instances * max(self.slices.values(), default=1))


def _means(question: Question) -> Means:
    """Return what a run may use from its first request on."""
    limits = question.limits
    problem = question.problem
    if limits.deadline is not None:
        limits = replace(limits, deadline=limits.deadline - question.first_request)
    return means_within(limits, problem.max_instances, problem.experiment.span.max)


def _epochs(question: Question, best: Rentable, means: Means) -> float:
    """Return about how many epochs a run trains, however far each trial gets; inf if unknown."""
    experiment = question.problem.experiment
    epochs = math.inf
    if math.isfinite(means.seconds):
        epochs = _instances(best, means) * means.seconds / best.epoch_instance_seconds
    elif best.epoch_dollars > 0:
        epochs = means.dollars / best.epoch_dollars
    if experiment.trials is not None:
        epochs = min(epochs, experiment.trials * experiment.span.max)
    return epochs


def _instances(best: Rentable, means: Means) -> int:
    return means.buy(best).instances if math.isfinite(means.seconds) else best.most


def _training_seconds(best: Rentable, means: Means) -> float:
    """Return how long a fleet may train, by the deadline and the money."""
    price = _instances(best, means) * best.offer.usd_per_second
    rented = min(means.seconds, means.dollars / price) if price > 0 else means.seconds
    return max(0.0, rented - best.idle_seconds)


def _most_parts(best: Rentable, means: Means, training: float) -> int:
    """Return how many parts a run may have at most, by what it has of its best offer."""
    instances = _instances(best, means)
    slices = _most_slices(best, training)
    return instances * slices // _SLICES if slices > 1 else instances // _INSTANCES


def _cut_offer(offer: Offer, slices: int) -> Offer:
    """Return an offer of one of the smaller machines that an instance is cut into."""
    if slices == 1:
        return offer
    kind = offer.instance_type
    smaller = replace(
        kind,
        gpus=kind.gpus // slices,
        vcpus=kind.vcpus // slices,
        memory_mib=kind.memory_mib // slices,
    )
    return replace(
        offer,
        instance_type=smaller,
        usd_per_hour=offer.usd_per_hour / slices,
        added_usd_per_hour=offer.added_usd_per_hour / slices,
    )


def _most_slices(rentable: Rentable, training: float) -> int:
    """Return into how many smaller machines an instance may be cut.

    On all GPUs of one of them an epoch takes `training` seconds at most.
    """
    gpus = rentable.gpus
    slices = 1
    while gpus % 2 == 0 and _fastest(rentable, gpus // 2) <= training:
        gpus //= 2
        slices *= 2
    return slices


def _fastest(rentable: Rentable, gpus: int) -> float:
    """Return the seconds of the fastest epoch on so many GPUs; inf if no trial has room."""
    widths = [width for width in rentable.profile.widths if width <= gpus]
    return min(map(rentable.epoch_seconds, widths), default=math.inf)


def _power_of_two(count: int) -> int:
    """Return the largest power of two that isn't above `count`, and at least 1."""
    return 1 << max(1, count).bit_length() - 1

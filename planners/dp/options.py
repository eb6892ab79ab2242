"""The options of one stage: every use of offers, instances and widths that may be best.

An option is up to `request.mix` groups, each an offer, a count of instances and a width. Columns
are NumPy arrays with one row per option and one column per group; a missing group has offer -1 and
no instances.

Which numbers of instances to try (`sizes`): with the durations of all stages fixed, the cheapest
fleet is a minimum-cost flow through the stages, bounded below by what each stage needs for its
waves and widths, so at a vertex every fleet size is one of these bounds. The argument holds for one
offer per stage whose minimum charge is over before it is returned; otherwise every size is tried,
up to a number of instances (`complete`).
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cloudtune.errors import UsageError
from cloudtune.model.placement import slots
from cloudtune.model.plans import Group, Rentable, Stage
from cloudtune.model.trial import GPU_ROUNDING, Width
from cloudtune.planners.arrays import Bools, Floats, Indices, Ints
from cloudtune.planners.base import PlanRequest

# With more, pairs of offers in a stage are too many to search.
_FEW_OFFERS = 12
# Up to this many instances a mixed stage tries every size; beyond, those of `sizes`.
_ALL_SIZES = 16

# One group of an option: rentable, instances, width, trials, waves.
Part = tuple[int, int, "Width", int, int]


@dataclass(frozen=True)
class Options:
    """The options of one stage; `train` is the total seconds that each group trains.

    `rate` is the dollars per second of holding its instances, `used` those of all its trials if
    they are billed by the function.
    """

    offer: Ints
    count: Ints
    width: Floats
    trials: Ints
    waves: Ints
    train: Floats
    rate: Floats
    used: Floats

    def __len__(self) -> int:
        return len(self.rate)

    @property
    def seconds(self) -> Floats:
        """The seconds of training until the last group is done: the least that a stage takes."""
        return np.asarray(self.train.max(axis=1))

    @property
    def dollars(self) -> Floats:
        """The price of the instances for that long: the least that a stage costs."""
        return np.asarray(self.rate * self.seconds + self.functions(self.train).sum(axis=1))

    def functions(self, seconds: Floats) -> Floats:
        """Return what each group pays by the function; `seconds` are those of all waves."""
        return np.asarray(self.used * seconds / np.maximum(self.waves, 1))

    def only(self, rows: Indices | Bools) -> "Options":
        return Options(*(column[rows] for column in vars(self).values()))

    def groups(self, request: PlanRequest, row: int) -> tuple[Group, ...]:
        """Return an option as the groups of a stage plan."""
        return tuple(
            Group(
                request.rentables[self.offer[row, g]].offer,
                int(self.count[row, g]),
                float(self.width[row, g]),
                int(self.trials[row, g]),
                int(self.waves[row, g]),
            )
            for g in range(self.offer.shape[1])
            if self.offer[row, g] >= 0
        )


@dataclass(frozen=True)
class Menu:
    """Every option of every stage of a request; caches what doesn't depend on the stage."""

    request: PlanRequest
    sizes: tuple[Sequence[int], ...]
    offer: Ints
    count: Ints
    width: Floats
    at_once: Ints
    epoch: Floats
    rate: Floats

    @classmethod
    def of(cls, request: PlanRequest, *, rounded: bool = False) -> "Menu":
        """Return the menu of a request, with bills `rounded` up or exact.

        Raises:
            UsageError: the request mixes more than two offers at once.
        """
        if request.mix > 2:
            raise UsageError("a stage can mix two offers at most")
        any_size = rounded or _any_size(request)
        choices = tuple(
            _sizes(request, index, any_size=any_size) for index in range(len(request.rentables))
        )
        table = [
            (index, width, slots(width, rentable.gpus, 1), rentable.epoch_seconds(width))
            for index, rentable in enumerate(request.rentables)
            for width in rentable.profile.widths
        ]
        rows = [(*row, size) for row in table for size in choices[row[0]]]
        offer, width, per_instance, epoch, count = np.array(rows, dtype=float).reshape(-1, 5).T
        gpus = np.array([rentable.gpus for rentable in request.rentables] or [1])
        whole = np.ceil(width / gpus[offer.astype(np.int64)] - GPU_ROUNDING).astype(np.int64)
        at_once = np.where(per_instance > 0, per_instance * count, count // np.maximum(whole, 1))
        rates = np.array(
            [rentable.offer.held_usd_per_second for rentable in request.rentables] or [0.0]
        )
        able = at_once > 0
        return cls(
            request,
            choices,
            offer[able].astype(np.int64),
            count[able].astype(np.int64),
            width[able],
            at_once[able].astype(np.int64),
            epoch[able],
            (count * rates[offer.astype(np.int64)])[able],
        )

    def stage(self, stage: Stage) -> Options:
        pairs = list(_pairs(self.request, stage, self.sizes)) if self.request.mix > 1 else []
        if pairs:
            return _join(self._alone(stage), _columns(self.request, stage, pairs))
        return self._alone(stage)

    def _alone(self, stage: Stage) -> Options:
        waves = -(-stage.trials // self.at_once)
        column = (slice(None), None)
        return Options(
            self.offer[column],
            self.count[column],
            self.width[column],
            np.full_like(self.offer, stage.trials)[column],
            waves[column],
            (waves * stage.epochs * self.epoch)[column],
            self.rate,
            (stage.trials * self.width * _gpu_second_prices(self.request)[self.offer])[column],
        )


def _sizes(request: PlanRequest, index: int, *, any_size: bool) -> list[int]:
    """Return the numbers of instances of a rentable that a best plan may have."""
    rentable = request.rentables[index]
    most = _most(request, rentable)
    trials = tuple(sorted({stage.trials for stage in request.work}))
    if any_size and most <= _ALL_SIZES:
        return list(range(1, most + 1))
    counts = set(_steps(trials, rentable.profile.widths, rentable.gpus))
    counts |= {len(live.ages) for live in request.fleet if live.offer == rentable.offer}
    return sorted(size for size in counts if 1 <= size <= most)


def ages_matter(request: PlanRequest) -> bool:
    """Whether an instance may be returned before its minimum charge is over."""
    if any(age < live.offer.minimum_seconds for live in request.fleet for age in live.ages):
        return True
    epochs = min((stage.epochs for stage in request.work), default=0)
    return any(
        rentable.profile.boot.mean
        + rentable.profile.release.mean
        + epochs * min(map(rentable.epoch_seconds, rentable.profile.widths))
        < rentable.offer.minimum_seconds
        for rentable in request.rentables
        if rentable.profile.widths
    )


def _any_size(request: PlanRequest) -> bool:
    """Whether a best plan may hold fleet sizes that no stage needs by itself.

    Beside another offer, or during a minimum charge, the cost of an instance isn't proportional to
    its life, and the argument of this module doesn't hold.
    """
    return request.mix > 1 or ages_matter(request)


def complete(request: PlanRequest, *, rounded: bool = False) -> bool:
    """Whether every fleet size that a best plan may have is among the options."""
    return request.max_instances <= _ALL_SIZES or not (rounded or _any_size(request))


@lru_cache(maxsize=256)
def _steps(trials: tuple[int, ...], widths: tuple[Width, ...], gpus: int) -> frozenset[int]:
    """Return the fewest instances for each number of waves, at any width, of any of the stages."""
    counts: set[int] = set()
    for count, width in itertools.product(trials, widths):
        whole = max(1, math.ceil(width / gpus))
        at_once = slots(width, gpus, whole)
        if at_once > 0:
            counts |= {whole * math.ceil(need / at_once) for need in _needs(count)}
            counts.add(count * whole)  # room for each survivor on its own instances
    return frozenset(counts)


@lru_cache(maxsize=256)
def _needs(trials: int) -> frozenset[int]:
    """Return how many trials must run at once for one wave, two waves, and so on."""
    return frozenset(math.ceil(trials / waves) for waves in range(1, trials + 1))


def _most(request: PlanRequest, rentable: Rentable) -> int:
    """Return how many instances of an offer may be alive at once, by all limits."""
    most = min(rentable.most, request.max_instances)
    quota = request.vcpu_quotas.get(rentable.offer.quota)
    vcpus = rentable.offer.instance_type.quota_units
    return most if quota is None or vcpus == 0 else min(most, quota // vcpus)


def _pairs(
    request: PlanRequest, stage: Stage, sizes: Sequence[Sequence[int]]
) -> Iterator[tuple[Part, Part]]:
    """Yield two groups at a time; the first takes as many trials as it can in its waves."""
    wide = [_mixed_sizes(request, index, few) for index, few in enumerate(sizes)]
    by_function = any(rentable.offer.per_function for rentable in request.rentables)
    # Billed by the function, a split costs by the trial: either group may be the full one.
    orders = itertools.permutations if by_function else itertools.combinations
    for left, right in orders(range(len(request.rentables)), 2):
        for first in _shares(request, left, wide[left], stage.trials - 1):
            rest = stage.trials - first[3]
            for second in _rests(request, right, wide[right], rest):
                if _together(request, first, second):
                    yield (first, second) if left < right else (second, first)


def _mixed_sizes(request: PlanRequest, index: int, few: Sequence[int]) -> Sequence[int]:
    most = min(request.max_instances - 1, _most(request, request.rentables[index]))
    return range(1, most + 1) if most <= _ALL_SIZES else [size for size in few if size <= most]


def _shares(request: PlanRequest, index: int, sizes: Iterable[int], most: int) -> Iterator[Part]:
    """Yield groups that leave some trials to another: full waves, or all but one trial."""
    rentable = request.rentables[index]
    for width, count in itertools.product(rentable.profile.widths, sizes):
        at_once = slots(width, rentable.gpus, count)
        most_waves = math.ceil(most / at_once) if at_once else 0
        for waves in range(1, most_waves + 1):
            yield index, count, width, min(most, at_once * waves), waves


def _rests(request: PlanRequest, index: int, sizes: Iterable[int], trials: int) -> Iterator[Part]:
    rentable = request.rentables[index]
    for width, count in itertools.product(rentable.profile.widths, sizes):
        at_once = slots(width, rentable.gpus, count)
        if at_once > 0:
            yield index, count, width, trials, math.ceil(trials / at_once)


def _together(request: PlanRequest, *parts: Part) -> bool:
    """Whether the groups fit under the limits for all offers together."""
    if sum(part[1] for part in parts) > request.max_instances:
        return False
    used: dict[str, int] = {}
    for index, count, *_ in parts:
        offer = request.rentables[index].offer
        used[offer.quota] = used.get(offer.quota, 0) + count * offer.instance_type.quota_units
    return all(used[quota] <= request.vcpu_quotas.get(quota, math.inf) for quota in used)


def _join(alone: Options, mixed: Options) -> Options:
    """Return both as one; options `alone` have offer -1 as their second group."""

    def wider(name: str, fill: float) -> Any:
        column = getattr(alone, name)
        return np.concatenate([column, np.full_like(column, fill)], axis=1)

    filled = {name: wider(name, 0) for name in vars(alone) if name not in ("offer", "rate")}
    first = Options(offer=wider("offer", -1), rate=alone.rate, **filled)
    pairs = zip(vars(first).values(), vars(mixed).values(), strict=True)
    return Options(*(np.concatenate(pair) for pair in pairs))


def _columns(request: PlanRequest, stage: Stage, pairs: Sequence[tuple[Part, Part]]) -> Options:
    table = np.array(pairs, dtype=float).reshape(len(pairs), 2, 5)
    offer, count, waves = (table[:, :, column].astype(np.int64) for column in (0, 1, 4))
    seconds = [
        request.rentables[index].epoch_seconds(width)
        for parts in pairs
        for index, _, width, *_ in parts
    ]
    epoch = np.array(seconds).reshape(len(pairs), 2)
    rates = np.array([rentable.offer.held_usd_per_second for rentable in request.rentables])
    return Options(
        offer=offer,
        count=count,
        width=table[:, :, 2],
        trials=table[:, :, 3].astype(np.int64),
        waves=waves,
        train=waves * stage.epochs * epoch,
        rate=(count * rates[offer]).sum(axis=1),
        used=table[:, :, 3] * table[:, :, 2] * _gpu_second_prices(request)[offer],
    )


def _gpu_second_prices(request: PlanRequest) -> Floats:
    """Return the dollars of a GPU-second of a trial on each rentable, if that is billed."""
    return np.array([rentable.offer.used_usd_per_second for rentable in request.rentables] or [0.0])


def drop_dominated_offers(request: PlanRequest) -> PlanRequest:
    """Return the request without offers that another one beats in every way.

    Only if each stage uses one offer: two side by side may train at two widths.
    """
    if request.mix > 1:
        return request
    held = {live.offer for live in request.fleet}
    figures = [_Figures.of(request, rentable) for rentable in request.rentables]
    kept: dict[tuple[object, ...], list[_Figures]] = {}
    for mine in sorted(figures, key=lambda figure: figure.price):
        rivals = kept.setdefault(mine.kind, [])
        beaten = sum(rival.beats(mine) for rival in rivals)
        if mine.rentable.offer in held or beaten < mine.rivals_needed:
            rivals.append(mine)
    staying = {id(rival.rentable) for rivals in kept.values() for rival in rivals}
    lean = tuple(rentable for rentable in request.rentables if id(rentable) in staying)
    return replace(request, rentables=lean)


@dataclass(frozen=True)
class _Figures:
    """The figures by which offers of one kind are compared.

    A vCPU quota that matters is part of the kind: another one may have room when this one doesn't.
    """

    rentable: Rentable
    kind: tuple[object, ...]
    price: float
    most: int
    vcpus: int
    epochs: dict[Width, float]
    delays: tuple[float, ...]
    rivals_needed: int

    @classmethod
    def of(cls, request: PlanRequest, rentable: Rentable) -> "_Figures":
        offer = rentable.offer
        profile = rentable.profile
        quota = offer.quota if offer.quota in request.vcpu_quotas else ""
        delays = (profile.launch, profile.boot, profile.start, profile.resize, profile.release)
        billing = (offer.minimum_seconds, offer.granularity_seconds, offer.per_function)
        return cls(
            rentable,
            (rentable.gpus, *billing, quota),
            offer.usd_per_second,
            _most(request, rentable),
            offer.instance_type.quota_units if quota else 0,
            {width: rentable.epoch_seconds(width) for width in profile.widths},
            tuple(delay.mean for delay in delays),
            _min_rivals(request, rentable),
        )

    def beats(self, other: "_Figures") -> bool:
        """Whether this offer can do everything that `other` can, no slower and at no more cost."""
        return (
            self.price <= other.price
            and self.most >= other.most
            and self.vcpus <= other.vcpus
            and all(self.epochs.get(w, math.inf) <= seconds for w, seconds in other.epochs.items())
            and all(mine <= its for mine, its in zip(self.delays, other.delays, strict=True))
        )


def _min_rivals(request: PlanRequest, rentable: Rentable) -> int:
    """Return how many offers must beat one before it can be left out.

    A launch isn't billed, but the instances that stay meanwhile are. If they cost more than
    returning them, changing to a twin can be cheaper than growing. With three rivals there is
    always one that neither the previous nor the next stage uses. Among many offers (twins in every
    zone) that is too much to search, so plans that save seconds by such a change are left out.
    """
    if len(request.rentables) > _FEW_OFFERS:
        return 1
    profile = rentable.profile
    second = rentable.offer.held_usd_per_second
    launch = request.charges.usd_per_launch / second if second > 0 else math.inf
    return 1 if profile.launch.mean <= profile.release.mean + launch else 3

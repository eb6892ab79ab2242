"""Partial plans as columns of numbers: taking a stage, and dropping what can't be best.

The rules are those of `planners.cost_model`, over arrays: a row is one way through the stages so
far (a label), a column of a matrix one option of the next stage.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from cloudtune.model.plans import Stage
from cloudtune.planners.arrays import Bools, Floats, Indices, Ints
from cloudtune.planners.base import PlanRequest
from cloudtune.planners.dp.options import Options

_AT_ONCE = 64  # labels compared with all others at a time: bounds the memory of the comparison
# Relative tolerance for sums of floats in another order.
_TIE = 1e-12


@dataclass(frozen=True)
class Labels:
    """Ways through the stages so far.

    `dollars` are those charged so far. `ages` (label, group, instance) ascend, are capped at
    `DelayColumns.oldest`, and are infinite without an instance; None if no age can matter. `parent`
    and `option` say where a label came from.
    """

    seconds: Floats
    dollars: Floats
    offer: Ints
    count: Ints
    width: Floats
    settled: Bools
    ages: Floats | None
    parent: Ints
    option: Ints

    def __len__(self) -> int:
        return len(self.seconds)

    def only(self, rows: Indices | Bools) -> "Labels":
        columns = {name: column[rows] for name, column in vars(self).items() if name != "ages"}
        ages = None if self.ages is None else self.ages[rows]
        return Labels(**columns, ages=ages)


@dataclass(frozen=True)
class DelayColumns:
    """The figures of each rentable as columns; the last row stands for no rentable (-1).

    `grain` is the seconds to which bills are rounded up, 0 if that isn't searched.
    """

    launch: Floats
    boot: Floats
    start: Floats
    resize: Floats
    release: Floats
    price: Floats
    minimum: Floats
    grain: Floats
    gpus: Floats

    @classmethod
    def of(cls, request: PlanRequest, *, rounded: bool = False) -> "DelayColumns":
        """Return the columns of a request, with bills `rounded` up or exact."""

        def column(values: list[float]) -> Floats:
            return np.array([*values, 0.0])

        profiles = [rentable.profile for rentable in request.rentables]
        offers = [rentable.offer for rentable in request.rentables]
        grain = column([o.granularity_seconds * rounded for o in offers])
        return cls(
            column([p.launch.mean for p in profiles]),
            column([p.boot.mean for p in profiles]),
            column([p.start.mean for p in profiles]),
            column([p.resize.mean for p in profiles]),
            column([p.release.mean for p in profiles]),
            column([o.held_usd_per_second for o in offers]),
            _whole(column([o.minimum_seconds for o in offers]), grain),
            grain,
            column([float(o.gpus) for o in offers]),
        )

    @property
    def oldest(self) -> Floats:
        """The age beyond which an instance's age makes no difference."""
        return np.where(self.grain > 0, np.inf, self.minimum)

    @staticmethod
    def vcpus(request: PlanRequest, quota: str) -> Ints:
        """Return the vCPUs that an instance of each rentable counts against a quota."""
        offers = [rentable.offer for rentable in request.rentables]
        counted = [o.instance_type.quota_units if o.quota == quota else 0 for o in offers]
        return np.array([*counted, 0])


@dataclass(frozen=True)
class Step:
    """One stage, for all labels and options at once."""

    request: PlanRequest
    stage: Stage
    delays: DelayColumns
    last: bool

    def begin(self, options: Options) -> Floats:
        """Return the total seconds that each group's trials take to begin, over all waves."""
        seconds = self.delays.start if self.stage.start_epoch == 0 else self.delays.resize
        return np.asarray(options.waves * seconds[options.offer])

    def least(self, options: Options, *, fresh: bool) -> tuple[Floats, Floats]:
        """Return lower bounds for the seconds and dollars of each option, whatever comes before.

        With `fresh`, all instances of an option are launched and boot: there are none before.
        """
        delays = self.delays
        offer = options.offer
        together = options.waves.max(axis=1) == 1
        if offer.shape[1] > 1:
            together &= offer[:, 1] < 0
        begin = np.where(together[:, None] & (not fresh), 0.0, self.begin(options))
        launch = delays.launch[offer] if fresh else np.zeros_like(begin)
        arrival = launch + delays.boot[offer] if fresh else launch
        seconds = np.where(offer >= 0, arrival + begin + options.train, 0.0).max(axis=1)
        price = delays.price[offer] * options.count
        charges = self.request.charges
        # A group launched in this stage isn't billed from the start of the stage.
        absent = delays.launch[offer] + float(delays.release.max())
        lived = np.maximum(begin + options.train, seconds[:, None] - absent)
        if fresh and offer.shape[1] == 1:
            lived = seconds[:, None] - launch
        dollars = (price * lived).sum(axis=1)
        dollars = dollars + (charges.usd_per_launch * options.count.sum(axis=1) if fresh else 0.0)
        dollars = dollars + options.functions(begin + options.train).sum(axis=1)
        if self.last:
            seconds = seconds + delays.release[offer].max(axis=1)
            dollars = dollars + (price * delays.release[offer]).sum(axis=1)
        return seconds, dollars + seconds * charges.usd_per_second

    def take(self, labels: Labels, options: Options) -> "Taken":
        """Return the seconds and dollars of each option after each label."""
        return Taken(self, labels, options)


class Taken:
    """The seconds and dollars of every option after every label: matrices (label, option)."""

    def __init__(self, step: Step, labels: Labels, options: Options) -> None:
        self._step = step
        self._labels = labels
        self._options = options
        delays = step.delays
        request = step.request
        # Group i is held before the stage, group j is wanted for it. If they have the same offer,
        # as many are kept as both have; the rest of i goes, and the rest of j is launched.
        held = range(labels.offer.shape[1])
        wanted = range(options.offer.shape[1])
        same = {
            (i, j): (labels.offer[:, i, None] == options.offer[None, :, j])
            & (options.offer[None, :, j] >= 0)
            for i in held
            for j in wanted
        }
        self._kept_at = {
            (i, j): np.where(
                same[i, j], np.minimum(labels.count[:, i, None], options.count[None, :, j]), 0
            )
            for i in held
            for j in wanted
        }
        kept = [_sum(self._kept_at[i, j] for i in held) for j in wanted]
        self._fresh = [options.count[None, :, j] - kept[j] for j in wanted]
        stays = [_sum(self._kept_at[i, j] for j in wanted) for i in held]
        going = [labels.count[:, i, None] - stays[i] for i in held]
        self._wait = self._waiting(going)
        self.seconds = self._duration(same[0, 0], going[0])
        dollars = _sum(self._release(i, stays[i], going[i]) for i in held)
        for j in wanted:
            price = delays.price[options.offer[None, :, j]]
            launch = delays.launch[options.offer[None, :, j]]
            lived = kept[j] * self.seconds + self._fresh[j] * (self.seconds - self._wait - launch)
            dollars = dollars + lived * price + self._fresh[j] * request.charges.usd_per_launch
        self.dollars = dollars + self.seconds * request.charges.usd_per_second
        if options.used.any():
            self.dollars = self.dollars + self._functions(same[0, 0], going[0])

    def _waiting(self, going: list[Ints]) -> Floats:
        labels = self._labels
        release = self._step.delays.release
        full = self._lacks_room()
        slowest = np.zeros(full.shape)
        for i, leaving in enumerate(going):
            ending = np.where(leaving > 0, release[labels.offer[:, i]][:, None], 0.0)
            slowest = np.maximum(slowest, ending)
        return np.where(full, slowest, 0.0)

    def _lacks_room(self) -> Bools:
        """Whether missing instances have no room beside all held ones."""
        labels = self._labels
        options = self._options
        request = self._step.request
        total = labels.count.sum(axis=1)[:, None] + _sum(self._fresh)
        full = total > request.max_instances
        for quota, most in request.vcpu_quotas.items():
            vcpus = self._step.delays.vcpus(request, quota)
            held = (labels.count * vcpus[labels.offer]).sum(axis=1)[:, None]
            new = _sum(
                fresh * vcpus[options.offer[None, :, j]] for j, fresh in enumerate(self._fresh)
            )
            full = full | (held + new > most)
        return np.asarray(full)

    def _duration(self, same: Bools, going: Ints) -> Floats:
        options = self._options
        delays = self._step.delays
        begin = self._step.begin(options)
        staying = self._staying(same, going)
        longest = np.zeros(same.shape)
        for j, fresh in enumerate(self._fresh):
            offer = options.offer[:, j]
            arrival = self._wait + (delays.launch[offer] + delays.boot[offer])[None, :]
            overhead = np.where(
                fresh > 0,
                arrival + begin[None, :, j],
                np.where(staying, 0.0, begin[None, :, j]),
            )
            seconds = np.where(offer >= 0, overhead + options.train[None, :, j], 0.0)
            longest = np.maximum(longest, seconds)
        return longest

    def _functions(self, same: Bools, going: Ints) -> Floats:
        """Return the bill by the function: each trial's GPUs while it begins and trains."""
        options = self._options
        begin = self._step.begin(options)
        trained = options.functions(options.train)
        begun = options.functions(begin)
        quiet = self._staying(same, going) & (self._fresh[0] == 0)
        return np.asarray(trained.sum(axis=1)[None, :] + np.where(quiet, 0.0, begun.sum(axis=1)))

    def _staying(self, same: Bools, going: Ints) -> Bools:
        """Whether every survivor stays in place (`planners.cost_model.stays`)."""
        labels = self._labels
        options = self._options
        alone_before = labels.settled
        alone_now = options.waves[:, 0] == 1
        if labels.offer.shape[1] > 1:
            alone_before = alone_before & (labels.offer[:, 1] < 0)
        if options.offer.shape[1] > 1:
            alone_now = alone_now & (options.offer[:, 1] < 0)
        gpus = self._step.delays.gpus[options.offer[:, 0]]
        whole = np.ceil(options.width[:, 0] / gpus)
        roomy = options.count[:, 0] >= self._step.stage.trials * whole
        kept_width = labels.width[:, 0, None] == options.width[None, :, 0]
        enough = (going == 0) | roomy[None, :]
        return np.asarray(same & alone_before[:, None] & alone_now[None, :] & kept_width & enough)

    def _release(self, group: int, stays: Ints, going: Ints) -> Floats:
        """Return what the instances of a group that go, the oldest, still cost."""
        labels = self._labels
        delays = self._step.delays
        offer = labels.offer[:, group]
        if labels.ages is None:
            return np.asarray(going * (delays.release * delays.price)[offer][:, None])
        costs = leaving_costs(labels, delays, group)
        return np.asarray(np.take_along_axis(costs, stays, axis=1))

    def labels(self, rows: Ints, columns: Ints) -> Labels:
        """Return the labels after some pairs of label and option."""
        options = self._options
        before = self._labels
        settled = options.waves[columns].max(axis=1) == 1
        fresh = Labels(
            before.seconds[rows] + self.seconds[rows, columns],
            before.dollars[rows] + self.dollars[rows, columns],
            options.offer[columns],
            options.count[columns],
            np.where(settled[:, None], options.width[columns], 0.0),
            settled,
            self._later_ages(rows, columns),
            rows,
            columns,
        )
        return self._end(fresh) if self._step.last else fresh

    def _later_ages(self, rows: Ints, columns: Ints) -> Floats | None:
        ages = self._labels.ages
        options = self._options
        delays = self._step.delays
        if ages is None:
            return None
        most = max(ages.shape[2], int(options.count.max(initial=1)))
        seconds = self.seconds[rows, columns][:, None]
        wait = self._wait[rows, columns][:, None]
        place = np.arange(most)[None, :]
        aged = np.full((len(rows), options.offer.shape[1], most), np.inf)
        for j in range(options.offer.shape[1]):
            offer = options.offer[columns, j]
            count = options.count[columns, j][:, None]
            fresh = self._fresh[j][rows, columns][:, None]
            new = seconds - wait - delays.launch[offer][:, None]
            old = np.full((len(rows), most), np.inf)
            for i in range(ages.shape[1]):
                kept = self._kept_at[i, j][rows, columns][:, None]
                held = np.pad(
                    ages[rows, i], ((0, 0), (0, most - ages.shape[2])), constant_values=np.inf
                )
                old = np.where(place < kept, held + seconds, old)
            # Fresh instances are the youngest; kept ones follow, in their order.
            shifted = np.take_along_axis(old, np.maximum(place - fresh, 0), axis=1)
            line = np.where(place < fresh, new, shifted)
            oldest = delays.oldest[offer][:, None]
            aged[:, j] = np.where(place < count, np.minimum(line, oldest), np.inf)
        return np.sort(aged, axis=2)

    def _end(self, labels: Labels) -> Labels:
        delays = self._step.delays
        charges = self._step.request.charges
        release = delays.release[labels.offer]
        longest = np.where(labels.offer >= 0, release, 0.0).max(axis=1)
        if labels.ages is None:
            bills = (labels.count * release * delays.price[labels.offer]).sum(axis=1)
        else:
            groups = range(labels.offer.shape[1])
            bills = np.sum([leaving_costs(labels, delays, g)[:, 0] for g in groups], axis=0)
        no_offer = np.full_like(labels.offer, -1)
        return Labels(
            labels.seconds + longest,
            labels.dollars + bills + longest * charges.usd_per_second,
            no_offer,
            np.zeros_like(labels.count),
            np.zeros_like(labels.width),
            np.ones_like(labels.settled),
            None,
            labels.parent,
            labels.option,
        )


def _sum(matrices: Iterable[Floats | Ints]) -> Any:
    return reduce(np.add, matrices)


def leaving_costs(labels: Labels, delays: DelayColumns, group: int) -> Floats:
    """Return what it costs if all but the youngest 0, 1, 2 … instances of a group go."""
    assert labels.ages is not None
    offer = labels.offer[:, group]
    ages = labels.ages[:, group]
    minimum = delays.minimum[offer][:, None]
    grain = delays.grain[offer][:, None]
    owed = np.maximum(delays.release[offer][:, None], minimum - ages)
    if delays.grain.any():
        finite = np.where(np.isfinite(ages), ages, 0.0)
        owed = _whole(owed + finite, grain) - finite
    cost = np.where(np.isfinite(ages), owed * delays.price[offer][:, None], 0.0)
    # Ages ascend and the oldest go, so with n kept instances the cost is a sum from the n-th on.
    upward = np.cumsum(cost[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([upward, np.zeros((len(labels), 1))], axis=1)


def _whole(seconds: Floats, grain: Floats) -> Floats:
    """Return seconds rounded up to grains, as `Offer.charge` does; a grain of 0 is exact."""
    size = np.where(grain > 0, grain, 1.0)
    return np.where(grain > 0, np.ceil(seconds / size - 1e-9) * size, seconds)


def drop_dominated(labels: Labels, delays: DelayColumns) -> Indices:
    """Return the labels that no other with the same fleet beats in time and money."""
    if len(labels) <= 1:
        return np.arange(len(labels))
    order, state = _by_fleet(labels)
    if labels.ages is not None:
        return _undominated_with_ages(labels, delays, state, order)
    dollars = labels.dollars[order]
    # One running minimum for all states: shift each below the minimum of the one before.
    span = 2.0 * (float(dollars.max(initial=0.0)) + 1.0)
    running = np.minimum.accumulate(dollars - state * span)
    before = np.concatenate([[np.inf], running[:-1]]) + state * span
    return np.asarray(order[dollars < before - _TIE * span])


def _by_fleet(labels: Labels) -> tuple[Indices, Ints]:
    """Return the order of labels by fleet, seconds and dollars, and the fleets' numbers in it.

    A fleet is its offers, instances and widths, and whether all are settled.
    """
    columns = (labels.settled, *labels.offer.T, *labels.count.T, *labels.width.T)
    # Most columns are equal in all labels: they don't distinguish fleets.
    varying = [column for column in columns if (column != column[0]).any()]
    order = np.lexsort((labels.dollars, labels.seconds, *reversed(varying)))
    changes = np.zeros(len(labels), dtype=bool)
    for column in varying:
        ordered = column[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    return order, np.cumsum(changes)


def _undominated_with_ages(
    labels: Labels, delays: DelayColumns, state: Ints, order: Indices
) -> Indices:
    """Return the undominated labels if instances of different ages may owe different amounts."""
    assert labels.ages is not None
    # Missing instances get the same age in all labels of a fleet.
    ages = np.where(np.isfinite(labels.ages), labels.ages, 0.0)
    kept = np.ones(len(order), dtype=bool)
    bounds = np.flatnonzero(np.diff(state, prepend=-1, append=-1))
    several = np.diff(bounds) > 1
    for begin, end in zip(bounds[:-1][several], bounds[1:][several], strict=True):
        rows = order[begin:end]
        owed = _Owed.of(delays, labels.offer[rows[0]])
        kept[begin:end] = _first_of_ties(ages[rows], labels.dollars[rows], owed)
    return order[kept]


@dataclass(frozen=True)
class _Owed:
    """How instances of one fleet are billed, a row for each of its groups."""

    price: Floats
    minimum: Floats
    grain: Floats

    @classmethod
    def of(cls, delays: DelayColumns, offer: Ints) -> "_Owed":
        columns = (delays.price, delays.minimum, delays.grain)
        return cls(*(column[offer][:, None] for column in columns))

    def more(self, ages: Floats, others: Floats) -> Floats:
        """Return the most that a fleet may owe above another; the last axes are group, instance.

        Two rounded bills differ by the part of a grain that one is ahead of the other, whenever the
        instances go; and before the minimum by the whole difference in age.
        """
        younger = np.maximum(others - ages, 0.0)
        more = np.minimum(younger, np.maximum(self.minimum - ages, 0.0))
        if self.grain.any():
            grain = np.where(self.grain > 0, self.grain, np.inf)
            ahead = np.where(self.grain > 0, np.mod(others - ages, grain), 0.0)
            more = np.maximum(more, np.where(ahead < grain * (1 - _TIE), ahead, 0.0))
        return np.asarray((more * self.price).sum(axis=(-2, -1)))


def _first_of_ties(ages: Floats, dollars: Floats, owed: _Owed) -> Bools:
    """Return which labels of one fleet aren't beaten by any before them."""
    kept = np.ones(len(dollars), dtype=bool)
    for begin in range(0, len(dollars), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        before = np.flatnonzero(kept[: begin + _AT_ONCE])
        more = owed.more(ages[before, None], ages[None, part])
        beats = dollars[before, None] + more <= dollars[part] + _TIE
        earlier = before[:, None] < np.arange(begin, begin + beats.shape[1])
        kept[part] = ~(beats & earlier).any(axis=0)
    return kept

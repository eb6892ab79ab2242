"""The rules of `best`: how to open, how much a rung says, which trials get a seat at the end.

It has every constant of the strategy; docs/best.md shows how good the strategy is with them. All
functions are pure.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from cloudtune.model.plans import Rentable
from cloudtune.model.trial import GPU_ROUNDING, TrialId, Width
from cloudtune.strategies.base import View
from cloudtune.strategies.worth import buy_instances

# The share of the money that exploring may take.
MONEY = 0.75
# The share of the time that exploring may take.
TIME = 0.5
# The plans of the end: each covers a share of the remaining time, with a share of the money.
PLANS: tuple[tuple[float, float], ...] = ((0.5, 0.6), (1.0, 1.0))
# A rung has this many times the epochs of the one below, and one in this many trials continues.
APART = 2
# The assumed rank correlation of a rung with the next, before there is evidence. It is near 1, so
# that rungs begin at the first epoch until results show that it predicts too little: 0.92 began
# later, which cost breadth (0.88 of the regret of 0.2, not 0.79, on half 1 of docs/best.md).
STEP = 0.98
# The number of trials that `STEP` counts as.
BELIEF = 4.0
# Exploring is wide enough to reach this share of the whole schedule in its time.
SCHEDULE = 0.25
# The share by which a plan's epochs may take longer.
LATE = 0.03
# Epochs may take this much longer or shorter before the width of exploring is chosen again.
NOISE = 0.1
# The share by which a profile may be wrong with exploring still ending in time.
DOUBT = 0.35


@dataclass(frozen=True)
class Opening:
    """How many instances explore, until which run second, and how many dollars the end keeps.

    `unspent` are the dollars per second that don't pay for another whole instance. If the limits
    pay for hardly more than one trial's whole schedule, there is no time to move it: trials begin
    `straight` GPUs wide, and the first that is ahead continues to its end.
    """

    instances: int
    until: float
    kept: float = 0.0
    straight: Width | None = None
    unspent: float = 0.0


def opening(
    now: float,
    seconds: float,
    dollars: float,
    price: float,
    most: int,
    *,
    before: Opening | None = None,
) -> Opening:
    """Return how to explore with the seconds and dollars left; `price` is dollars per second.

    If the money doesn't pay one instance for that long, one explores until its share is spent.
    `before` is the opening that another offer takes over: its end and what it keeps stay the same.
    """
    span = TIME * seconds if before is None else max(0.0, before.until - now)
    kept = (1 - MONEY) * dollars if before is None else before.kept
    if math.isinf(dollars) or price == 0:
        return Opening(most, now + span, kept, unspent=math.inf)
    paid = max(0.0, dollars - kept)
    if math.isinf(span):
        return Opening(1, now + paid / price, kept)
    bought = buy_instances(paid, price, span, most)
    until = now + min(span, paid / (price * bought.instances))
    return Opening(bought.instances, until, kept, unspent=bought.unspent)


def longer(before: Opening, now: float, seconds: float, dollars: float) -> Opening:
    """Return an opening that ends later if less was spent than planned, as during a wait.

    Its money is to its time as at the beginning, beside those of the end.
    """
    explored = max(0.0, dollars - before.kept) * TIME / MONEY
    kept = before.kept * (1 - TIME) / (1 - MONEY)
    if not 0 < explored + kept < math.inf:
        return before
    until = now + seconds * explored / (explored + kept)
    return replace(before, until=max(before.until, until))


@dataclass(frozen=True)
class _FullTraining:
    """One trial trained to its last epoch at a width, on instances requested now.

    `spare_seconds` and `spare_dollars` are what the limits leave beside it. `finish_seconds` is the
    training of a trial that has explored, from the epoch that it may be in.
    """

    width: Width
    instances: int
    spare_seconds: float
    spare_dollars: float
    finish_seconds: float

    @property
    def paid(self) -> bool:
        return min(self.spare_seconds, self.spare_dollars) >= 0


def _full_trainings(
    view: View, rentable: Rentable, last: int, current_epoch: float
) -> Iterator[_FullTraining]:
    """Yield the full training of one trial at each width that the script can use."""
    profile = rentable.profile
    offer = rentable.offer
    arrival = profile.launch.mean + profile.boot.mean
    for width, epoch in profile.epoch.items():
        instances = math.ceil(width / rentable.gpus)
        training = last * epoch.mean
        seconds = arrival + profile.start.mean + training
        billed = max(offer.minimum_seconds, seconds - profile.launch.mean + profile.release.mean)
        yield _FullTraining(
            width,
            instances,
            view.seconds_left - seconds,
            view.dollars_left - instances * billed * offer.usd_per_second,
            training + current_epoch,
        )


def guard_end(planned: Opening, view: View, rentable: Rentable, last: int, most: int) -> Opening:
    """Return an opening after which one trial can still be trained to its last epoch.

    Unchanged if the limits don't pay for one trial. Exploring instances bill at least their
    minimum, and until they can be gone.
    """
    profile = rentable.profile
    minimum = rentable.offer.minimum_seconds
    current_epoch = profile.epoch_seconds(rentable.cheapest_width)  # the best may be in an epoch
    trainings = [
        training
        for training in _full_trainings(view, rentable, last, current_epoch)
        if training.paid and training.instances <= most
    ]
    if not trainings:
        return planned
    tail = view.ahead - view.now + profile.release.mean
    arrival = profile.launch.mean + profile.boot.mean
    first_epoch = arrival + profile.start.mean + current_epoch
    instance_seconds = view.dollars_left / max(rentable.offer.usd_per_second, 1e-12)

    def exploring_seconds(training: _FullTraining, instances: int, late: float) -> float:
        finish = training.finish_seconds * (1 + late) + profile.resize.mean
        if training.instances > instances:
            finish += arrival
        others = max(0, instances - training.instances)
        seconds = (instance_seconds - training.instances * finish) / instances - tail
        if seconds + tail < minimum:  # the others are billed for longer than they explore
            share = (instance_seconds - others * minimum) / training.instances
            seconds = min(minimum - tail, share - finish)
        return min(view.seconds_left - finish, seconds)

    for late, instances in itertools.product((DOUBT, LATE), range(planned.instances, 0, -1)):
        longest = max(exploring_seconds(training, instances, late) for training in trainings)
        if longest >= first_epoch:
            seconds = longest if late == DOUBT else first_epoch
            until = min(planned.until, view.now + seconds)
            return replace(planned, instances=instances, until=until)

    def room(training: _FullTraining) -> float:
        """Return what the training leaves of the scarcer limit, beside what it takes of it."""
        seconds = view.seconds_left - training.spare_seconds
        dollars = max(view.dollars_left - training.spare_dollars, 1e-12)
        return min(training.spare_seconds / seconds, training.spare_dollars / dollars)

    roomiest = max(trainings, key=room)
    return Opening(roomiest.instances, view.now, planned.kept, roomiest.width)


def step(
    lower: Mapping[TrialId, float], upper: Mapping[TrialId, float], stands_for: float = 1.0
) -> float:
    """Return the rank correlation of a rung's results with the next one's, better being greater.

    The trials that continued are the better ones, which are harder to tell apart: the correlation
    is corrected for that (Thorndike's case 2). A few trials count only in part. Each of them
    `stands_for` so many.
    """
    both = [name for name in upper if name in lower]
    correlation = 0.0
    count = len(both)
    if count > 2:  # two points always correlate
        ranks = _ranks([*lower.values()])
        place = {name: ranks[n] for n, name in enumerate(lower)}
        below = np.array([place[n] for n in both])
        above = _ranks([upper[n] for n in both])
        spread = float(ranks.std())
        own = float(below.std())
        if own > 0 and above.std() > 0:
            seen = float(np.corrcoef(below, above)[0, 1])
            wider = max(1.0, spread / own)
            correlation = seen * wider / math.sqrt(1 - seen**2 + (seen * wider) ** 2)
    trusted = max(0.0, stands_for * count - 3.0) if count > 2 else 0.0
    z = trusted * math.atanh(min(0.99, max(-0.99, correlation))) + BELIEF * math.atanh(STEP)
    return max(0.05, math.tanh(z / (trusted + BELIEF)))


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    order = np.argsort(np.argsort(np.asarray(values), kind="stable"), kind="stable")
    return order.astype(float)


def first_rung(epochs: Sequence[int], steps: Sequence[float], work: float, setup: float) -> int:
    """Return the number of the rung at which new trials should first be compared.

    The best of n trials improves with n; chosen by a rung whose results correlate with the end by
    rho, it gains only rho times as much. So this maximises rho(rung) x m(n), where m(n) is the mean
    of the best of n, and n is how many trials get to the rung with `work` epochs of training;
    `setup` is in epochs too.
    """
    best = -math.inf
    chosen = 0
    rho = 1.0
    for level, epoch in enumerate(epochs):
        if epoch * 2 > epochs[-1] and level:
            break
        count = max(1.0, work / (epoch + setup))
        gain = _expected_best(count) * rho
        if gain > best:
            best = gain
            chosen = level
        rho /= steps[level] if level < len(steps) else STEP
    return chosen


def _expected_best(count: float) -> float:
    """Return the approximate mean of the best of `count` draws of a normal distribution (Blom)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


@dataclass(frozen=True)
class Seat:
    """A trial that trains to its end, and its width."""

    trial: TrialId
    width: Width


def cheapest_width_in_time(
    work: float, seconds: Mapping[Width, float], setup: float, left: float
) -> Width:
    """Return the cheapest width at which `work` epochs are done in the remaining time.

    The fastest width if none is fast enough. `seconds` are those of an epoch, by width.
    """
    fitting = [w for w, epoch in seconds.items() if setup + work * epoch * (1 + LATE) <= left]
    if fitting:
        return min(fitting, key=lambda w: (w * seconds[w], w))
    return min(seconds, key=lambda w: (seconds[w], w))


def nodes(widths: Iterable[Width], gpus: int) -> int:
    """Return how many instances it takes to seat these widths; wide ones take whole instances.

    Widest first, each on the first instance with room for it. Instances with equal room are filled
    together, so that many seats take no longer than a few.
    """
    whole = 0  # free GPUs, and how many instances have them
    rooms = list[tuple[float, float]]()
    for width, count in sorted(Counter(widths).items(), reverse=True):
        if width > gpus:
            whole += count * math.ceil(width / gpus - GPU_ROUNDING)
        else:
            rooms = _remaining_rooms(width, count, [*rooms, (gpus, math.inf)])
    return whole + sum(int(many) for _, many in rooms)


def _remaining_rooms(
    width: Width, count: int, rooms: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the room that `count` more seats leave, in as few instances as they take."""
    left = list[tuple[float, float]]()
    for free, many in rooms:
        per_room = math.floor((free + GPU_ROUNDING) / width)
        full = min(many, count // per_room) if per_room else 0
        rest = count - int(full) * per_room if full < many and per_room else 0
        count -= int(full) * per_room + rest
        left += [(free - per_room * width, full), (free - rest * width, 1 if rest else 0)]
        if many < math.inf:
            left.append((free, many - full - (1 if rest else 0)))
    return [(free, many) for free, many in left if many]


def fit_width(
    taken: Sequence[Seat], width: Width, widths: Iterable[Width], gpus: int, instances: int
) -> Width | None:
    """Return the width, or the widest below it, that still fits beside `taken`; None if none."""
    used = [seat.width for seat in taken]
    if sum(used) + min(widths) > gpus * instances + GPU_ROUNDING:
        return None
    for narrower in sorted((w for w in widths if w <= width), reverse=True):
        if nodes([*used, narrower], gpus) <= instances:
            return narrower
    return None

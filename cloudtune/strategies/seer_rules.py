"""The rules of `seer`: how to open, how much a rung says, which trials get a seat at the end.

It has every constant of the strategy; docs/seer.md shows how good the strategy is with them. All
functions are pure.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from cloudtune.model.plans import Rentable
from cloudtune.model.trial import GPU_ROUNDING, TrialId, Width
from cloudtune.strategies.base import View
from cloudtune.strategies.offers import buy_instances

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
# later, which cost breadth (0.88 of the regret of 0.2, not 0.79, on half 1 of docs/seer.md).
STEP = 0.98
# The number of trials that `STEP` counts as.
BELIEF = 4.0
# Exploring is wide enough to reach this share of the whole schedule in its time.
SCHEDULE = 0.25
# Another season of exploring needs the time of this many epochs and starts.
SEASON = 2.0
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


def guard_end(planned: Opening, view: View, rentable: Rentable, last: int, most: int) -> Opening:
    """Return an opening after which one trial can still be trained to its last epoch.

    Unchanged if the limits don't pay for one trial. Exploring instances bill at least their
    minimum, and until they can be gone.
    """
    now = view.now
    left = (view.seconds_left, view.dollars_left)
    tail = view.ahead - now + rentable.profile.release.mean
    profile = rentable.profile
    offer = rentable.offer
    price = offer.usd_per_second
    arrival = profile.launch.mean + profile.boot.mean
    least = offer.minimum_seconds
    amidst = profile.epoch_seconds(rentable.cheapest_width)  # the best may be in an epoch
    ways = []
    for width, epoch in profile.epoch.items():
        count = math.ceil(width / rentable.gpus)
        trained = last * epoch.mean
        whole = arrival + profile.start.mean + trained
        bill = count * max(least, whole - profile.launch.mean + profile.release.mean) * price
        ways.append((left[0] - whole, left[1] - bill, width, count, trained + amidst))
    ways = [w for w in ways if min(w[0], w[1]) >= 0 and w[3] <= most]
    if not ways:
        return planned
    second = max(price, 1e-12)
    seen = arrival + profile.start.mean + amidst

    def spare(way: tuple[float, float, Width, int, float], instances: int, late: float) -> float:
        count = way[3]
        again = way[4] * (1 + late) + profile.resize.mean
        again += arrival if count > instances else 0.0
        others = max(0, instances - count)
        paid = left[1] / second
        until = (paid - count * again) / instances - tail
        if until + tail < least:  # the others are billed for longer than they explore
            until = min(least - tail, (paid - others * least) / count - again)
        return min(left[0] - again, until)

    for late, instances in itertools.product((DOUBT, LATE), range(planned.instances, 0, -1)):
        until = max(spare(way, instances, late) for way in ways)
        if until >= seen:
            until = until if late == DOUBT else seen
            return replace(planned, instances=instances, until=min(planned.until, now + until))
    room = max(ways, key=lambda w: min(w[0] / (left[0] - w[0]), w[1] / max(left[1] - w[1], 1e-12)))
    return Opening(room[3], now, planned.kept, room[2])


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

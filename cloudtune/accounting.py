"""Where the money of a run went: every billed GPU-second and every cent in one category.

    training     of finished epochs that nobody had to train again
    checkpoint   of their seconds, those for which saving held them up
    start-up     instances that boot; trials whose workers are set up or ended
    barrier      trials that have trained as far as they may, and wait for word
    lost         epochs that weren't finished, or had to be trained again
    idle         GPUs of instances that take trials, and that no trial has
    returning    GPUs without a trial of instances given back or lost, until they are gone
    minimum      what a minimum charge adds; `rounding` what whole seconds add
    launches     what a run is charged for each launch; `hourly` what by the hour

The dollars add up to the bill of the policy's books (`Books.spent`), the GPU-seconds to those
between launch and end of all instances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.occupancy import occupancy
from cloudtune.plan import Charges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.ledger import Entry
    from cloudtune.occupancy import Lease, Occupancy, Session, Stretch
    from cloudtune.trial import TrialId

USES = ("training", "checkpoint", "start-up", "barrier", "lost")
"""What the GPUs are used for that a trial has."""
CATEGORIES = (*USES, "idle", "returning", "minimum", "rounding", "launches", "hourly")
# What is left of sums of floats that should cancel out, as a share of them.
_NOISE = 1e-12


@dataclass(frozen=True)
class Amount:
    """GPU-seconds that were billed, and dollars."""

    gpu_seconds: float = 0.0
    dollars: float = 0.0


def total(amounts: Iterable[Amount]) -> Amount:
    """Return the sum."""
    found = list(amounts)
    return Amount(math.fsum(a.gpu_seconds for a in found), math.fsum(a.dollars for a in found))


@dataclass(frozen=True)
class InstanceAccount:
    """What one instance was used for, from its launch to its end (`returned`: that was told).

    `boot` is the part of its start-up before it took trials. `busy` are the GPUs that trained, in
    the epochs that count as training, after each change: (time, GPUs).
    """

    intent: str
    instance: str | None
    offer: Offer
    begin: float
    end: float
    returned: bool
    amounts: Mapping[str, Amount]
    boot: Amount
    busy: tuple[tuple[float, float], ...]

    @property
    def whole(self) -> Amount:
        """Everything that it cost."""
        return total(self.amounts.values())

    @property
    def busy_share(self) -> float:
        """The share of its GPU-seconds in which trials trained."""
        return _share(self.amounts["training"].gpu_seconds, self.whole.gpu_seconds)


@dataclass(frozen=True)
class Accounting:
    """What a run was billed, by category (`CATEGORIES`, all of them), by instance and by trial.

    `boot` is a part of the start-up. A trial has only what it held itself (`USES`). Of the
    `restarts`, of trials that had trained before, the `resizes` were at another width.
    """

    amounts: Mapping[str, Amount]
    boot: Amount
    instances: tuple[InstanceAccount, ...]
    trials: Mapping[TrialId, Mapping[str, Amount]]
    resizes: int
    restarts: int

    @property
    def whole(self) -> Amount:
        """The bill."""
        return total(self.amounts.values())

    @property
    def busy_share(self) -> float:
        """The share of the billed GPU-seconds in which trials trained."""
        return _share(self.amounts["training"].gpu_seconds, self.whole.gpu_seconds)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


@dataclass
class _Tally:
    """Amounts by category, as they are found."""

    parts: dict[str, list[Amount]] = field(default_factory=dict)

    def add(self, category: str, amount: Amount) -> None:
        self.parts.setdefault(category, []).append(amount)

    def amounts(self, categories: Sequence[str]) -> dict[str, Amount]:
        return {name: total(self.parts.get(name, ())) for name in categories}


class _Use(NamedTuple):
    """GPUs of one instance, from when until when."""

    begin: float
    end: float
    gpus: float

    def within(self, begin: float, end: float) -> float:
        """Return the GPU-seconds in a window."""
        return self.gpus * max(0.0, min(self.end, end) - max(self.begin, begin))


@dataclass
class _Page:
    """The account of one instance, as it is written."""

    lease: Lease
    end: float
    tally: _Tally = field(default_factory=_Tally)
    held: list[_Use] = field(default_factory=list)
    trained: list[_Use] = field(default_factory=list)

    def amount(self, gpu_seconds: float) -> Amount:
        """Return what GPU-seconds of it cost."""
        offer = self.lease.offer
        return Amount(gpu_seconds, gpu_seconds * offer.usd_per_second / offer.gpus)

    def hold(self, begin: float, end: float, gpus: float) -> None:
        """Have a session hold GPUs of it."""
        self.held.append(_Use(begin, end, gpus))

    def use(self, stretch: Stretch, gpus: float) -> Amount:
        """Take down what they were used for, as long as the instance was there; return that."""
        since, until = self.lease.began_at, self.end
        begin, end = max(stretch.begin, since), min(stretch.end, until)
        amount = self.amount(_Use(begin, end, gpus).within(since, until))
        self.tally.add(stretch.use, amount)
        if stretch.use == "training" and end > begin:
            self.trained.append(_Use(begin, end, gpus))
        return amount

    def close(self, charges: Charges) -> InstanceAccount:
        """Fill in what no session held, and what isn't charged by the second."""
        lease, begin = self.lease, self.lease.began_at
        left = self._between(begin, lease.left_at, self.end)
        joined = self._between(begin, lease.joined_at, left)
        boot = self.amount(self._free(begin, joined))
        self.tally.add("start-up", boot)
        self.tally.add("idle", self.amount(self._free(joined, left)))
        self.tally.add("returning", self.amount(self._free(left, self.end)))
        self._charge(charges)
        return InstanceAccount(
            intent=lease.intent,
            instance=lease.instance,
            offer=lease.offer,
            begin=begin,
            end=self.end,
            returned=lease.gone_at is not None,
            amounts=self.tally.amounts(CATEGORIES),
            boot=boot,
            busy=tuple(_steps(self.trained)),
        )

    @staticmethod
    def _between(begin: float, at: float | None, end: float) -> float:
        return end if at is None else min(max(begin, at), end)

    def _free(self, begin: float, end: float) -> float:
        """Return the GPU-seconds in a window that no session held."""
        whole = self.lease.offer.gpus * (end - begin)
        free = whole - math.fsum(use.within(begin, end) for use in self.held)
        return free if free > _NOISE * self.lease.offer.gpus * self.end else 0.0

    def _charge(self, charges: Charges) -> None:
        offer, lived = self.lease.offer, self.end - self.lease.began_at
        least = max(lived, offer.minimum_seconds)
        rounded = offer.charge(lived) - least * offer.usd_per_second
        self.tally.add("minimum", Amount(0.0, (least - lived) * offer.usd_per_second))
        self.tally.add("rounding", Amount(0.0, max(0.0, rounded)))
        self.tally.add("launches", Amount(0.0, charges.usd_per_launch))


def _steps(uses: Iterable[_Use]) -> list[tuple[float, float]]:
    """Return the GPUs in use after each change of their number."""
    changes: dict[float, list[float]] = {}
    for use in uses:
        changes.setdefault(use.begin, []).append(use.gpus)
        changes.setdefault(use.end, []).append(-use.gpus)
    steps: list[tuple[float, float]] = []
    busy = 0.0
    for at in sorted(changes):
        busy += math.fsum(changes[at])
        shown = abs(round(busy, 9))  # thirds of a GPU add up to a whole one, or to none
        if shown != (steps[-1][1] if steps else 0.0):
            steps.append((at, shown))
    return steps


def account(
    entries: Iterable[Entry], offers: Iterable[Offer], charges: Charges | None = None
) -> Accounting:
    """Return where the money of a recorded run went; `offers` are those that it could rent.

    Of a run that goes on, or whose last instances nobody has seen go, it is the bill up to the
    last entry.
    """
    return _account(occupancy(entries, offers), charges or Charges())


def _account(found: Occupancy, charges: Charges) -> Accounting:
    pages = {lease.intent: _Page(lease, lease.end(found.at)) for lease in found.leases}
    placed = {page.lease.instance: page for page in pages.values() if page.lease.instance}
    trials: dict[TrialId, _Tally] = {}
    for session, kept in found.kept():
        tally = trials.setdefault(session.start.trial, _Tally())
        _write(session, kept, placed, tally)
    instances = tuple(page.close(charges) for page in pages.values())
    whole = {name: total(each.amounts[name] for each in instances) for name in CATEGORIES}
    seconds = 0.0 if found.began is None else max(0.0, found.at - found.began)
    whole["hourly"] = Amount(0.0, seconds * charges.usd_per_second)
    return Accounting(
        amounts=whole,
        boot=total(each.boot for each in instances),
        instances=instances,
        trials={name: tally.amounts(USES) for name, tally in trials.items()},
        resizes=found.resizes,
        restarts=found.restarts,
    )


def _write(session: Session, kept: float, pages: Mapping[str, _Page], tally: _Tally) -> None:
    """Write a session into the accounts of its instances and of its trial."""
    stretches = [each for each in session.stretches(kept) if each.end > each.begin]
    for piece in session.start.placement:
        page = pages[piece.instance]
        page.hold(session.begin, session.end, piece.gpus)
        for stretch in stretches:
            tally.add(stretch.use, page.use(stretch, piece.gpus))

"""A run played on spot traces: what it paid, and what it would have paid knowing them beforehand.

The policy is the one that a real run has, and the world is the simulated one: only what the spot
pools have to give comes from a trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.compare.audit import audited
from benchmarks.compare.omniscient import bound, work_of
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.timeline import prices, read
from cloudtune.engine.simulator import RECLAIMED, SimWorld, synthetic_metric
from cloudtune.errors import CloudtuneError
from cloudtune.model.catalog import pool
from cloudtune.model.events import InstanceGone
from tests.flapping import flaps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.compare.pools import SpotTrace
    from cloudtune.engine.record.timeline import Timeline
    from cloudtune.model.catalog import Offer, PoolName
    from cloudtune.model.plans import Rentable
    from cloudtune.policy.run import RunPolicy

# A pool is reckoned with at the price that holds for so much of its trace, as AWS's are.
PRICE_SHARE = 0.9


@dataclass(frozen=True)
class Replayed:
    """What a run came to that began at second `start` of its traces.

    `dollars` is the bill at the traces' prices, where they have any, and `bound` the least that the
    same work costs for a buyer who knows the traces beforehand; neither has `charges` in it. `work`
    is in epochs. `lost` instances were taken back, `refused` requests turned down; `spot_hours` and
    `on_demand_hours` were paid for. `finished` says that no limit ended the run, and `violations`
    how it passed its limits: none, as must be.
    """

    start: float
    seconds: float
    dollars: float
    bound: float
    work: float
    lost: int
    refused: int
    spot_hours: float
    on_demand_hours: float
    ended: str
    finished: bool
    best_epochs: int
    violations: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The bill over the bound; 1 where nothing was paid."""
        return self.dollars / self.bound if self.bound > 0 else 1.0


def on_traces(rentables: Sequence[Rentable], traces: Mapping[Offer, SpotTrace]) -> list[Rentable]:
    """Return what can be rented, with the prices and the behaviour of the traces."""
    return [_as_traced(rentable, traces.get(rentable.offer)) for rentable in rentables]


def _as_traced(rentable: Rentable, trace: SpotTrace | None) -> Rentable:
    if trace is None:
        return rentable
    price = usual_price(trace) or rentable.offer.usd_per_hour
    capped = trace.capped(price)
    offer = replace(
        rentable.offer, usd_per_hour=price, interruptions_per_hour=round(capped.losses, 6)
    )
    return replace(rentable, offer=offer, behaviours=capped.behaviours)


def usual_price(trace: SpotTrace) -> float | None:
    """Return the price that holds for `PRICE_SHARE` of the trace or less; None if it has none."""
    pieces = sorted(trace.priced(0.0, trace.length), key=lambda p: p.usd_per_hour or 0.0)
    gone = 0.0
    for piece in pieces:
        gone += piece.end - piece.begin
        if gone >= PRICE_SHARE * trace.length - 1e-9:
            return piece.usd_per_hour
    raise AssertionError("a trace lasts as long as its pieces")


def starts(length: float, count: int, first: float = 0.0) -> list[float]:
    """Return `count` starts, spread evenly over a trace from the first on."""
    return [(first + length * number / count) % length for number in range(count)]


def replay(
    policy: RunPolicy,
    rentables: Sequence[Rentable],
    traces: Mapping[PoolName, SpotTrace],
    *,
    start: float = 0.0,
    seed: int = 0,
) -> Replayed:
    """Return what a fresh policy's run comes to on these traces; `rentables` are all it may rent.

    Raises:
        CloudtuneError: the fleet flapped, or the run stands still (bugs of ours).
    """
    offers = [rentable.offer for rentable in rentables]
    pools = {
        pool(offer): traces[pool(offer)].begun_at(start).capped(offer.usd_per_hour)
        for offer in offers
        if pool(offer) in traces
    }
    state = policy.state
    metric = state.metric
    ledger = MemoryLedger()
    world = SimWorld(rentables, metric.name, synthetic_metric(metric.mode, seed), seed, pools=pools)
    run(policy, world, ledger)
    if policy.ending is None:
        raise CloudtuneError("nothing happens any more, and the run has not ended (a bug)")
    timeline = read(ledger.entries)
    stages = policy.itinerary.stage_began if policy.itinerary else ()
    flapped = flaps(
        ledger.entries, timeline, rentables, brakes=state.brakes, metric=metric, stages=stages
    )
    if flapped:
        raise CloudtuneError("the fleet flapped (a bug in cloudtune): " + "; ".join(flapped))
    audit = audited(timeline, offers, metric.name, metric.mode)
    work = work_of(timeline, world.rentables)
    until = max(audit.seconds, state.limits.deadline or 0.0)
    hours = {"spot": 0.0, "on-demand": 0.0}
    for lease in audit.leases:
        hours[lease.offer.market] += (lease.end - lease.begin) / 3600.0
    ends = [entry.event for entry in ledger.entries if isinstance(entry.event, InstanceGone)]
    instances = timeline.instances.values()
    best = policy.best
    return Replayed(
        start=start,
        seconds=policy.over_at,
        dollars=_billed(timeline, offers, pools),
        bound=bound(work, world.rentables, pools, most=state.max_instances, until=until),
        work=work,
        lost=sum(event.reason == RECLAIMED for event in ends),
        refused=sum(it.refusal is not None and not it.released for it in instances),
        spot_hours=hours["spot"],
        on_demand_hours=hours["on-demand"],
        ended=policy.ending.value,
        finished=policy.ending.exit_code == 0,
        best_epochs=0 if best is None else max(policy.trials[best.trial].history),
        violations=audit.violations(state.limits),
    )


def _billed(
    timeline: Timeline, offers: Sequence[Offer], pools: Mapping[PoolName, SpotTrace]
) -> float:
    """Return the bill: of a pool whose trace has prices by those, else by its offer's."""
    priced = prices(timeline, offers)
    total = [timeline.used_dollars(priced)]
    for name, it in timeline.instances.items():
        if it.launched_at is None:
            continue
        offer = priced[name]
        begin = it.began_at
        end = it.end(timeline.at)
        trace = pools.get(pool(offer))
        if trace is None or not trace.prices or offer.per_function:
            total.append(offer.charge(end - begin))
        else:
            end = max(end, begin + offer.minimum_seconds)
            added = (end - begin) / 3600.0 * offer.added_usd_per_hour
            total.append(trace.dollars(begin, end, offer.usd_per_hour) + added)
    return math.fsum(total)

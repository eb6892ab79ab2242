"""What a run really took, and how it kept its limits, by nothing but the events of its ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cloudtune.engine.record.accounting import compute_accounting
from cloudtune.engine.record.timeline import prices, read
from cloudtune.model.plans import SLACK
from cloudtune.model.units import format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtune.engine.ledger import Entry
    from cloudtune.engine.record.accounting import InstanceAccount
    from cloudtune.engine.record.timeline import SessionSpan, Timeline
    from cloudtune.model.catalog import Offer
    from cloudtune.model.plans import Limits
    from cloudtune.model.trial import Mode, TrialId, Width


class Point(NamedTuple):
    """A new best: when, by which trial, at its which epoch.

    `dollars` is the bill if everything had been given back then.
    """

    at: float
    dollars: float
    metric: float
    trial: TrialId
    epoch: int


class Span(NamedTuple):
    """One session: a trial had `width` GPUs, and trained in `trained` of the seconds."""

    trial: TrialId
    width: Width
    begin: float
    end: float
    trained: float


@dataclass(frozen=True)
class Audit:
    """The sums of a run. `leases` and `spans` are in the order of their begin.

    `epochs` is how far each trial was ever trained, in the order of their first start. Instances
    that may exist, as their request isn't answered, are only `not_returned`. The bill is without
    charges.
    """

    leases: tuple[InstanceAccount, ...]
    spans: tuple[Span, ...]
    path: tuple[Point, ...]
    epochs: Mapping[TrialId, int]
    resizes: int
    not_returned: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """When the last instance was gone; 0 where there was none."""
        return max((lease.end for lease in self.leases), default=0.0)

    @property
    def dollars(self) -> float:
        return math.fsum(lease.whole.dollars for lease in self.leases)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that were paid for by the second, from launch to the end."""
        return math.fsum(lease.offer.gpus * lease.seconds for lease in self.leases)

    @property
    def held(self) -> float:
        """GPU-seconds in which a trial had the GPU: set up, trained, or waited at a rung."""
        return math.fsum(span.width * (span.end - span.begin) for span in self.spans)

    @property
    def trained(self) -> float:
        """GPU-seconds of epochs that were finished."""
        return math.fsum(span.width * span.trained for span in self.spans)

    @property
    def idle(self) -> float:
        """GPU-seconds paid for in which no trial had the GPU, booting included."""
        return max(0.0, self.gpu_seconds - self.held)

    def violations(self, limits: Limits) -> tuple[str, ...]:
        """Return how the run passed its limits, or what it left behind; empty if it kept them."""
        violations = [f"{intent} was never given back" for intent in self.not_returned]
        deadline = limits.deadline
        budget = limits.budget
        if deadline is not None and self.seconds > deadline * (1 + SLACK):
            late = max(self.leases, key=lambda lease: lease.end)
            violations.append(
                f"{late.intent} was gone {format_seconds(late.end - deadline)} after the deadline "
                f"of {format_seconds(deadline)}"
            )
        if budget is not None and self.dollars > budget * (1 + SLACK):
            violations.append(f"cost ${self.dollars:.6f} of a budget of {format_dollars(budget)}")
        return tuple(violations)


def audit(entries: Sequence[Entry], offers: Iterable[Offer], metric: str, mode: Mode) -> Audit:
    """Return what the run of a ledger took; `offers` are those that it could rent."""
    return audited(read(entries), offers, metric, mode)


def audited(timeline: Timeline, offers: Iterable[Offer], metric: str, mode: Mode) -> Audit:
    """Return what a run took; what is still open is taken to end at its last event."""
    offered = tuple(offers)
    accounting = compute_accounting(timeline, offered)
    priced = prices(timeline, offered)

    leases = [account for account in accounting.instances if account.instance is not None]

    def spent(at: float) -> float:
        held = (lease.dollars(at) for lease in leases)
        return math.fsum([*held, timeline.used_dollars(priced, end=at)])

    path = (
        Point(e.report.at, spent(e.report.at), e.report.metrics[metric], e.trial, e.number)
        for e in timeline.improvements(metric, mode)
    )
    spans = (_span(session, timeline) for session in timeline.sessions.values())
    return Audit(
        leases=tuple(sorted(leases, key=lambda lease: lease.begin)),
        spans=tuple(sorted(spans, key=lambda span: (span.begin, span.trial))),
        path=tuple(path),
        epochs=_epochs(timeline),
        resizes=accounting.resizes,
        not_returned=tuple(a.intent for a in accounting.instances if not a.returned),
    )


def _span(session: SessionSpan, timeline: Timeline) -> Span:
    start = session.start
    trained = sum(epoch.report.seconds for epoch in session.epochs)
    return Span(start.trial, start.width, session.begin, min(session.end, timeline.at), trained)


def _epochs(timeline: Timeline) -> dict[TrialId, int]:
    """Return how far each trial was ever trained, or cloned from."""
    furthest: dict[TrialId, int] = {}
    for session in timeline.sessions.values():
        start = session.start
        done = session.epochs[-1].report.epoch if session.epochs else 0
        furthest[start.trial] = max(furthest.get(start.trial, start.start_epoch), done)
    return furthest

"""What is told of a run that decides as it goes, beforehand and afterwards, as facts and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.phrases import counted, offer_text, price_text
from cloudtune.plan_tables import Fact, Sheet, limits_text, price_facts, speed_facts
from cloudtune.units import format_clock, format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cloudtune.elastic_figures import RungReport
    from cloudtune.elastic_plan import ElasticPlan, Figures, Forecast
    from cloudtune.plan import Limits, Spread
    from cloudtune.proposal import ElasticProposal


def header(proposal: ElasticProposal) -> list[Fact]:
    """Return what was asked, and what the answer rests on."""
    plan, (first, last) = proposal.plan, proposal.epochs
    trials = f"up to {counted(proposal.trials, 'trial')} ({proposal.sampler} sampler)"
    concurrent = proposal.max_concurrent
    return [
        Fact("job", f"{trials}, epochs {first} to {last}, eta {proposal.eta}"),
        Fact(
            "strategy",
            f"{plan.strategy}: decides as results come in, so there are no stages beforehand",
        ),
        *([] if concurrent is None else [Fact("", f"at most {concurrent} trials at once")]),
        *([] if proposal.target is None else [Fact("", _target(proposal))]),
        Fact("GPUs each", f"{plan.allocator} allocator"),
        Fact("limits", limits_text(proposal.limits)),
        *price_facts(proposal.prices),
        *speed_facts(proposal.profiles),
    ]


def _target(proposal: ElasticProposal) -> str:
    return f"ends as soon as {proposal.metric} is {proposal.target:g}"


def renting(proposal: ElasticProposal) -> list[Fact]:
    """Return what a run would rent, until when, and what it may cost at most."""
    plan = proposal.plan
    rents = [
        f"up to {each.instances} x {offer_text(each.offer)} at {price_text(each.offer)}"
        for each in plan.fleet
    ]
    return [
        *(Fact("" if n else "rents", text) for n, text in enumerate(rents)),
        Fact(
            "", f"by the {plan.fleet_rule} fleet rule; never more than {plan.max_instances} in all"
        ),
        *_caps(plan, proposal.limits),
        Fact("head", "one process on this machine"),
        Fact("checkpoints", proposal.storage),
        Fact("worst case", f"{format_dollars(proposal.worst_dollars)}: {proposal.worst_why}"),
        *(Fact("" if n else "assumes", text) for n, text in enumerate(proposal.assumptions)),
    ]


def _caps(plan: ElasticPlan, limits: Limits) -> Iterator[Fact]:
    """Yield when the run is over at the latest, and what it costs at most."""
    if limits.deadline is None:
        yield Fact("over", "when nothing is left to train, or the budget is spent")
    else:
        yield Fact("over", f"after {format_seconds(limits.deadline)} at the latest")
    if limits.budget is None:
        yield Fact("costs", "as much as it takes until then: no budget is set", warning=True)
    else:
        yield Fact("costs", f"at most {format_dollars(limits.budget)}: the budget")
    if limits.deadline is not None:
        whole = format_dollars(limits.deadline * plan.usd_per_second)
        yield Fact("", f"all of that fleet until the deadline would be {whole}")


def _figure(value: float) -> str:
    return f"{value:,.4g}"


_SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("time", "seconds", format_seconds),
    ("cost", "dollars", format_dollars),
    ("trials started", "trials", _figure),
    ("epochs of the best", "epochs", _figure),
    ("GPU-hours paid", "gpu_hours", _figure),
    ("instances at most", "instances", _figure),
)


def forecast(found: Forecast) -> Sheet:
    """Return what the simulated runs came to."""
    rows = tuple((label, *_percentiles(getattr(found, name), show)) for label, name, show in _SHOWN)
    title = f"Forecast: the same policy in {found.samples} simulated runs, with made-up metrics"
    return Sheet(title, ("", "p5", "p50", "p95"), rows, frozenset({""}))


def _percentiles(spread: Spread, show: Callable[[float], str]) -> tuple[str, str, str]:
    return show(spread.p5), show(spread.p50), show(spread.p95)


def against(title: str, found: Forecast, actual: Figures) -> Sheet:
    """Return what a run came to beside its forecast."""
    rows = tuple(
        (
            label,
            *_percentiles(getattr(found, name), show),
            show(getattr(actual, name)),
        )
        for label, name, show in _SHOWN
    )
    columns = ("", "forecast p5", "p50", "p95", "actual")
    return Sheet(f"{title}: forecast / actual", columns, rows, frozenset({""}))


def rungs(rows: Sequence[RungReport], metric: str) -> Sheet:
    """Return how far trials came: how many, the best of them, GPU-hours and when."""
    body = tuple(
        (
            f"{row.epoch}",
            f"{row.trials}",
            "-" if row.best is None else f"{row.best:.4f}",
            f"{row.gpu_hours:.4f}",
            "-" if row.first_at is None else format_clock(row.first_at),
            "-" if row.last_at is None else format_clock(row.last_at),
        )
        for row in rows
    )
    columns = ("epoch", "trials there", f"best {metric}", "GPU-hours trained", "first", "last")
    return Sheet("How far the trials came", columns, body)

"""Text for machines, widths, shares and ages, in tables and in sentences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cloudtune.model.catalog import LOCAL, Offer
from cloudtune.model.plans import Group, Plan, RunEnd, RunPlan, StagePlan
from cloudtune.model.trial import Parallel, Width
from cloudtune.model.units import format_dollars, format_gpu_hours, format_seconds

_DAYS_OF_A_MONTH = 365.25 / 12


def count_noun(count: float, noun: str) -> str:
    """Return "1 GPU", "2 GPUs"."""
    return f"{count:,.12g} {noun}{'' if count == 1 else 's'}"


def metric_text(value: float) -> str:
    """Return a metric, with an exponent where four decimals would show little of it."""
    plain = value == 0 or 1e-3 <= abs(value) < 1e6
    return f"{value:.4f}" if plain else f"{value:.4g}"


@dataclass(frozen=True)
class Scale:
    """The progress of trials in their experiment's unit: a report per `every` units.

    Below 1 that is a part of an epoch.
    """

    unit: str = "epoch"
    every: float = 1

    def units(self, reports: float) -> float:
        """Return the units of some reports, as they are shown: hundredths of parts alone."""
        return round(reports * self.every, 2 if self.every < 1 else None)

    def text(self, reports: float) -> str:
        """Return "4", "2,000", "0.75"."""
        return f"{self.units(reports):,.12g}"

    def at(self, report: int) -> str:
        """Return "epoch 4", "step 2,000"."""
        return f"{self.unit} {self.text(report)}"

    def counted(self, reports: int) -> str:
        """Return "1 epoch", "4,000 steps"."""
        return count_noun(self.units(reports), self.unit)

    def span(self, first: int, last: int) -> str:
        """Return a range: "5-8" for the fifth to the eighth report."""
        if self.every < 1:
            return f"{self.text(first)}-{self.text(last)}"
        return f"{(first - 1) * self.every + 1:,}-{self.text(last)}"


EPOCHS = Scale()


def width_text(width: Width) -> str:
    """Return the number of GPUs; a share of one as "1/3"."""
    parts = round(1 / width) if width > 0 else 0
    return f"1/{parts}" if parts > 1 and abs(width * parts - 1) < 0.01 else f"{width:g}"


def gpus_text(width: Width, parallel: Parallel = "") -> str:
    """Return "1/3 GPU", "1 GPU", "8 GPUs", "8 GPUs by fsdp"."""
    if width <= 1:
        return f"{width_text(width)} GPU"
    return f"{width_text(width)} GPUs" + (f" by {parallel}" if parallel else "")


def machine_text(instance_type: str, market: str, zone: str) -> str:
    """Return an offer without its price: "p3.16xlarge spot us-east-1a", "local-8x-cpu"."""
    if instance_type.startswith(LOCAL):
        return instance_type
    return " ".join(part for part in (instance_type, market, zone) if part)


def offer_text(offer: Offer) -> str:
    """Return an offer without its price: "p3.16xlarge spot us-east-1a"."""
    return machine_text(offer.instance_type.name, offer.market, offer.zone)


def cost_format(offers: Iterable[Offer]) -> Callable[[float], str]:
    """Return what formats the dollars of these offers, which may stand for GPU-hours."""
    in_gpu_hours = any(offer.in_gpu_hours for offer in offers)
    return format_gpu_hours if in_gpu_hours else format_dollars


def end_text(end: RunEnd, offers: Sequence[Offer]) -> str:
    """Return when a run ends and at which cost: "4m 33s, $0.71"; no cost where there is none."""
    if end.dollars <= 0:
        return format_seconds(end.at)
    return f"{format_seconds(end.at)}, {cost_format(offers)(end.dollars)}"


def price_text(offer: Offer) -> str:
    """Return "$9.00/h" or "$7.1283/h": two to four decimals."""
    if offer.in_gpu_hours or not offer.usd_per_hour:
        return "no price"
    cents, _, rest = f"{offer.usd_per_hour:,.4f}".partition(".")
    return f"${cents}.{rest[:2]}{rest[2:].rstrip('0')}/h"


def group_text(group: Group) -> str:
    """Return "8 x p3.16xlarge spot us-east-1a"."""
    return f"{group.instances} x {offer_text(group.offer)}"


def stage_text(stage: StagePlan) -> str:
    """Return how a stage trains: "2 GPUs each, on 4 x g7.12xlarge on-demand", group by group."""
    if len(stage.groups) == 1:
        [group] = stage.groups
        return f"{gpus_text(group.width)} each, on {group_text(group)}"
    return " and ".join(
        f"{count_noun(group.trials, 'trial')} at {gpus_text(group.width)} on {group_text(group)}"
        for group in stage.groups
    )


def fleet_text(plan: Plan) -> str:
    """Return the machines of a plan, briefly: "8 x p3.16xlarge spot, up to 2 x g5.xlarge".

    "up to" means that their number changes; zones and "on-demand" are left out.
    """
    parts = []
    for offer, sizes in plan.sizes.items():
        upto = "" if min(sizes) == max(sizes) else "up to "
        market = "" if offer.market == "on-demand" else offer.market
        machine = machine_text(offer.instance_type.name, market, zone="")
        parts.append(f"{upto}{max(sizes)} x {machine}")
    return ", ".join(parts)


def proof(plan: RunPlan) -> str:
    """Return what is proven about a plan: "proven optimal", "gap 3 %", "heuristic, not proven"."""
    if plan.followed is None:
        return "forecast, not proven"
    gap = plan.followed.gap
    if gap is None or plan.forecast.source == "pools":
        return "heuristic, not proven"
    return "proven optimal" if gap <= 0 else f"gap {percent(gap)}"


def percent(share: float) -> str:
    """Return "97.3 %"; "100 %" and "0 %" only if exact."""
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def age_text(days: int) -> str:
    """Return "today", "12 days old", "4 months old", "3 years old"."""
    if days <= 0:
        return "today"
    if days < 2 * _DAYS_OF_A_MONTH:
        return f"{count_noun(days, 'day')} old"
    if days < 2 * 365.25:
        return f"{round(days / _DAYS_OF_A_MONTH)} months old"
    return f"{round(days / 365.25)} years old"


def ago_text(days: int) -> str:
    """Return "today", "3 days ago", "4 months ago", "3 years ago"."""
    return age_text(days).replace(" old", " ago")


def limits_text(
    seconds: float | None,
    dollars: float | None,
    cost: Callable[[float], str] = format_dollars,
) -> str:
    """Return "deadline 2h, budget $40.00", or "none"."""
    return ", ".join(limit_texts(seconds, dollars, "deadline ", "budget ", cost)) or "none"


def limit_texts(
    seconds: float | None,
    dollars: float | None,
    time: str = "",
    money: str = "",
    cost: Callable[[float], str] = format_dollars,
) -> list[str]:
    """Return the limits that are set, each after its word: ["within 2h", "for $40.00"]."""
    texts = [] if seconds is None else [f"{time}{format_seconds(seconds)}"]
    return texts if dollars is None else [*texts, f"{money}{cost(dollars)}"]

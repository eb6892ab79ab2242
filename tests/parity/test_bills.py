"""Bills worked out by hand (docs/bills.md): our code comes to the same, in each of its four ways.

The figures here are not computed by what is tested: they are the page's, and the page's blocks are
worked out again line by line.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare.audit import audit
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.engine.record.accounting import account
from cloudtune.engine.simulator import SimWorld
from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import BillingUnit, Market, Offer
from cloudtune.model.events import Event, InstanceGone, NodeLost
from cloudtune.model.plans import Allowance, Charges, Group, Plan, Rentable, Stage
from cloudtune.model.scaling import ScalingProfile
from cloudtune.model.trial import EndReason
from cloudtune.planners.base import Planner, PlanRequest
from cloudtune.planners.cost_model import price
from cloudtune.planners.estimate.outlook import outlook
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.ilp.planner import IlpPlanner
from cloudtune.policy.run import RunPolicy
from cloudtune.profiles import bundled
from tests.builders import NO_CHARGES, group, itinerary_of, profile, scripted

PAGE = (Path(__file__).parents[2] / "docs" / "bills.md").read_text(encoding="utf-8")
CATALOG = pricing.catalog("us-east-1", ("on-demand", "spot"))
EXACT = 1e-6
"""The page rounds dollars to six places."""


def on(name: str, market: Market = "on-demand") -> Offer:
    return CATALOG.offer(name, market)


def make_profile(offer: Offer, epoch: Mapping[float, float], **but: float) -> ScalingProfile:
    """Return a profile with the delays of the page, and no spread."""
    delays = {"launch": 10.0, "boot": 30.0, "start": 5.0, "resize": 5.0, "release": 2.0, **but}
    return profile(epoch, name=offer.instance_type.name, **delays)


def job(
    stages: Sequence[Stage],
    *speeds: tuple[Offer, Mapping[float, float]],
    charges: Charges = NO_CHARGES,
    most: int = 20,
) -> PlanRequest:
    """Return stages to be planned on offers, each with its seconds of an epoch by width."""
    rentables = tuple(Rentable(offer, make_profile(offer, epoch), most) for offer, epoch in speeds)
    return PlanRequest(tuple(stages), rentables, Allowance(), most, charges=charges)


@dataclass(frozen=True)
class Billed:
    """What a plan costs by the model, by forecasts with no spread, and in a simulated run."""

    plan: Plan
    drawn: tuple[float, float]
    policy: RunPolicy
    ledger: MemoryLedger

    @property
    def dollars(self) -> tuple[float, ...]:
        return (self.plan.estimate.dollars, *self.drawn, self.policy.spent(self.policy.now))


def bill(asked: PlanRequest, *stages: tuple[Group, ...], trouble: Sequence[Event] = ()) -> Billed:
    """Price, forecast and play the plan of these groups, stage by stage."""
    plan = price(asked, stages, "by hand")
    dollars = outlook(asked, plan, samples=3).dollars
    policy = scripted(plan)
    world = SimWorld(asked.rentables, "score", lambda config, epoch: float(str(config["x"])))
    for event in trouble:
        world.schedule(event)
    ledger = MemoryLedger()
    run(policy, world, ledger)
    assert policy.ending is EndReason.DONE
    return Billed(plan, (dollars.p5, dollars.p95), policy, ledger)


def cost(dollars: float) -> Any:
    return pytest.approx((dollars,) * 4, abs=EXACT)


def section(number: int) -> str:
    return PAGE.partition(f"\n## {number}. ")[2].partition("\n## ")[0]


def read_bold(number: int) -> list[str]:
    """Return the dollars that the page prints bold in a section."""
    return re.findall(r"\*\*(\$[\d.]+)\*\*", section(number))


def lines(text: str = PAGE) -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("line", lines())
def test_the_page_reckons_right(line: str) -> None:
    expression, _, result = line.rpartition(": ")[2].partition(" = ")
    assert re.fullmatch(r"[\d.+×/() -]+", expression), "a calculation that a calculator can do"
    places = len(result.partition(".")[2])
    actual = eval(expression.replace("×", "*"))  # digits and signs alone
    assert round(actual, places) == pytest.approx(float(result), abs=1e-12)


@pytest.mark.parametrize("number", [*range(1, 9), 10])
def test_what_it_prints_bold_is_worked_out_there(number: int) -> None:
    results = {f"${float(line.rpartition(' = ')[2]):.2f}" for line in lines(section(number))}
    assert set(read_bold(number)) <= results
    assert read_bold(number)


@pytest.mark.parametrize(
    ("name", "gpus", "an_hour", "saving"),
    [
        ("g4dn.12xlarge", 4, 3.912, 0.64),
        ("p3.2xlarge", 1, 3.06, 0.80),
        ("p3.8xlarge", 4, 12.24, 0.86),
    ],
)
def test_its_prices_are_our_tables(name: str, gpus: int, an_hour: float, saving: float) -> None:
    assert pricing.AS_OF == "2026-07-20", "with new prices docs/bills.md is to be worked out again"
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` | {gpus} "))
    _, _, _, hour, second, result, _ = (cell.strip() for cell in row.split("|"))
    assert hour == f"${an_hour:g}"
    assert result == f"{saving:.0%}".replace("%", " %")
    actual = on(name)
    assert actual.gpus == gpus
    assert actual.usd_per_hour == an_hour
    assert actual.usd_per_second == pytest.approx(float(second.strip("$")), abs=1e-7)
    assert (actual.minimum_seconds, actual.granularity_seconds) == (60, 1)
    assert on(name, "spot").usd_per_hour == pytest.approx(an_hour * (1 - saving))


G4DN, P3, P3_SMALL = on("g4dn.12xlarge"), on("p3.8xlarge"), on("p3.2xlarge")


def test_1_by_the_second() -> None:
    assert read_bold(1) == ["$1.13", "$3.91"]
    assert G4DN.charge(1037) == pytest.approx(1.126873, abs=EXACT)
    asked = job([Stage(4, 0, 10)], (G4DN, {1.0: 100.0}))
    assert bill(asked, (group(G4DN, 1, 1.0, 4),)).dollars == cost(1.126873)
    by_the_hour = replace(G4DN, granularity_seconds=3600.0)
    asked = job([Stage(4, 0, 10)], (by_the_hour, {1.0: 100.0}))
    assert bill(asked, (group(by_the_hour, 1, 1.0, 4),)).dollars == cost(3.912)


@pytest.mark.parametrize(("minimum", "dollars"), [(60.0, 0.204), (0.0, 0.153)])
def test_2_for_a_minute_at_least(minimum: float, dollars: float) -> None:
    assert read_bold(2) == ["$0.20", "$0.15"]
    offer = replace(P3, minimum_seconds=minimum)
    assert offer.charge(45) == pytest.approx(dollars)
    asked = job([Stage(1, 0, 1)], (offer, {4.0: 8.0}))
    assert bill(asked, (group(offer, 1, 4.0, 1),)).dollars == cost(dollars)


@pytest.mark.parametrize(
    ("grain", "seconds", "dollars"),
    [(1.0, 301, 20.468), (0.0, 300.4, 20.4272), (60.0, 360, 24.48), (3600.0, 3600, 244.8)],
)
def test_3_rounded_up(grain: float, seconds: float, dollars: float) -> None:
    assert read_bold(3) == ["$20.47", "$20.43", "$24.48", "$244.80"]
    offer = replace(P3, granularity_seconds=grain)
    assert offer.charge(300.4) == pytest.approx(seconds * 0.0034)
    asked = job([Stage(20, 0, 1)], (offer, {4.0: 263.4}))
    assert bill(asked, (group(offer, 20, 4.0, 20),)).dollars == cost(dollars)


BOTH = (group(G4DN, 2, 1.0, 8), group(P3, 1, 1.0, 4))
SPEEDS = ((G4DN, {1.0: 60.0}), (P3, {1.0: 40.0}))


def test_4_several_types_at_once() -> None:
    assert read_bold(4) == ["$1.88", "$0.34"]
    assert 2 * G4DN.charge(337) == pytest.approx(0.732413, abs=EXACT)
    assert P3.charge(337) == pytest.approx(1.1458)
    assert P3.charge(337) - P3.charge(237) == pytest.approx(0.34)
    result = bill(job([Stage(12, 0, 5)], *SPEEDS), BOTH)
    assert result.plan.stages[0].seconds == 345
    assert result.dollars == cost(1.878213)


def test_6_charges_by_the_launch_and_by_the_hour() -> None:
    assert read_bold(6) == ["$2.66", "$2.67"]
    asked = job([Stage(12, 0, 5)], *SPEEDS, charges=Charges(0.25, 0.36 / 3600))
    result = bill(asked, BOTH)
    assert result.plan.estimate.seconds == 347
    assert result.dollars == cost(2.662913)
    assert result.policy.fleet.launches == 3


def test_6_hourly_charges_are_billed_like_their_instance() -> None:
    disks = [replace(offer, added_usd_per_hour=0.016) for offer in (G4DN, P3)]
    speeds = tuple((mine, epoch) for mine, (_, epoch) in zip(disks, SPEEDS, strict=True))
    asked = job([Stage(12, 0, 5)], *speeds, charges=Charges(0.25, 0.36 / 3600))
    result = bill(asked, (group(disks[0], 2, 1.0, 8), group(disks[1], 1, 1.0, 4)))
    assert result.dollars == cost(2.667406)
    entries = result.ledger.entries
    books = account(entries, disks, Charges(0.25, 0.36 / 3600))
    assert books.added == pytest.approx(0.004493, abs=EXACT)
    assert books.whole.dollars == pytest.approx(2.667406, abs=EXACT)


SPOT = on("p3.8xlarge", "spot")


def test_5_spot_is_on_demand_less_the_saving() -> None:
    assert read_bold(5) == ["$0.86", "$6.12", "$0.86", "$0.88", "$0.59"]
    assert SPOT.usd_per_hour == 1.7136
    assert SPOT.charge(1800) == pytest.approx(0.8568)
    assert P3.charge(1800) == pytest.approx(6.12)
    asked = job([Stage(1, 0, 41)], (P3, {4.0: 43.0}))
    assert bill(asked, (group(P3, 1, 4.0, 1),)).dollars == cost(6.12)


def test_5_a_plan_adds_what_reclaims_cost_on_average() -> None:
    assert SPOT.interruptions_per_hour == pytest.approx(0.000394, abs=1e-6)
    asked = job([Stage(1, 0, 41)], (SPOT, {4.0: 43.0}))
    result = bill(asked, (group(SPOT, 1, 4.0, 1),))
    assert result.plan.estimate.seconds - 1810 == pytest.approx(0.0128, abs=1e-4)
    # None of the draws and of the simulation's lives happens to end so early.
    assert result.dollars == pytest.approx((0.857276, 0.8568, 0.8568, 0.8568))


def test_5_an_instance_is_reclaimed() -> None:
    asked = job([Stage(1, 0, 41)], (SPOT, {4.0: 43.0}))
    reclaimed = (
        NodeLost(610.0, "i000", "reclaimed"),
        InstanceGone(610.0, "i000", 610.0, "reclaimed"),
    )
    result = bill(asked, (group(SPOT, 1, 4.0, 1),), trouble=reclaimed)
    first, second = result.policy.fleet
    assert (first.dollars(0.0), second.dollars(0.0)) == pytest.approx((0.2856, 0.590716))
    assert result.dollars[-1] == pytest.approx(0.876316)
    assert result.policy.over_at == 1861


STAGES = (Stage(8, 0, 3), Stage(4, 3, 4), Stage(1, 4, 24))
CHARGES = Charges(usd_per_launch=0.02, usd_per_second=0.0001)


def whole_run(*, charges: Charges = CHARGES, p3_boot: float = 30.0, **but: float) -> Billed:
    """Bill 7, with some feature changed."""
    first, second = replace(G4DN, **but), replace(P3, **but)  # type: ignore[arg-type]
    asked = job(STAGES, (first, {1.0: 40.0}), (second, {2.0: 6.0, 4.0: 4.0}), charges=charges)
    quick = make_profile(second, {2.0: 6.0, 4.0: 4.0}, boot=p3_boot)
    asked = replace(asked, rentables=(asked.rentables[0], Rentable(second, quick, 20)))
    return bill(
        asked, (group(first, 2, 1.0, 8),), (group(second, 2, 2.0, 4),), (group(second, 1, 4.0, 1),)
    )


def test_7_a_whole_run() -> None:
    assert read_bold(7) == ["$1.09", "$1.03", "$0.99", "$1.32", "$0.98"]
    result = whole_run()
    assert result.dollars == cost(1.090713)
    assert result.plan.estimate.seconds == 303
    assert result.policy.over_at == 303
    assert itinerary_of(result.policy).stage_began == [0, 165, 216]


def test_7_stage_by_stage() -> None:
    stages = whole_run().plan.stages
    assert [stage.seconds for stage in stages] == [165, 51, 85]
    assert [stage.overhead for stage in stages] == [45, 45, 5]
    bills = (0.393367, 0.328247, 0.3691)
    assert tuple(stage.dollars for stage in stages) == pytest.approx(bills, abs=EXACT)


def test_7_instance_by_instance() -> None:
    rented = list(whole_run().policy.fleet)
    assert [r.offer for r in rented] == [G4DN, G4DN, P3, P3]
    lives = [(r.launched_at, r.gone_at) for r in rented]
    assert sorted(lives) == [(10, 167), (10, 167), (175, 218), (175, 303)]
    bills = sorted(r.dollars(0.0) for r in rented)
    assert bills == pytest.approx([0.341213 / 2, 0.341213 / 2, 0.204, 0.4352], abs=EXACT)


@pytest.mark.parametrize(
    ("changed", "dollars"),
    [
        ({"minimum_seconds": 0.0}, 1.032913),
        ({"p3_boot": 0.0}, 0.985713),
        ({"granularity_seconds": 60.0}, 1.3175),
        ({"charges": NO_CHARGES}, 0.980413),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_7_with_one_thing_changed(changed: dict[str, Any], dollars: float) -> None:
    assert whole_run(**changed).dollars == cost(dollars)


V100S = {1.0: 71.0, 2.0: 38.0, 4.0: 21.0}
LAST = (Stage(1, 0, 20),)


def test_8_its_epochs_are_those_of_a_bundled_profile() -> None:
    result = bundled.load("resnet50-cifar10@v100", P3.instance_type)
    assert {width: round(result.epoch_seconds(width)) for width in V100S} == V100S


@pytest.mark.parametrize(
    ("width", "dollars", "in_use"),
    [(1.0, 4.9538, 1.207), (2.0, 2.7098, 1.292), (4.0, 1.5538, 1.428)],
)
def test_8_an_instance_is_paid_for_whole(width: float, dollars: float, in_use: float) -> None:
    assert read_bold(8) == ["$4.95", "$2.71", "$1.55", "$1.24", "$1.21", "$1.29", "$1.43"]
    result = bill(job(LAST, (P3, V100S)), (group(P3, 1, width, 1),))
    assert result.dollars == cost(dollars)
    until_done = dollars - 2 * 0.0034
    assert result.plan.stages[0].busy * until_done == pytest.approx(in_use)


def test_8_cheapest_plan_takes_whole_or_less() -> None:
    wide = ExactPlanner().plan(job(LAST, (P3, V100S)))
    assert [g.width for g in wide.stages[0].groups] == [4.0]
    assert wide.estimate.dollars == pytest.approx(1.5538)
    either = ExactPlanner().plan(job(LAST, (P3, V100S), (P3_SMALL, {1.0: 71.0})))
    assert [(g.offer, g.width) for g in either.stages[0].groups] == [(P3_SMALL, 1.0)]
    assert either.estimate.dollars == pytest.approx(1.23845)


def by(unit: BillingUnit, minimum: float | None = None) -> tuple[Billed, list[Offer]]:
    """Bill 4, billed by a unit."""
    offers = [offer.with_billing(unit, minimum) for offer in (G4DN, P3)]
    speeds = tuple((mine, epoch) for mine, (_, epoch) in zip(offers, SPEEDS, strict=True))
    asked = job([Stage(12, 0, 5)], *speeds)
    return bill(asked, (group(offers[0], 2, 1.0, 8), group(offers[1], 1, 1.0, 4))), offers


@pytest.mark.parametrize(
    ("unit", "minimum", "dollars"),
    [
        ("second", 60.0, 1.878213),
        ("minute", None, 2.0064),
        ("hour", None, 20.064),
        ("minute", 600.0, 3.344),
        ("function", None, 1.359867),
    ],
)
def test_10_each_way_to_bill(unit: BillingUnit, minimum: float | None, dollars: float) -> None:
    result, offers = by(unit, minimum)
    assert result.dollars == cost(dollars)
    entries = result.ledger.entries
    assert account(entries, offers).whole.dollars == pytest.approx(dollars, abs=EXACT)
    assert audit(entries, offers, "x", "max").dollars == pytest.approx(dollars, abs=EXACT)


def test_10_by_the_function_waiting_and_booting_cost_nothing() -> None:
    result, offers = by("function")
    books = account(result.ledger.entries, offers).amounts
    assert books["barrier"].gpu_seconds == pytest.approx(4 * 100)
    assert books["training"].dollars == pytest.approx(8 * 300 * 0.978 / 3600 + 4 * 200 * 0.00085)
    assert books["start-up"].dollars == pytest.approx(5 * (8 * 0.978 / 3600 + 4 * 0.00085))
    free = {name for name, amount in books.items() if not amount.dollars}
    assert {"barrier", "idle", "returning", "minimum", "rounding"} <= free


def test_10_a_whole_run_by_the_function() -> None:
    assert read_bold(10) == [
        *("$2.01", "$20.06", "$3.34", "$1.36", "$0.75", "$1.21", "$1.30", "$1.45")
    ]
    result = whole_run(per_function=True, minimum_seconds=0.0, granularity_seconds=0.0)
    assert result.dollars == cost(0.745767)
    stages = tuple(stage.dollars for stage in result.plan.stages)
    assert stages[0] == pytest.approx(0.271667 + 0.04 + 0.0165, abs=EXACT)


@pytest.mark.parametrize(
    ("unit", "width", "dollars"), [("second", 4.0, 1.5538), ("function", 1.0, 1.21125)]
)
@pytest.mark.parametrize("planner", [ExactPlanner(), IlpPlanner()], ids=["exact", "ilp"])
def test_10_billing_decides_the_width_of_the_last_trial(
    unit: BillingUnit, width: float, dollars: float, planner: Planner
) -> None:
    offer = P3.with_billing(unit)
    asked = job([Stage(1, 0, 20)], (offer, {1.0: 71.0, 2.0: 38.0, 4.0: 21.0}))
    result = planner.plan(replace(asked, rentables=(replace(asked.rentables[0], most=1),)))
    assert result.stages[0].groups[0].width == width
    assert result.estimate.dollars == pytest.approx(dollars)

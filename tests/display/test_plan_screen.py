from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cloudtune.display.alternatives_tables import difference
from cloudtune.display.plan_screen import show_all, show_head, show_plan, show_plan_file
from cloudtune.display.plan_tables import gap_text
from cloudtune.forecast.alternatives import Alternative
from cloudtune.forecast.proposal import Proposal
from tests.builders.proposals import MIXED, proposal, run_of
from tests.display.test_run_screen import print_lines

printed = partial(print_lines, soft_wrap=False)


def screen_lines(given: Proposal) -> list[str]:
    return printed(lambda out: show_all(out, given))


def brief(given: Proposal, columns: int = 100) -> list[str]:
    command = ("digits.yaml", "--deadline", "30m")
    return printed(lambda out: show_plan(out, given, command), columns=columns)


def line(lines: list[str], begin: str) -> str:
    words = (" ".join(item.split()) for item in lines)
    [result] = [item for item in words if item.startswith(begin)]
    return result


def test_piped_plan_fits_100_columns() -> None:
    given = proposal()
    whole = print_lines(lambda out: show_all(out, given))
    assert whole == screen_lines(given)
    assert max(map(len, whole)) <= 100


def test_the_header_says_what_was_asked_and_why() -> None:
    lines = screen_lines(proposal())
    assert lines[0] == "Plan of digits"
    assert line(lines, "job") == "job 16 trials (random sampler), epochs 1 to 16, eta 4"
    assert line(lines, "strategy") == "strategy sha: 3 stages, up to epoch 16"
    assert line(lines, "GPUs each") == "GPUs each and instances as planned below"
    assert "least cost within the limits; exact planner, 282 offers" in line(lines, "asked")
    assert line(lines, "limits").endswith(
        "deadline 30m, budget $5.00; to be kept with a probability of 95 %"
    )
    assert "p9.big: resnet50, published, 2026-01-02 (7 months old)" in line(lines, "speed")
    assert "derived, not measured: speed uncertain by 20 %" in " ".join(" ".join(lines).split())


def test_old_prices_are_reported_as_old() -> None:
    assert "2026-03-31 (4 months old: they may have changed)" in line(
        screen_lines(proposal()), "prices"
    )
    fresh = replace(proposal().prices, age_days=1, warnings=("p9.big: refused a price of $0",))
    lines = screen_lines(proposal(prices=fresh))
    assert line(lines, "prices").endswith("2026-03-31 (1 day old)")
    assert "p9.big: refused a price of $0" in "\n".join(lines)


def test_each_group_of_a_stage_has_a_line() -> None:
    lines = screen_lines(proposal())
    begin = next(n for n, line in enumerate(lines) if line.startswith(" stage "))
    rows = [line.split() for line in lines[begin + 2 : begin + 8]]
    first, *_ = MIXED.stages
    assert rows[0][:5] == ["1", "12", "1-1", "1/2", "1"]
    assert " ".join(rows[0][5:9]) == "x p9.big spot us-east-1a"
    assert rows[0][-2:] == [f"{100 * first.busy:.0f}", "%"]
    assert rows[1] == ["4", "1", "4", "x", "g9.small", "on-demand"]
    assert rows[2][:5] == ["2", "4", "2-4", "2", "1"]
    assert rows[5] == ["total", "15m", "53s", "$2.81"]


def test_totals_stand_against_the_limits() -> None:
    lines = screen_lines(proposal())
    assert line(lines, "time 14m") == "time 14m 17s 16m 2s 20m 38s 30m 9m 22s 97.3 %"
    assert line(lines, "cost $2.53") == "cost $2.53 $2.84 $3.65 $5.00 $1.35 >99.9 %"
    assert line(lines, "chance") == "chance both limits are kept in 97.3 % of them (asked: 95 %)"
    assert " ".join(" ".join(lines).split()).count(
        "proven cheapest (gap 0) of 282 offers, by these figures: published 7 months ago for p9.big"
    )


@pytest.mark.parametrize(
    ("gap", "status", "objective", "text"),
    [
        (0.0, "optimal", "time", "proven fastest (gap 0)"),
        (0.031, "heuristic", "cost", "at most 3.1 % above the best possible"),
        (0.2, "feasible", "cost", "search cut short: at most 20 % above the best possible"),
        (None, "heuristic", "cost", "heuristic: not proven to be the cheapest"),
    ],
)
def test_the_gap_in_words(gap: float | None, status: str, objective: str, text: str) -> None:
    assert gap_text(replace(MIXED, gap=gap, status=status), objective) == text


def test_alternatives_say_cost_and_broken_limit() -> None:
    lines = screen_lines(proposal())
    assert line(lines, "best static") == (
        "best static 2 x p9.big 11m 19s $11.33 $14.58 +$8.49, 4m 43s sooner over budget"
    )
    assert line(lines, "fewest GPUs").endswith("over deadline")
    assert line(lines, "all spot").endswith(" -$0.65, 4m 43s sooner 97.3 %")


def test_r5_risky_plan_says_so() -> None:
    seldom = run_of(MIXED, in_time=0.817, in_money=1.0, within=0.817)
    lines = screen_lines(proposal(plan=seldom, confidence=None))
    row = next(line for line in lines if line.split()[:2] == ["this", "plan"])
    assert row.rstrip().endswith("81.7 %")
    assert "kept" not in row
    assert difference(MIXED.estimate, MIXED.estimate) == "the same"


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_terminal_of_any_width_loses_no_digit(columns: int) -> None:
    for show in (show_all, show_plan):
        lines = printed(lambda out, show=show: show(out, proposal()), columns=columns)  # type: ignore[misc]
        wide = printed(lambda out, show=show: show(out, proposal()))  # type: ignore[misc]
        assert max(map(len, lines)) <= columns
        assert "".join(lines).count("%") == "".join(wide).count("%")


def test_screen_says_creations_and_worst_bill() -> None:
    lines = screen_lines(proposal())
    assert line(lines, "launches") == "launches 1 x p9.big spot us-east-1a at $9.00/h"
    assert line(lines, "4 x g9") == "4 x g9.small on-demand at $0.60/h"
    assert "at most 5 instances at once" in "\n".join(lines)
    assert line(lines, "head") == "head one process on this machine"
    assert line(lines, "checkpoints") == "checkpoints s3://bucket/digits"
    assert "$0.01 per launch and $0.36 per hour" in line(lines, "cost includes")
    assert line(lines, "worst case") == "worst case $6.50: every spot instance is taken back once"
    assert line(lines, "assumes") == "assumes an instance joins within 35s of its request"


def test_names_are_no_markup() -> None:
    lines = screen_lines(proposal(name="[red]x[/red]", storage="/tmp/[bold]", worst_why="[/]"))
    assert lines[0] == "Plan of [red]x[/red]"
    assert "checkpoints /tmp/[bold]" in line(lines, "checkpoints")
    assert line(lines, "worst case").endswith("$6.50: [/]")


def test_search_screen_shows_forecast() -> None:
    plan = replace(
        run_of(MIXED, source="policy", results=0.8),
        strategy="hypersched",
        allocator="hypersched:SOFTMAX",
        fleet_rule="naive:4",
        staged=None,
    )
    lines = screen_lines(proposal(plan=plan, alternatives=(), front=(), objective=None, target=0.9))
    assert line(lines, "strategy").startswith("strategy hypersched: decides as results come in")
    assert line(lines, "GPUs each by the hypersched:SOFTMAX allocator").endswith(
        "instances by the naive:4 fleet rule"
    )
    assert line(lines, "ends as soon") == "ends as soon as score is 0.9"
    assert line(lines, "chance") == (
        "chance both limits are kept in 97.3 % of them, a trial finishes an epoch in 80 % "
        "(asked: 95 %)"
    )
    assert line(lines, "quality").startswith("quality forecast, not proven")
    assert line(lines, "costs") == "costs at most $5.00: the budget"
    assert "Stages" not in lines
    saved = printed(lambda out: show_plan_file(out, plan))
    assert line(saved, "strategy").startswith("strategy hypersched")


def searching(**changes: Any) -> Proposal:
    """Return a proposal of the default search, with half and twice its budget."""
    plan = replace(
        run_of(MIXED, source="policy", results=1.0),
        strategy="best",
        allocator="seer",
        fleet_rule="seer",
        staged=None,
    )
    others = (Alternative("half the budget", plan), Alternative("twice the budget", plan))
    return proposal(
        plan=plan,
        chosen="the best model that 30m and $5.00 can buy",
        **{"alternatives": others, "front": (), "objective": None, "trials": None, **changes},
    )


@pytest.mark.parametrize("columns", [80, 100])
def test_a_plan_fits_on_one_screen(columns: int) -> None:
    for given in (proposal(), searching()):
        lines = brief(given, columns)
        assert max(map(len, lines)) <= columns
        assert len(lines) <= (40 if columns == 100 else 48)


def test_screen_has_plan_alternatives_and_command() -> None:
    lines = brief(proposal())
    assert lines[0] == "Plan of digits: 16 trials, 1 to 16 epochs each, 1 in 4 goes on (sha)"
    assert line(lines, "time") == "time 16m 2s below 20m 38s 30m 97.3 %"
    assert line(lines, "cost") == "cost $2.84 below $3.65 $5.00 >99.9 %"
    assert "kept in 97.3 % of" in line(lines, "both limits")
    assert "(asked: 95 %)" in line(lines, "both limits")
    assert "1 x p9.big spot us-east-1a ($9.00/h)" in line(lines, "machines")
    assert line(lines, "worst case").startswith(
        "worst case the run stops below $5.00; $6.50 if this machine dies"
    )
    assert line(lines, "run it") == "run it cloudtune run digits.yaml --deadline 30m"


def test_a_run_begins_with_ten_lines_of_it() -> None:
    for given in (proposal(), searching()):
        lines = printed(lambda out, given=given: show_head(out, given))  # type: ignore[misc]
        assert lines == brief(given)[: len(lines)]
        assert len(lines) <= 12

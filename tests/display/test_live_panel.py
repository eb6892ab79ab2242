"""The panel of a run that goes on: whence its figures are, and that it fits any terminal."""

import functools
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from cloudtune.display.live.overview import Bar, Outlook, Overview, overview
from cloudtune.display.live.panel import LEAST_LINES, panel
from cloudtune.display.run_screen import RunScreen
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.model.commands import Command
from cloudtune.model.events import Event, RunStarted, TimerFired
from cloudtune.model.plans import Estimate, Limits
from cloudtune.policy.run import RunPolicy
from tests.builders.proposals import MIXED, SETTING, forecast
from tests.builders.values import present

FORECAST = forecast(MIXED)
LIMITED = SETTING.but(limits=Limits(1800.0, 4.75))


def shown(seen: Overview, width: int = 80, height: int = 30) -> list[str]:
    file = io.StringIO()
    out = Console(file=file, width=width, height=height, highlight=False)
    out.print(panel(seen, width, height))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def looked_at(look: Callable[[RunPolicy, float], None]) -> RunPolicy:
    """Play a run of three stages, and look at it at each of its events."""
    policy = LIMITED.policy(MIXED)

    def watch(event: Event, _commands: tuple[Command, ...]) -> None:
        look(policy, event.at)

    run(policy, LIMITED.world(), MemoryLedger(), watch)
    return policy


@functools.cache
def moments() -> list[Overview]:
    result: list[Overview] = []
    looked_at(lambda policy, at: result.append(overview(policy, at, forecast=FORECAST)))
    return result


def at_seconds(seconds: float) -> Overview:
    return next(moment for moment in moments() if moment.at >= seconds)


def test_the_plans_figure_is_expected_within_the_forecasts_range() -> None:
    seen = at_seconds(150)
    time = present(seen.time.outlook)
    assert time.expected == pytest.approx(MIXED.estimate.seconds)
    assert (time.low, time.high) == (FORECAST.seconds.p5, FORECAST.seconds.p95)
    assert time.origin == "planned"
    assert seen.dollars is not None
    assert seen.dollars.outlook is not None
    assert seen.dollars.outlook.low == FORECAST.dollars.p5
    assert seen.dollars.outlook.expected == pytest.approx(MIXED.estimate.dollars, rel=0.02)


def test_a_plan_made_again_says_so_and_has_no_range() -> None:
    policy = LIMITED.policy(MIXED)
    policy.handle(RunStarted(0.0))
    it = present(policy.itinerary)
    it.plan, it.replanned, it.planned_at = replace(MIXED, estimate=Estimate(1200.0, 4.0)), 1, 65.0
    seen = overview(policy, 70.0, forecast=FORECAST)
    assert seen.time.outlook == Outlook(1200.0, None, None, "replanned at 1:05")
    assert "         ends at about 20:00 (range unknown; replanned at 1:05)" in shown(seen)


def test_dollars_are_those_billed_and_what_measuring_took() -> None:
    bills: list[tuple[float, float]] = []

    def look(policy: RunPolicy, at: float) -> None:
        seen = overview(policy, at, forecast=FORECAST, before=0.25)
        assert seen.dollars is not None
        assert seen.dollars.limit == 5.0
        if all(instance.launched_at is not None for instance in policy.fleet.alive()):
            bills.append((seen.dollars.used, policy.spent(at) + 0.25))

    policy = looked_at(look)
    assert bills[-1][0] == pytest.approx(policy.spent(policy.over_at) + 0.25)
    assert all(one == pytest.approx(other) for one, other in bills)


def test_epochs_are_those_that_count_of_those_planned() -> None:
    last = moments()[-1]
    assert (last.epochs.used, last.epochs.limit) == (40, 16 * 1 + 4 * 3 + 1 * 12)


def test_trials_begin_with_the_best_and_sit_on_their_gpus() -> None:
    seen = at_seconds(400)
    metrics = [row.metric for row in seen.trials if row.metric is not None]
    assert len(metrics) > 3
    assert metrics == sorted(metrics, reverse=True)
    assert seen.trials[0].metric == present(seen.best).metric
    on = {row.name: set(row.instances) for row in seen.trials}
    for instance in seen.instances:
        assert {name for name, places in on.items() if instance.name in places} == set(
            instance.trials
        )
    assert {row.width for row in seen.trials} == {0.5, 1.0}


def test_instances_are_reported_from_the_request_to_the_return() -> None:
    states = [{row.state for row in moment.instances} for moment in moments()]
    assert states[0] == {"asked for"}
    assert {"booting", "up", "returning"} <= set().union(*states)
    assert states[-1] == set()


def test_what_none_knows_is_called_unknown() -> None:
    seen = at_seconds(150)
    bare = replace(
        seen, time=Bar(150.0, None, None), dollars=Bar(0.5, None, None), epochs=Bar(3, None, None)
    )
    lines = shown(bare)
    assert "         ends at about unknown" in lines
    assert "         comes to about unknown" in lines
    assert any(line.endswith("2:30 of no limit") for line in lines)
    assert any("3 of an unknown number" in line for line in lines)


def test_what_is_free_has_no_dollars() -> None:
    policy = LIMITED.policy(MIXED)
    policy.handle(RunStarted(0.0))
    seen = overview(policy, 1.0, forecast=FORECAST, free=True)
    assert seen.dollars is None
    assert not [line for line in shown(seen) if "$" in line]


@pytest.mark.parametrize("width", [40, 80, 109, 110, 200])
@pytest.mark.parametrize("height", [LEAST_LINES, 24, 30, 60])
def test_the_panel_fits_and_leaves_room_for_what_happens(width: int, height: int) -> None:
    for seen in moments()[width // 10 :: 36]:  # others at each width
        lines = shown(seen, width, height)
        assert max(map(len, lines)) <= width
        assert len(lines) <= height - max(6, height // 4)


def test_what_has_no_room_is_counted() -> None:
    seen = at_seconds(400)
    lines = shown(seen, 80, 30)
    listed = [line for line in lines if line.startswith("t") and line[1:3].isdigit()]
    assert f"and {16 - len(listed)} more: " in lines[-1]
    assert len([line for line in shown(seen, 200, 60) if line[1:3].isdigit()]) == 16


def on_terminal(height: int) -> str:
    file = io.StringIO()
    out = Console(file=file, width=80, height=height, force_terminal=True, highlight=False)
    policy = LIMITED.policy(MIXED)
    with RunScreen(out, policy, forecast=FORECAST) as screen:
        for event in (RunStarted(0.0), TimerFired(1.0, "tick")):
            screen.watch(event, policy.handle(event))
    return file.getvalue()


def test_a_terminal_shows_the_panel_below_the_lines() -> None:
    text = on_terminal(30)
    assert "asks for 1 x p9.big spot" in text
    assert text.index("asks for") < text.index("stage 1 of 3")


def test_a_low_terminal_shows_the_line_of_progress() -> None:
    text = on_terminal(LEAST_LINES - 1)
    assert "stage 1/3 | " in text
    assert "epochs   " not in text

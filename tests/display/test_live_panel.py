"""The panel of a run that goes on: whence its figures are, and that it fits any terminal."""

import functools
import io
import itertools
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from cloudtune.display.live.panel import LEAST_LINES, RunPanel
from cloudtune.display.run_screen import RunScreen
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.model.commands import Command
from cloudtune.model.events import Event, RunStarted, TimerFired
from cloudtune.model.plans import Limits, RunEnd
from cloudtune.model.progress import BestResult
from cloudtune.model.units import format_clock, format_dollars
from cloudtune.policy.run import RunPolicy
from tests.builders.proposals import MIXED, SETTING, forecast
from tests.builders.values import present

FORECAST = forecast(MIXED)
LIMITED = SETTING.but(limits=Limits(1800.0, 4.75))


def panel_lines(panel: RunPanel, at: float, width: int = 80, height: int = 30) -> list[str]:
    file = io.StringIO()
    out = Console(file=file, width=width, height=height, highlight=False)
    out.print(panel.draw(at, width, height))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def play_and_look(look: Callable[[RunPolicy, float], None]) -> RunPolicy:
    """Play a run of three stages, and look at it at every tenth event and at its end."""
    policy = LIMITED.policy(MIXED)
    numbers = itertools.count()

    def watch(event: Event, _commands: tuple[Command, ...]) -> None:
        if not next(numbers) % 10:
            look(policy, event.at)

    run(policy, LIMITED.world(), MemoryLedger(), watch)
    look(policy, policy.over_at)
    return policy


@functools.cache
def moments() -> list[tuple[float, list[str]]]:
    """Return the panel in a large terminal, from the run's begin to its end."""
    panels: list[tuple[float, list[str]]] = []

    def look(policy: RunPolicy, at: float) -> None:
        panels.append((at, panel_lines(RunPanel(policy, FORECAST), at, 200, 60)))

    play_and_look(look)
    return panels


def at_seconds(seconds: float) -> list[str]:
    return next(lines for at, lines in moments() if at >= seconds)


def table(lines: list[str], first: str) -> list[list[str]]:
    """Return the cells below the heads of a table, whose first column is named so."""
    begin = next(number for number, line in enumerate(lines) if line.startswith(f"{first} "))
    rows = itertools.takewhile(bool, lines[begin + 1 :])
    return [re.split(r"\s{2,}", line) for line in rows]


def test_plan_figure_is_within_forecast() -> None:
    text = "\n".join(at_seconds(150))
    low, high = (format_clock(it) for it in (FORECAST.seconds.p5, FORECAST.seconds.p95))
    expected = format_clock(MIXED.estimate.seconds)
    assert f"ends at about {expected} ({low} to {high}; planned)" in text
    [dollars] = re.findall(r"comes to about \$([\d.]+) \((\S+) to \S+; planned\)", text)
    assert float(dollars[0]) == pytest.approx(MIXED.estimate.dollars, rel=0.02)
    assert dollars[1] == format_dollars(FORECAST.dollars.p5)


def test_end_of_plan_counts_the_seconds_before_it_began() -> None:
    policy = LIMITED.policy(MIXED)
    policy.handle(RunStarted(30.0))
    end = format_clock(MIXED.estimate.seconds + 30.0)
    assert any(f"ends at about {end}" in line for line in panel_lines(RunPanel(policy), 40.0))


def test_replanned_run_has_no_range() -> None:
    policy = LIMITED.policy(MIXED)
    policy.handle(RunStarted(0.0))
    it = present(policy.itinerary)
    it.end, it.replanned, it.planned_at = RunEnd(1200.0, 4.0), 1, 65.0
    lines = panel_lines(RunPanel(policy, FORECAST), 70.0)
    assert "         ends at about 20:00 (range unknown; replanned at 1:05)" in lines


def test_better_unsaved_epoch_is_named() -> None:
    policy = LIMITED.policy(MIXED)
    policy.handle(RunStarted(0.0))
    policy.state.record.offer(BestResult("t00", 1, 0.57, None))
    policy.state.record.offer(BestResult("t01", 2, 0.00052, "s/2"))
    lines = panel_lines(RunPanel(policy, FORECAST), 70.0, 120)
    expected = "best     score 0.00052 by t01 at epoch 2; 0.5700 at epoch 1 wasn't saved"
    assert expected in [line.rstrip() for line in lines]


def test_dollars_are_those_billed_and_what_measuring_took() -> None:
    bills: list[tuple[str, str]] = []

    def look(policy: RunPolicy, at: float) -> None:
        panel = RunPanel(policy, FORECAST, before=0.25)
        [line] = [line for line in panel_lines(panel, at, 200, 60) if line.startswith("cost ")]
        used, limit = re.findall(r"\$[\d.]+", line)[:2]
        assert limit == "$5.00"
        if all(instance.launched_at is not None for instance in policy.fleet.alive()):
            bills.append((used, format_dollars(policy.spent(at) + 0.25)))

    policy = play_and_look(look)
    assert bills[-1][0] == format_dollars(policy.spent(policy.over_at) + 0.25)
    assert all(one == other for one, other in bills)


def test_epochs_are_those_that_count_of_those_planned() -> None:
    _, lines = moments()[-1]
    [line] = [line for line in lines if line.startswith("epochs ")]
    assert line.endswith(f"40 of {16 * 1 + 4 * 3 + 1 * 12} planned")


def test_panel_begins_with_best_trials() -> None:
    lines = at_seconds(400)
    rows = table(lines, "trial")
    metrics = [float(row[3]) for row in rows if row[3] != "-"]
    assert len(metrics) > 3
    assert metrics == sorted(metrics, reverse=True)
    [best] = [line for line in lines if line.startswith("best ")]
    assert f" by {rows[0][0]} at " in best
    on = {row[0]: row[5].split() for row in rows}
    for name, _, _, *trials in table(lines, "instance"):
        assert {trial for trial, places in on.items() if name in places} == set(
            " ".join(trials).split()
        )
    assert {row[4] for row in rows} == {"1/2", "1"}


def test_panel_follows_instances_to_return() -> None:
    states = [{row[2] for row in table(it, "instance") if row[2:]} for _, it in moments()]
    assert states[0] == {"asked for"}
    assert {"booting", "up", "returning"} <= set().union(*states)
    assert table(moments()[-1][1], "instance") == [["none"]]


def test_what_none_knows_is_called_unknown() -> None:
    policy = SETTING.policy("asha")
    policy.handle(RunStarted(0.0))
    lines = panel_lines(RunPanel(policy), 150.0)
    assert "         ends at about unknown" in lines
    assert "         comes to about unknown" in lines
    assert any(line.endswith("2:30 of no limit") for line in lines)
    assert any("0 of an unknown number" in line for line in lines)


def test_what_is_free_has_no_dollars() -> None:
    policy = LIMITED.policy(MIXED)
    policy.handle(RunStarted(0.0))
    lines = panel_lines(RunPanel(policy, FORECAST, free=True), 1.0)
    assert not [line for line in lines if "$" in line]


def test_panel_leaves_room_for_events() -> None:
    numbers = itertools.count()

    def look(policy: RunPolicy, at: float) -> None:
        if next(numbers) % 8:
            return
        panel = RunPanel(policy, FORECAST)
        for width, height in itertools.product((40, 80, 109, 110, 200), (LEAST_LINES, 24, 30, 60)):
            lines = panel_lines(panel, at, width, height)
            assert max(map(len, lines)) <= width
            assert len(lines) <= height - max(6, height // 4)

    play_and_look(look)


def test_what_has_no_room_is_counted() -> None:
    low: list[list[str]] = []

    def look(policy: RunPolicy, at: float) -> None:
        if at >= 400 and not low:
            low.append(panel_lines(RunPanel(policy, FORECAST), at, 80, 30))

    play_and_look(look)
    listed = [line for line in low[0] if line.startswith("t") and line[1:3].isdigit()]
    assert f"and {16 - len(listed)} more: " in low[0][-1]
    assert len([line for line in at_seconds(400) if line[1:3].isdigit()]) == 16


def on_terminal(height: int) -> str:
    file = io.StringIO()
    out = Console(file=file, width=80, height=height, force_terminal=True, highlight=False)
    policy = LIMITED.policy(MIXED)
    with RunScreen(out, RunPanel(policy, FORECAST)) as screen:
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

import io
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console

from cloudtune.display.live.panel import RunPanel
from cloudtune.display.report_screen import planned_and_actual, show_report
from cloudtune.display.run_screen import RunScreen
from cloudtune.engine.ledger import MemoryLedger
from cloudtune.engine.loop import run
from cloudtune.model import events
from cloudtune.model.plans import Limits
from cloudtune.policy.base import Brakes
from cloudtune.runs.report import build
from tests.builders import scripted, staged
from tests.builders.events import dry, tick
from tests.builders.proposals import MIXED, SETTING


def print_lines(
    show: Callable[[Console], object], *, columns: int = 100, soft_wrap: bool = True
) -> list[str]:
    file = io.StringIO()
    show(Console(file=file, width=columns, highlight=False, soft_wrap=soft_wrap))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def printed_run() -> list[str]:
    def show(out: Console) -> None:
        policy = SETTING.policy(MIXED)
        run(policy, SETTING.world(), MemoryLedger(), RunScreen(out, RunPanel(policy)).watch)

    return [line[7:] for line in print_lines(show)]


def test_launches_are_reported_by_type_market_and_zone() -> None:
    assert printed_run()[0] == "asks for 1 x p9.big spot us-east-1a, 4 x g9.small on-demand"


def test_starts_are_reported_by_width() -> None:
    started = Counter[str]()
    for line in printed_run():
        if result := re.fullmatch("starts (.*) on (.*?)( each)?", line):
            started[result[2]] += len(result[1].split(", "))
    assert started == {"1/2 GPU": 12, "1 GPU": 4}


def test_stage_shows_groups_and_cuts() -> None:
    lines = printed_run()
    second = next(line for line in lines if line.startswith("stage 2"))
    assert second == "stage 2: 4 trials to epoch 4, 2 GPUs each, on 1 x p9.big spot us-east-1a"
    after = lines[lines.index(second) :]
    cut = next(line for line in after if line.startswith("cut: "))
    assert len(cut.split(", ")) == 12
    assert re.match(r"cut: t\d\d at epoch 1 \(score 0\.\d+\)", cut)
    assert any(" grows from 1/2 to 2 GPUs, from epoch 1" in line for line in lines)


def test_trouble_is_reported() -> None:
    def show(out: Console) -> None:
        policy = scripted(staged((4, 0, 2, 1, 0.25)))
        screen = RunScreen(out, RunPanel(policy))
        full = events.TrialFailed(11.0, "t01.1", "CUDA out of memory", "…", out_of_memory=True)
        for event in (
            events.RunStarted(0.0),
            events.InstanceLaunched(1.0, "i000", "i-000", 1.0),
            events.InstanceBooting(4.0, "i000", "fetches environment 3f2"),
            events.NodeJoined(10.0, "i000"),
            full,
            events.RebalanceRecommended(11.5, "i000"),
            events.InterruptionNotice(12.0, "i000", 132.0),
            events.NodeLost(13.0, "i000", "its heartbeats have stopped"),
            events.RunResumed(20.0),
        ):
            screen.watch(event, policy.handle(event))

    lines = [line[7:] for line in print_lines(show)]
    assert "i-000: fetches environment 3f2" in lines
    assert "t01 ran out of memory; from now on trials start on 1/2 GPU or more" in lines
    assert "the cloud may soon take i-000 back: others are used first" in lines
    assert "the cloud takes i-000 back in 2m" in lines
    assert "i-000 left the cluster: its heartbeats have stopped" in lines
    assert "taken over; 1 instance rented, 1 asked for" in lines


def test_unjoined_instance_shows_last_lines() -> None:
    def show(out: Console) -> None:
        policy = SETTING.but(limits=Limits(3600.0, 4.75)).policy(MIXED)
        screen = RunScreen(out, RunPanel(policy))
        for event in (
            events.RunStarted(0.0),
            events.InstanceLaunched(1.0, "i000", "i-000", 1.0),
            events.TimerFired(602.0, "tick"),
            events.InstanceGone(603.0, "i000", 603.0, "returned", "no route to host"),
        ):
            screen.watch(event, policy.handle(event))

    lines = [line[7:] for line in print_lines(show)]
    assert "gives i-000 back: it has not joined in 10m 2s" in lines
    assert "it never joined; its console ends with: no route to host" in lines
    asked = [line for line in lines if line.startswith("asks for ")]
    assert len(asked) == 2
    assert "1 x p9.big spot us-east-1a" in asked[1], "another one"


def test_a_full_cloud_is_reported_once() -> None:
    def show(out: Console) -> None:
        policy = scripted(staged((4, 0, 2, 1, 1.0)), brakes=Brakes(avoid=5.0))
        screen = RunScreen(out, RunPanel(policy))
        for event in (
            events.RunStarted(0.0),
            dry(2.0, "i000"),
            tick(8.0),
            dry(9.0, "i001"),
            tick(14.0),
            events.InstanceLaunched(14.5, "i002", "i-002", 14.5),
        ):
            screen.watch(event, policy.handle(event))

    assert [line[7:] for line in print_lines(show)] == [
        "asks for 1 x g.4x on-demand",
        "no instance: Dry: none left; it is asked for again from time to time",
        "i-002 launched; 1 instance rented",
    ]


def progress(**shown: Any) -> list[str]:
    """Return the lines of progress before and after the first instance is launched."""

    def show(out: Console) -> None:
        setting = SETTING.but(limits=Limits(3600.0, 4.75))
        policy = setting.policy(MIXED)
        screen = RunScreen(out, RunPanel(policy, **shown))
        for event in (
            events.RunStarted(0.0),
            events.TimerFired(16.0, "tick"),
            events.InstanceLaunched(17.0, "i000", "i-000", 17.0),
            events.TimerFired(40.0, "tick"),
        ):
            screen.watch(event, policy.handle(event))

    return [line for line in print_lines(show) if "stage 1/" in line]


def test_requested_instance_costs_nothing() -> None:
    asked, launched = progress()
    assert "| $0.002 of $4.75 (" in asked, "by the hour"
    assert "0 instances rented, 5 asked for" in asked
    spent = re.search(r"\| \$(\S+) of \$4.75 \(", launched)
    assert spent is not None
    assert float(spent[1]) > 0.1, "a minute at $9.00/h, and no cent for the four others"


def test_the_dollars_have_what_the_clock_has() -> None:
    asked, launched = progress(before=0.25, emulated=True)
    assert "| $0.25 of $5.00 (" in asked
    assert ") emulated |" in launched


def test_what_costs_nothing_is_reported_without_dollars() -> None:
    assert not [line for line in progress(free=True) if "$" in line]


def test_a_report_has_a_line_for_each_group() -> None:
    policy, ledger = SETTING.policy(MIXED), MemoryLedger()
    run(policy, SETTING.world(), ledger)
    report = build(SETTING.job(MIXED), tuple(ledger.entries))
    lines = print_lines(lambda out: show_report(out, report))
    first, second, third, fourth, total = planned_and_actual(report).rows
    assert first[:4] == ("1", "12", "1/2", "1 x p9.big spot us-east-1a")
    assert first[5] == "$1.49 / $1.49"
    assert second == ("", "4", "1", "4 x g9.small on-demand", "", "")
    assert third[:4] == ("2", "4", "2", "1 x p9.big spot us-east-1a")
    assert fourth[:3] == ("3", "1", "8")
    assert total == ("total", "", "", "", "15m 53s / 15m 53s", "$2.81 / $2.81")
    assert any(" ".join(line.split()) == " ".join(filter(None, total)) for line in lines)
    assert any(line.startswith("Best: score") for line in lines)
    assert any(" went from 1/2 to 2 GPUs: epoch 1, then epoch 2" in line for line in lines)

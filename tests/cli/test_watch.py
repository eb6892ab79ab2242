"""`run -q`, `run -o jsonl`, `watch`: a run without onlookers, for a program, and from elsewhere."""

import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloudtune.engine.ledger import Entry, read_entries
from cloudtune.errors import CloudtuneError
from cloudtune.lifecycle.following import follow_entries
from cloudtune.runs import control, home
from cloudtune.runs.job import Job
from tests.bench import Bench
from tests.builders.ledgers import drop_checksums

pytestmark = pytest.mark.usefixtures("at_home")


@pytest.fixture
def experiment(bench: Bench, simulated: list[Job]) -> Path:
    return bench.ready()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def steady_lines(text: str) -> list[str]:
    """Return what is printed of a run, without the times at which progress is shown."""
    return [line for line in text.splitlines() if " | " not in line]


def test_quiet_prints_the_end_alone(bench: Bench, experiment: Path) -> None:
    loud, quiet = bench.here("run", experiment), bench.here("run", experiment, "--quiet")
    assert loud.code == quiet.code == 0
    assert "starts t00" in loud.out
    assert "Plan of small" in loud.out
    assert "starts t00" not in quiet.out
    assert "Plan of small" not in quiet.out
    assert "0 instances left (checked " in quiet.out
    assert "Best: loss" in quiet.out


def is_tick(entry: dict[str, Any]) -> bool:
    """Whether an event only asks for the next tick of the clock, which programs aren't told."""
    timers = all(command["type"] == "SetTimer" for command in entry["commands"])
    return entry["event"]["type"] == "TimerFired" and timers


def test_watch_prints_json_lines_only(bench: Bench, experiment: Path) -> None:
    done = bench.here("run", experiment, "-o", "jsonl")
    result = lines(done.out)
    assert (done.code, done.err) == (0, "")
    kinds = [item["type"] for item in result]
    assert kinds[:2] == ["plan", "run"]
    assert set(kinds[2:-2]) == {"event"}
    assert kinds[-2:] == ["report", "end"]
    assert {item["schema"] for item in result} == {1}
    assert result.pop()["exit_code"] == 0
    [folder] = (bench.home / "runs").iterdir()
    assert result[1]["run"] == folder.name
    recorded = [json.loads(line) for line in drop_checksums(folder / "ledger.jsonl").splitlines()]
    assert [{"event": item["event"], "commands": item["commands"]} for item in result[2:-1]] == [
        entry for entry in recorded[1:] if not is_tick(entry)
    ]
    assert result[-2]["instances"] == 0
    assert result[-2]["dollars"] == pytest.approx(result[-1]["dollars"]["actual"])
    assert result[-2]["best"]["metric"] == result[-1]["best"]["value"]
    assert result[-1]["instances_left"] == 0


def test_no_plan_is_a_line_of_json_too(bench: Bench, experiment: Path) -> None:
    done = bench.here("run", experiment, "--deadline", "1s", "-o", "jsonl").refused(code=3)
    line, end = lines(done.out)
    assert (end["type"], end["exit_code"]) == ("end", 3)
    assert line["type"] == "infeasible"
    assert "1s" in line["message"]


def test_from_another_terminal_it_looks_the_same(bench: Bench, experiment: Path) -> None:
    own = bench.here("run", experiment)
    seen = bench.here("watch")
    assert seen.code == own.code == 0
    begins = own.out.splitlines().index(next(x for x in own.out.splitlines() if "Run small" in x))
    ended = next(n for n, x in enumerate(own.out.splitlines()) if "Run small-" in x and ":" in x)
    during = steady_lines("\n".join(own.out.splitlines()[begins:ended]))
    assert [line for line in steady_lines(seen.out) if line][:-1] == [
        line for line in during if line
    ]
    assert "More: cloudtune report small-" in seen.out
    as_lines = lines(bench.here("watch", "-o", "jsonl").out)
    assert [as_line["type"] for as_line in as_lines][:2] == ["run", "event"]


def test_the_last_screen(bench: Bench, experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.here("run", experiment)
    file = io.StringIO()
    screen = Console(file=file, width=80, height=30, force_terminal=True, highlight=False)
    for module in ("watch", "reporters"):
        # The package's attribute `watch` is the command.
        monkeypatch.setattr(sys.modules[f"cloudtune.cli.{module}"], "console", lambda: screen)
    assert bench.here("watch").code == 0
    last = file.getvalue().rpartition("ending (done)")[2]
    assert "trials: " in last
    assert "fleet" in last or "instance" in last
    assert "ends at about" not in last
    assert "More: cloudtune report small-" in last


def test_the_exit_code_is_that_of_the_run(bench: Bench, experiment: Path) -> None:
    bench.here("run", experiment, "--deadline", "10s", "--force").refused(code=5)
    assert bench.here("watch").code == 5


def test_watch_reports_a_dead_controller(bench: Bench, simulated: list[Job]) -> None:
    folder = bench.ran()
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:20]) + '{"event": ')
    done = bench.here("watch").refused(
        f"the controller of run {folder.name} has died: resume the run with `cloudtune resume",
        code=1,
    )
    assert "starts t00" in done.out


def test_entries_come_as_they_are_written(bench: Bench, simulated: list[Job]) -> None:
    """A writer that stops in the middle of a line, goes on, and ends."""
    folder = bench.ran()
    whole = list(read_entries(folder / home.LEDGER))
    text = (folder / home.LEDGER).read_text()
    growing = bench.folder / "growing.jsonl"
    seen: list[Entry] = []
    cut = len(text) // 2
    growing.write_text(text[:cut])
    at_cut = threading.Event()
    looks = iter([True, True])

    def driven() -> bool:
        at_cut.set()
        return next(looks, False)

    def write() -> None:
        assert at_cut.wait(30)
        with growing.open("a") as file:
            file.write(text[cut:])

    writer = threading.Thread(target=write)
    writer.start()
    for entry in follow_entries(growing, lambda: len(seen) == len(whole), driven):
        seen.append(entry)  # noqa: PERF402  the other thread looks at it
    writer.join()
    assert seen == whole


def test_a_damaged_line_is_reported_with_its_number(bench: Bench, simulated: list[Job]) -> None:
    folder = bench.ran()
    ledger = folder / home.LEDGER
    whole = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join([*whole[:3], "{}\n", *whole[4:]]))
    with pytest.raises(CloudtuneError, match=r"ledger\.jsonl:4: not a ledger entry"):
        list(follow_entries(ledger, lambda: False, lambda: control.is_driven(folder)))

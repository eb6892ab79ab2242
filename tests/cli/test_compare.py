"""`cloudtune simulate --curves`: tables in, a comparison out."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloudtune.cli import compare
from cloudtune.cli.main import cli
from cloudtune.errors import CloudtuneError
from cloudtune.plans import Limits
from cloudtune.simulation.case import Case, Result, play
from tests.builders.curves import curves

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"
BASE = "--metric acc --mode max --profile p.csv --offers o.csv --strategy asha --seeds 2 --jobs 1"
LIMITS = "--deadline 20m --budget 2"


@dataclass(frozen=True)
class Said:
    """What the command printed, and what it ended with."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with tables, in which commands run."""
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{curve.name},{epoch},{'' if math.isnan(value) else value},{curve.seconds[0]}"
        for curve in curves(8, 4).curves
        for epoch, value in enumerate(curve.metrics, start=1)
    ]
    (tmp_path / "c.csv").write_text("\n".join(["config,epoch,acc,seconds", *rows]) + "\n")
    (tmp_path / "p.csv").write_text("width,speedup\n1,1\n2,1.7\n")
    (tmp_path / "o.csv").write_text("instance_type,gpus,usd_per_hour\nbox,2,6\n")
    return tmp_path


def say(line: str) -> Said:
    """Run a command line as `main` does."""
    result = CliRunner().invoke(cli, shlex.split(line), standalone_mode=False)
    error = result.exception
    if error is None:
        return Said(result.return_value, result.stdout, result.stderr)
    if isinstance(error, CloudtuneError):
        return Said(error.exit_code, result.stdout, f"{result.stderr}{error}")
    raise error


def simulate(more: str = LIMITS) -> Said:
    return say(f"simulate --curves c.csv {BASE} {more}")


# ---- output --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_a_table_for_each_pair_of_limits() -> None:
    said = simulate("--deadline 10m,20m --budget 1,2 --strategy random,asha")
    assert said.code == 0
    titles = [line for line in said.out.splitlines() if line.startswith("Deadline")]
    assert titles == [
        f"Deadline {deadline}, budget ${budget}.00"
        for deadline in ("10m", "20m")
        for budget in (1, 2)
    ]
    assert said.out.count(" random ") == said.out.count(" asha ") == 4
    assert said.out.endswith("16 of 16 runs kept their limits, by their ledgers\n")
    assert re.search(r"^16 jobs in .* s: .* jobs a second$", said.err, re.MULTILINE)


@pytest.mark.usefixtures("folder")
def test_json_is_strict_and_csv_says_the_same() -> None:
    found = json.loads(simulate(f"{LIMITS} -o json").out, parse_constant=pytest.fail)
    (cell,) = found["cells"]
    (row,) = csv.DictReader(io.StringIO(simulate(f"{LIMITS} -o csv").out))
    assert {key: "" if value is None else str(value) for key, value in cell.items()} == row
    assert found["best"] == pytest.approx(cell["metric"] + cell["regret"])
    assert (cell["strategy"], cell["deadline_seconds"], cell["runs"]) == ("asha", 1200.0, 2)
    assert cell["within_limits"] == 1.0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_the_output_is_the_same_byte_for_byte_in_any_number_of_processes(output: str) -> None:
    alone, by_two = (
        simulate(f"{LIMITS} --seeds 5 --eta 2,3 -o {output} --jobs {n}").out for n in (1, 2)
    )
    assert alone == by_two


def test_a_page_has_charts_of_each_pair_of_limits_and_the_tables(folder: Path) -> None:
    said = simulate("--deadline 20m,none --budget 2 --strategy asha,random --html made.html")
    assert said.code == 0
    page = (folder / "made.html").read_text()
    for limits in ("deadline 20m, budget $2.00", "no deadline, budget $2.00"):
        for title in ("acc against time", "acc against dollars", "GPUs that bill"):
            assert page.count(f">{title}, {limits}</h2>") == 1
    assert page.count('class="chart"') == 8
    assert "8 of 8 runs kept their limits, by their ledgers" in page
    first = next(iter(csv.DictReader(io.StringIO(simulate(f"{LIMITS} -o csv").out))))
    told = re.search(r'id="told">(.*?)</script>', page)
    assert told is not None
    ends = json.loads(told[1])["figures"][2]["data"]
    assert float(first["metric"]) in [
        pytest.approx(y, rel=1e-6) for trace in ends for y in trace["y"]
    ]


def test_out_has_cells_runs_and_pictures(folder: Path) -> None:
    said = simulate("--deadline 20m,none --budget 2 --strategy asha,hypersched --out made/here")
    assert said.code == 0
    made = folder / "made" / "here"
    assert sorted(path.name for path in made.iterdir()) == [
        "cells.csv",
        "deadline-20m-budget-2.png",
        "deadline-none-budget-2.png",
        "runs.csv",
    ]
    assert (made / "deadline-20m-budget-2.png").read_bytes().startswith(b"\x89PNG")
    runs = list(csv.DictReader((made / "runs.csv").read_text().splitlines()))
    assert [run["seed"] for run in runs] == ["0", "1"] * 4
    cells = list(csv.DictReader((made / "cells.csv").read_text().splitlines()))
    mean = sum(float(run["dollars"]) for run in runs[:2]) / 2
    assert float(cells[0]["dollars"]) == pytest.approx(mean)


def test_pictures_can_be_drawn_of_nothing_and_twice_alike(folder: Path) -> None:
    for name in ("one", "two"):
        assert simulate(f"--deadline 5s --budget 0 --out {name}").code == 0
    name = "deadline-5s-budget-0.png"
    assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("limits", ["--budget 0", "--budget 0.0 --deadline 1h", "--deadline 30s"])
def test_too_little_for_a_result_is_shown_as_none(limits: str) -> None:
    said = simulate(limits)
    assert said.code == 0
    assert said.out.count("none") >= 3
    (cell,) = json.loads(simulate(f"{limits} -o json").out)["cells"]
    assert (cell["metric"], cell["regret"], cell["winner_epochs"]) == (None, None, None)
    assert (cell["without_result"], cell["within_limits"]) == (2, 1.0)


@pytest.mark.usefixtures("folder")
def test_what_is_varied_has_a_column() -> None:
    said = simulate(f"{LIMITS} --strategy asha,hypersched --fleet constant:1,naive:2 --eta 2,4")
    heading = next(line for line in said.out.splitlines() if "regret" in line)
    assert heading.split()[:4] == ["strategy", "fleet", "eta", "acc"]
    ways = [
        line.split()[:3] for line in said.out.splitlines() if line.startswith((" asha", " hyp"))
    ]
    assert ways == [
        [strategy, fleet, eta]
        for strategy in ("asha", "hypersched")
        for fleet in ("constant:1", "naive:2")
        for eta in ("2", "4")
    ]


def test_spot_offers_are_there_when_the_trace_says_so(folder: Path) -> None:
    (folder / "o.csv").write_text(
        "instance_type,gpus,usd_per_hour,market\nbox,2,2,spot\nbox,2,6,on-demand\n"
    )
    bills = {}
    for there in ("1", "0"):
        (folder / "t.csv").write_text(f"seconds,available\n0,{there}\n600,{there}\n")
        said = simulate(f"{LIMITS} --spot-trace t.csv --fleet naive:1 -o json")
        (cell,) = json.loads(said.out)["cells"]
        bills[there] = cell["dollars"]
    assert bills["1"] < 0.5 * bills["0"], "spot at a third of the price, or on-demand in its stead"
    said = simulate(f"{LIMITS} --spot-where zone=a")
    assert (said.code, said.err.startswith("--spot-where: is for --spot-trace")) == (2, True)


@pytest.mark.usefixtures("folder")
def test_a_strategy_with_stages_goes_by_its_plan_if_no_fleet_is_named() -> None:
    said = simulate(f"{LIMITS} --strategy rubberband -o json")
    (cell,) = json.loads(said.out)["cells"]
    assert (cell["allocator"], cell["fleet"]) == ("planned", "planned")
    said = simulate(f"{LIMITS} --strategy rubberband --fleet constant:1,naive:2 -o json")
    named = [(cell["allocator"], cell["fleet"]) for cell in json.loads(said.out)["cells"]]
    assert named == [("same", "constant:1"), ("same", "naive:2")]


def test_an_experiment_is_still_simulated(folder: Path) -> None:
    said = say("simulate no.yaml")
    assert said.code == 2
    assert "no.yaml" in said.err
    assert "EXPERIMENT" in say("simulate --help").out
    assert "--curves" in say("simulate --curves x --help").out


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--strategy hypershed", "unknown strategy 'hypershed'; .* Did you mean 'hypersched'"),
        ("--strategy rubberbnd", "unknown strategy 'rubberbnd'; .* Did you mean 'rubberband'"),
        ("--allocator smae", "unknown allocator 'smae'; .* Did you mean 'same'"),
        ("--fleet naiv:3", "unknown fleet 'naiv'; .* Did you mean 'naive'"),
        ("--sampler rndom", "there is no sampler 'rndom'; .* Did you mean 'random'"),
        ("--sampler tpe", "the sampler tpe needs the hyperparameters"),
        ("--eta 1", "--eta '1': write whole numbers above 1"),
        ("--deadline 2", "--deadline: '2' has no unit"),
        ("--deadline 0s", "--deadline: "),
        ("--budget=-1", "--budget: "),
        ("--boot soon", "--boot: 'soon' is not a duration"),
        ("--metric val", "c.csv: there is no column 'val'; there are config, epoch, acc"),
        ("--where acc", "--where 'acc': write COLUMN=VALUE"),
        ("--where lr=1", "there is no column 'lr'"),
        ("--profile none@x", "no file and no bundled profile is called 'none@x'"),
        ("--profile no.csv", "no.csv: there is no such file"),
        ("--offers m9.huge", "no price is known for instance type 'm9.huge'"),
        ("--curves no.csv", "no.csv: there is no such file"),
        ("--curves o.csv", "o.csv: there is no column 'config'"),
        ("--out c.csv", "--out c.csv: can't be written"),
    ],
)
def test_a_mistake_is_told(more: str, told: str) -> None:
    said = simulate(f"{LIMITS} {more}")
    assert said.code == 2
    assert re.search(told, said.err)
    assert "Traceback" not in said.err


def test_curves_without_seconds_need_them_told(folder: Path) -> None:
    (folder / "c.csv").write_text("config,epoch,acc\na,1,0.5\n")
    said = simulate()
    assert said.code == 2
    assert "give --epoch-seconds, as in 5m" in said.err
    assert simulate(f"{LIMITS} --epoch-seconds 2m").code == 0


def test_mistakes_in_the_tables_are_told_with_their_line(folder: Path) -> None:
    (folder / "p.csv").write_text("width,speedup\n2,1.7\n")
    assert "p.csv: no row has width 1" in simulate().err
    (folder / "p.csv").write_text("width,speedup\n1,1\n")
    (folder / "o.csv").write_text("instance_type,gpus,usd_per_hour\nbox,2,\n")
    assert "o.csv:2: the offer has no price" in simulate().err
    (folder / "o.csv").write_text("instance_type,gpus,usd_per_hour\nbox,2,1\n")
    (folder / "c.csv").write_text("config,epoch,acc\na,1,0.5\na,1,0.6\n")
    assert "c.csv:3: step 1 of configuration a" in simulate().err


@pytest.mark.usefixtures("folder")
def test_a_run_past_its_limits_is_an_error_that_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(benchmark: object, wanted: list[Case], _processes: int) -> list[Result]:
        from dataclasses import replace

        found = []
        for one in wanted:
            result = play(benchmark, replace(one, limits=Limits()))  # type: ignore[arg-type]
            told = ("cost too much",) if one.seed == 1 else ()
            found.append(replace(result, violations=told))
        return found

    monkeypatch.setattr(compare, "play_all", careless)
    said = simulate()
    assert said.code == 1
    assert "asha, same, naive, eta 3, deadline 20m, budget $2.00, seed 1: cost too much" in said.err


def test_bills_are_by_what_one_says(folder: Path) -> None:
    """One trial of 4 epochs of 100 s on one of two GPUs, at $6 an hour; 5 s until it trains."""
    rows = [f"one,{epoch},{0.1 * epoch},100" for epoch in range(1, 5)]
    (folder / "c.csv").write_text("\n".join(["config,epoch,acc,seconds", *rows]) + "\n")
    (folder / "p.csv").write_text("width,speedup\n1,1\n")
    exact = "--launch 0 --boot 0 --start 5s --release 0 --spread 0 --seeds 1 --fleet constant:1"
    bills = {
        unit: json.loads(simulate(f"{exact} --strategy random {more} -o json").out)["cells"][0]
        for unit in ("", "second", "minute", "hour", "function")
        for more in [f"--billing {unit}" if unit else ""]
    }
    assert {cell["seconds"] for cell in bills.values()} == {405.0}
    dollars = {unit: cell["dollars"] for unit, cell in bills.items()}
    assert dollars[""] == dollars["second"] == pytest.approx(405 * 6 / 3600)
    assert dollars["minute"] == pytest.approx(7 * 60 * 6 / 3600)
    assert dollars["hour"] == pytest.approx(6)
    assert dollars["function"] == pytest.approx(405 / 2 * 6 / 3600)


# ---- the page ------------------------------------------------------------------------------------


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content)
    commands = re.findall(r"<!-- run -->\n```console\ncloudtune (.*?)\n```", text)
    assert len(commands) == 3
    for command in commands:
        said = say(command)
        assert said.code == 0
        assert "val_top1" in said.out or "strategy" in said.out


def test_the_page_names_every_delay_and_its_default() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for option in compare.simulate_curves.params:
        name = option.opts[0]
        if name in {"--launch", "--boot", "--release"}:
            assert f"| `{name}` | {str(option.default).removesuffix('s')} s |" in text
        elif name == "--spread":
            assert f"| `{name}` | {option.default} |" in text

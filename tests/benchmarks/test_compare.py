"""`python -m benchmarks.compare`: tables in, a comparison out."""

import csv
import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import __main__ as command
from benchmarks.compare.case import Case, Result, play
from cloudtune.model.plans import Limits
from tests.bench import Done
from tests.builders.curves import curves

PAGE = Path(__file__).parents[2] / "benchmarks" / "compare" / "README.md"
BASE = (
    "--curves c.csv --metric acc --mode max --profile p.csv --offers o.csv --strategy asha "
    "--seeds 2 --jobs 1"
)
LIMITS = "--deadline 20m --budget 2"


class Said(Done):
    @property
    def cells(self) -> list[dict[str, Any]]:
        return list(json.loads(self.out, parse_constant=pytest.fail)["cells"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


@pytest.fixture
def compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(more: str = LIMITS, base: str = BASE) -> Said:
        try:
            code = command.main(shlex.split(f"{base} {more}"))
        except SystemExit as ended:  # argparse refused
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


def test_a_table_for_each_pair_of_limits(compare: Callable[..., Said]) -> None:
    said = compare("--deadline 10m,20m --budget 1,2 --strategy random,asha").succeeded()
    titles = [line for line in said.out.splitlines() if line.startswith("Deadline")]
    assert titles == [
        f"Deadline {deadline}, budget ${budget}.00"
        for deadline in ("10m", "20m")
        for budget in (1, 2)
    ]
    assert said.out.count(" random ") == said.out.count(" asha ") == 4
    assert said.out.endswith("16 of 16 runs kept their limits, by their ledgers\n")
    assert re.search(r"^16 jobs in .* s: .* jobs a second$", said.err, re.MULTILINE)


def test_json_is_strict_and_csv_says_the_same(compare: Callable[..., Said]) -> None:
    (cell,) = compare(f"{LIMITS} -o json").cells
    (row,) = csv.DictReader(compare(f"{LIMITS} -o csv").out.splitlines())
    assert {key: "" if value is None else str(value) for key, value in cell.items()} == row
    assert (cell["strategy"], cell["deadline_seconds"], cell["runs"]) == ("asha", 1200.0, 2)
    assert cell["within_limits"] == 1.0


def test_spot_is_there_when_the_trace_says_so(folder: Path, compare: Callable[..., Said]) -> None:
    (folder / "o.csv").write_text(
        "instance_type,gpus,usd_per_hour,market\nbox,2,2,spot\nbox,2,6,on-demand\n"
    )
    bills = {}
    for there in ("1", "0"):
        (folder / "t.csv").write_text(f"seconds,available\n0,{there}\n600,{there}\n")
        (cell,) = compare(f"{LIMITS} --spot-trace t.csv --fleet naive:1 -o json").cells
        bills[there] = cell["dollars"]
    assert bills["1"] < 0.5 * bills["0"], "spot at a third of the price, or on demand instead"
    compare(f"{LIMITS} --spot-where zone=a").refused("--spot-where: is for --spot-trace")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--strategy hypershed", "unknown strategy 'hypershed'; .* Did you mean 'hypersched'"),
        ("--sampler tpe", "the sampler tpe needs the hyperparameters"),
        ("--eta 1", "--eta: '1': write whole numbers above 1"),
        ("--deadline 2", "--deadline: '2' has no unit"),
        ("--metric val", "c.csv: there is no column 'val'; there are config, epoch, acc"),
        ("--profile none@x", "no file and no bundled profile is called 'none@x'"),
        ("--offers m9.huge", "no price is known for instance type 'm9.huge'"),
        ("--curves no.csv", "no.csv: there is no such file"),
        ("--out c.csv", "--out c.csv: can't be written"),
    ],
)
def test_a_mistake_is_one_clear_line(more: str, message: str, compare: Callable[..., Said]) -> None:
    said = compare(f"{LIMITS} {more}").refused()
    assert re.search(message, said.err)


def test_limits_are_checked(monkeypatch: pytest.MonkeyPatch, compare: Callable[..., Said]) -> None:
    def careless(benchmark: Any, cases: list[Case], _processes: int) -> list[Result]:
        results = [play(benchmark, replace(case, limits=Limits())) for case in cases]
        return [results[0], replace(results[1], violations=("cost too much",))]

    monkeypatch.setattr(command, "play_all", careless)
    said = compare()
    assert said.code == 1
    assert "asha, same, naive, eta 3, deadline 20m, budget $2.00, seed 1: cost too much" in said.err


def test_the_examples_of_the_page_run(tmp_path: Path, compare: Callable[..., Said]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content)
    start = "<!-- run -->\n```console\npython -m benchmarks.compare "
    commands = re.findall(re.escape(start) + r"(.*?)\n```", text)
    assert len(commands) == 3
    for line in commands:
        said = compare(line, base="").succeeded()
        assert "val_top1" in said.out or "strategy" in said.out


def test_staged_strategy_follows_its_plan(
    compare: Callable[..., Said],
) -> None:
    (cell,) = compare(f"{LIMITS} --strategy rubberband -o json").cells
    assert (cell["allocator"], cell["fleet"]) == ("planned", "planned")
    cells = compare(f"{LIMITS} --strategy rubberband --fleet constant:1 -o json").cells
    assert [(cell["allocator"], cell["fleet"]) for cell in cells] == [("same", "constant:1")]

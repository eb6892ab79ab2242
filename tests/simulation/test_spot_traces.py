"""Spot traces from tables, and runs played on them by the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from cloudtune.cli.main import cli
from cloudtune.engine.spot_pools import UNLIMITED
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.infra.aws import pricing
from cloudtune.simulation.spot_replay import starts, usual_price
from cloudtune.simulation.trace_file import matched, read_traces

if TYPE_CHECKING:
    from pathlib import Path

RUNS = (
    "kind,zone,gpu,gpus,gap_seconds,from_second,available\n"
    "availability,us-west-2a,v100,1,600,0,1\n"
    "availability,us-west-2a,v100,1,600,1800,0\n"
    "availability,us-west-2a,v100,1,600,2400,1\n"
    "availability,us-west-2a,v100,1,600,7200,end\n"
    "availability,us-west-2b,v100,1,600,0,0\n"
    "availability,us-west-2b,v100,1,600,600,1\n"
)
GROUP = (
    "trace,time,InService,Pending,Terminating,Total\n"
    "a,2021-09-14 05:18:00,0.0,0.0,16.0,16.0\n"
    "a,2021-09-14 05:19:00,2.0,8.0,16.0,24.0\n"
    "a,2021-09-14 05:21:00,17.0,0.0,16.0,33.0\n"
)
NODES = (
    "kind,time,count\nadded,2021-07-26T18:42:00Z,3\n"
    "node-trace,2021-07-26T18:42:00Z,3\nnode-trace,2021-07-26 18:52:00,7\n"
)


def table(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_the_formats_of_public_traces_are_read(tmp_path: Path) -> None:
    west, other = (each.trace for each in read_traces(table(tmp_path, RUNS)))
    assert (west.starts, west.instances, west.length) == ((0, 1800, 2400), (1, 0, 1), 7200)
    assert (other.starts, other.length) == ((0, 600), 1200), "the last row lasts as long as others"
    assert west.availability == pytest.approx(6600 / 7200)
    assert west.losses == pytest.approx(3600 / 6600)
    (group,) = read_traces(table(tmp_path, GROUP))
    assert (group.trace.starts, group.trace.instances) == ((0, 60, 180), (0, 2, 17))
    (nodes,) = read_traces(table(tmp_path, NODES), ["kind=node-trace"])
    assert (nodes.trace.starts, nodes.trace.instances) == ((0, 600), (3, 7))


def test_prices_alone_are_a_trace_and_reckoned_with_as_those_of_aws(tmp_path: Path) -> None:
    text = "seconds,usd_per_hour\n0,1.0\n50,2.0\n90,9.0\n100,1.0\n"
    (found,) = read_traces(table(tmp_path, text))
    assert found.trace.prices == (1.0, 2.0, 9.0, 1.0)
    assert set(found.trace.instances) == {UNLIMITED}
    assert found.trace.length == 140.0
    assert usual_price(found.trace) == 2.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seconds,available\n0,1\n60,many\n", "t.csv:3: available is 'many'; write how many"),
        ("seconds,available\n0,1\n60,-1\n", "t.csv:3: available is '-1'; write how many"),
        ("seconds,available\n0,1\n60,0.5\n", "t.csv:3: available is '0.5'; write how many"),
        ("seconds,available\n0,1\nnan,1\n", "t.csv:3: seconds is 'nan'; write seconds"),
        ("seconds,available\n60,1\n0,1\n", "t.csv:3: seconds doesn't come after"),
        ("seconds,available\n0,1\n9,end\n20,1\n", "t.csv:4: the trace (t) had its end before"),
        ("seconds,available\n0,1\n", "t.csv:2: a trace (t) of one row says nothing of time"),
        ("time,available\nnoon,1\n", "t.csv:2: time is 'noon'; write a date and time"),
        ("available\n1\n", "there is no column 'from_second'"),
        ("seconds\n1\n", "there is no column 'available'"),
        ("seconds,available,price\n0,1,0\n9,1,1\n", "t.csv:2: the price is 0; write dollars"),
        ("seconds,available,price\n0,1,\n9,1,1\n", "t.csv:2: the price is empty, and others"),
    ],
)
def test_mistakes_in_traces_are_told_with_their_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_traces(table(tmp_path, text))
    assert told in str(raised.value)


def test_a_trace_is_of_the_offers_that_its_columns_fit(tmp_path: Path) -> None:
    path = table(tmp_path, RUNS)
    zones = ("us-west-2a", "us-west-2b")
    offers = pricing.catalog("us-east-1", ("spot",), zones).matching(["p3.2xlarge"], ("spot",))
    found = matched(read_traces(path), offers, path)
    assert {offer.zone: trace.length for offer, trace in found.items()} == {
        "us-west-2a": 7200.0,
        "us-west-2b": 1200.0,
    }
    (anywhere,) = pricing.catalog("us-east-1", ("spot",)).matching(["p3.2xlarge"], ("spot",))
    with pytest.raises(UsageError, match=r"several traces for p3\.2xlarge spot; pick one of these"):
        matched(read_traces(path), [anywhere], path)
    one = read_traces(path, ["zone=us-west-2b"])
    assert matched(one, [anywhere], path)[anywhere].length == 1200.0
    with pytest.raises(UsageError, match=r"no row has zone=nowhere .*; zone is us-west-2a, us-w"):
        read_traces(path, ["zone=nowhere"])
    with pytest.raises(UsageError, match="nothing of the experiment is rented on spot"):
        matched(one, [], path)


def test_starts_are_spread_over_the_trace() -> None:
    assert starts(100.0, 4, 50.0) == [50.0, 75.0, 0.0, 25.0]


# ---- the command -----------------------------------------------------------------------------

LINE = [
    *("simulate", "examples/digits/experiment.yaml", "--profile", "resnet50-cifar10@v100"),
    *("--instances", "p3.2xlarge", "--max-instances", "1", "--deadline", "6h", "--budget", "40"),
]


def say(*more: str) -> str:
    result = CliRunner().invoke(cli, [*LINE, *more], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forecasts be of few runs: what is looked at is the run that is played."""
    monkeypatch.setattr("cloudtune.jobs.forecasting.FORECAST_EVENTS", 1)


@pytest.mark.usefixtures("quick")
def test_a_run_on_a_trace_is_told_beside_the_bound_and_on_demand(tmp_path: Path) -> None:
    path = table(tmp_path, RUNS)
    where = ("--spot-where", "zone=us-west-2a", "--market", "any", "--seeds", "2")
    told = json.loads(say("--spot-trace", str(path), *where, "-o", "json"))
    assert [run["start"] for run in told["runs"]] == [0.0, 3600.0]
    for run, alone in zip(told["runs"], told["on_demand_alone"], strict=True):
        assert 0 < run["bound"] <= run["dollars"] < alone["dollars"]
        assert run["lost"] >= 1
        assert not run["violations"]
    screen = say("--spot-trace", str(path), *where)
    assert "whoever knew the trace would have paid" in screen
    assert say("--spot-trace", str(path), *where) == screen, "the same again"


def changes(*rows: tuple[int, int]) -> str:
    """Return a table of a pool that has room as is said, from each second on, for ever."""
    lines = [f"{second},{room}\n" for second, room in rows]
    return "seconds,available\n" + "".join(lines) + "900000,end\n"


def on(folder: Path, *more: str, rows: tuple[tuple[int, int], ...]) -> str:
    """Return what the screen says of a run for whom the pool has room as is said."""
    trace = str(table(folder, changes(*rows)))
    return " ".join(say("--spot-trace", trace, "--market", "any", *more).split())


@pytest.mark.usefixtures("quick")
def test_a_pool_that_is_away_for_half_an_hour_is_waited_for(tmp_path: Path) -> None:
    screen = on(tmp_path, rows=((0, 1), (3000, 0), (4800, 1)))
    assert "p3.2xlarge spot can't be had: waits for it, until" in screen
    assert "on-demand; to end at" not in screen


@pytest.mark.usefixtures("quick")
def test_where_a_pool_stays_away_on_demand_finishes_in_time(tmp_path: Path) -> None:
    path = str(table(tmp_path, changes((0, 1), (3000, 0), (30_000, 1))))
    told = json.loads(say("--spot-trace", path, "--market", "any", "-o", "json"))
    (run,) = told["runs"]
    assert (run["ended"], run["violations"]) == ("done", [])
    assert 5 * 3600.0 < run["seconds"] <= 6 * 3600.0
    assert run["spot_hours"] == pytest.approx(3000 / 3600, abs=0.02)
    assert run["on_demand_hours"] > 2.0


@pytest.mark.usefixtures("quick")
def test_a_pool_that_is_hardly_ever_there_is_not_planned_on(tmp_path: Path) -> None:
    screen = on(tmp_path, rows=((0, 1), (3000, 0)))
    assert "mind: not on spot: with its outages $" in screen
    assert "would be expected, more than on demand" in screen


@pytest.mark.usefixtures("quick")
def test_a_run_comes_back_to_spot_while_on_demand_trains_on(tmp_path: Path) -> None:
    screen = on(tmp_path, "--max-instances", "2", rows=((0, 1), (1200, 0), (12_000, 1)))
    assert "on-demand; to end at" in screen
    assert "p3.2xlarge spot can be had again" in screen


def test_what_is_asked_of_a_trace_needs_one(tmp_path: Path) -> None:
    for more in (("--spot-from", "2h"), ("--seeds", "3"), ("--spot-where", "zone=a")):
        with pytest.raises(CloudtuneError, match=f"{more[0]}: is for --spot-trace"):
            say(*more)
    path = str(table(tmp_path, RUNS))
    with pytest.raises(UsageError, match="nothing of the experiment is rented on spot"):
        say("--spot-trace", path)
    with pytest.raises(UsageError, match="--spot-from: '9' has no unit"):
        say("--spot-trace", path, "--spot-from", "9", "--market", "spot")

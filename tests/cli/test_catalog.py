"""`cloudtune catalog`: what it lists, in which order, and how it says what is wrong."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from cloudtune.cli.catalog import catalog
from cloudtune.errors import UsageError
from cloudtune.infra.aws.price_checks import Quotes
from cloudtune.infra.aws.price_refresh import cache
from cloudtune.infra.aws.pricing import AS_OF, interruptions_per_hour


@pytest.fixture(autouse=True)
def own_home(no_aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def ask(*options: str) -> Result:
    return CliRunner().invoke(catalog, options, catch_exceptions=False)


def types(*options: str) -> list[dict[str, Any]]:
    answer = ask("-o", "json", *options)
    assert answer.exit_code == 0
    result: list[dict[str, Any]] = json.loads(answer.stdout)["types"]
    return result


def lines(*options: str) -> list[list[str]]:
    """Give the rows of the table, split into cells; above them are the source and two headings."""
    shown = ask(*options).stdout.splitlines()
    return [line.split() for line in shown[3:-1]]


def test_the_header_gives_source_date_and_age() -> None:
    header = ask().stdout.splitlines()[0]
    assert header.startswith("Prices: EC2 on-demand, us-east-1 (own table;")
    assert f"; {AS_OF}, " in header
    assert header.endswith(" days old")


def test_a_gpu_is_listed_by_gpus_and_price() -> None:
    assert lines("--gpu", "A100") == [
        ["p4d.24xlarge", "8", "a100", "40", "96", "21.9576", "7.2460", "2.7447", "10-15%"],
        ["p4de.24xlarge", "8", "a100", "80", "96", "27.4471", "9.6065", "3.4309", "<5%"],
    ]


def test_catalog_lists_all_types() -> None:
    rows = lines()
    assert len(rows) == 94
    assert rows[0][2] == "a100"
    assert not any("…" in cell for row in rows for cell in row)
    l4 = [row for row in rows if row[2] == "l4"]
    assert [row[1] for row in l4] == ["<1"] * 5 + ["1"] * 7 + ["4"] * 2 + ["8"]
    prices = [float(row[5]) for row in l4 if row[1] == "1"]
    assert prices == sorted(prices)
    assert next(row for row in rows if row[0] == "p5e.48xlarge")[5:] == ["-"] * 4


def test_catalog_lists_a_markets_prices() -> None:
    assert lines("--gpu", "h100", "--market", "spot") == [
        ["p5.48xlarge", "8", "h100", "80", "192", "26.4192", "3.3024", ">20%"]
    ]
    assert lines("--gpu", "h100", "--market", "on-demand")[0] == (
        ["p5.4xlarge", "1", "h100", "80", "16", "6.8800", "6.8800"]
    )
    assert lines("--gpu", "qualcomm-ai100", "--market", "on-demand") == []


def test_unknown_gpu_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no instance type has the GPU 'a10'; allowed: a100, "):
        ask("--gpu", "a10")
    with pytest.raises(UsageError, match=r"Did you mean 'v100'\?"):
        ask("--gpu", "V1000")


def test_json_has_null_for_what_is_not_known() -> None:
    data = json.loads(ask("-o", "json").stdout)
    assert (data["region"], data["as_of"], data["warnings"]) == ("us-east-1", AS_OF, [])
    rows = {row["instance_type"]: row for row in data["types"]}
    assert len(rows) == 94
    assert rows["g5.xlarge"] == {
        "instance_type": "g5.xlarge",
        "gpus": 1,
        "gpu": "a10g",
        "gpu_maker": "nvidia",
        "gpu_memory_mib": 22888,
        "vcpus": 4,
        "memory_mib": 16384,
        "network_mbps": 2500,
        "usd_per_hour": 1.006,
        "spot_usd_per_hour": 0.41246,
        "usd_per_gpu_hour": 1.006,
        "interruption_band": ">20%",
        "interruptions_per_hour": interruptions_per_hour(">20%"),
    }
    unknown = ("gpu_memory_mib", "usd_per_hour", "spot_usd_per_hour", "interruption_band")
    assert [rows["dl2q.24xlarge"][name] for name in unknown] == [None] * 4
    assert rows["g6f.large"]["gpus"] == 0
    assert rows["g6f.large"]["usd_per_gpu_hour"] is None


def test_yaml_says_what_json_says() -> None:
    shown = ask("-o", "yaml", "--gpu", "t4").stdout
    assert YAML(typ="safe").load(shown) == json.loads(ask("-o", "json", "--gpu", "t4").stdout)


def test_a_refresh_shows_live_prices(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    now = time.time()
    refused = {"us-east-1a": 0.0}
    quotes = Quotes(
        "us-east-1",
        "",
        now,
        {"g4dn.xlarge": 0.6, "g4dn.metal": 0.0},
        {"g4dn.xlarge": {"us-east-1b": 0.3}, "g4dn.metal": refused},
    )
    cache(own_home / "prices" / "ec2-us-east-1.json", quotes)  # asked just now

    shown = ask("--refresh", "--gpu", "t4", "--market", "on-demand")
    assert "live prices of us-east-1" in shown.stdout
    assert "0 days old" in shown.stdout
    assert "warning: g4dn.metal on-demand: $0/h refused" in shown.stderr
    (one, eight) = types("--refresh", "--gpu", "t4", "--market", "spot")
    assert (one["spot_usd_per_hour"], one["usd_per_gpu_hour"]) == (0.3, 0.3), "the week's p90"
    assert eight["spot_usd_per_hour"] == pytest.approx(7.824 * 0.49)
    assert one["usd_per_hour"] == 0.6, "data has both prices of what is listed"


def test_many_warnings_are_cut_short(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    free = {row["instance_type"]: 0.0 for row in types("--market", "on-demand")}
    cache(
        own_home / "prices" / "ec2-us-east-1.json", Quotes("us-east-1", "", time.time(), free, {})
    )
    said = ask("--refresh").stderr.splitlines()
    assert len(said) == 6
    assert said[-1].startswith("warning: ")
    assert said[-1].endswith(" more like these; -o json shows all")
    data = json.loads(ask("--refresh", "-o", "json").stdout)
    assert len(data["warnings"]) == len(free) + 1

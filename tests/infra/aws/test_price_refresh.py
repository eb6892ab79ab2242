"""Asking for live prices: of a small AWS on this machine, of the emulator, and of none."""

import json
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.aws import price_refresh
from cloudtune.infra.aws.pricing import AS_OF, MARKETS, catalog
from cloudtune.infra.emulator.provider import make_endpoint
from cloudtune.infra.emulator.service import Emulator
from cloudtune.infra.provider import Endpoint
from tests.builders.servers import serving

NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0


def product(name: str, *prices: str, unit: str = "Hrs", currency: str = "USD") -> str:
    """Write a product as the price list does: JSON in a string."""
    dimensions = {
        str(at): {"unit": unit, "pricePerUnit": {currency: price}}
        for at, price in enumerate(prices)
    }
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": name}},
            "terms": {"OnDemand": {"a": {"priceDimensions": dimensions}}, "Reserved": {}},
        }
    )


def change(name: str, zone: str, price: str, hours_ago: float) -> str:
    stamp = datetime.fromtimestamp(NOW - hours_ago * HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<item><instanceType>{name}</instanceType><spotPrice>{price}</spotPrice>"
        f"<productDescription>Linux/UNIX</productDescription><timestamp>{stamp}</timestamp>"
        f"<availabilityZone>{zone}</availabilityZone></item>"
    )


@dataclass
class Aws:
    """What a pretended AWS answers, page by page, and what it was asked."""

    products: dict[str, list[list[str]]] = field(default_factory=dict)
    spot: list[str] = field(default_factory=list)
    status: int = 200
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    url: str = ""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("us-east-1", self.url, "test", "test")

    def get_products(self, request: dict[str, Any]) -> tuple[str, str]:
        if self.status != 200:
            return "application/x-amz-json-1.1", json.dumps(
                {"__type": "AccessDeniedException", "message": "not you"}
            )
        fields = {item["Field"]: item["Value"] for item in request["Filters"]}
        pages = self.products.get(fields["productFamily"], [[]])
        page = int(request.get("NextToken", 0))
        answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": pages[page]}
        if page + 1 < len(pages):
            answer["NextToken"] = str(page + 1)
        return "application/x-amz-json-1.1", json.dumps(answer)

    def describe_spot_price_history(self, request: dict[str, Any]) -> tuple[str, str]:
        if self.status != 200:
            return "text/xml", (
                "<Response><Errors><Error><Code>UnauthorizedOperation</Code>"
                "<Message>not you</Message></Error></Errors></Response>"
            )
        page = int(request.get("NextToken", 0))
        token = f"<nextToken>{page + 1}</nextToken>" if page + 1 < len(self.spot) else ""
        items = self.spot[page] if self.spot else ""
        return "text/xml", (
            '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<spotPriceHistorySet>{items}</spotPriceHistorySet>{token}"
            "</DescribeSpotPriceHistoryResponse>"
        )

    def answer(self, target: str, body: str) -> tuple[str, str]:
        if target:
            request = json.loads(body)
            self.asked.append((target.rpartition(".")[2], request))
            return self.get_products(request)
        request = dict(urllib.parse.parse_qsl(body))
        self.asked.append((request["Action"], request))
        return self.describe_spot_price_history(request)


@pytest.fixture
def aws() -> Iterator[Aws]:
    """An AWS on loopback that knows prices and nothing else."""
    pretended = Aws()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            kind, text = pretended.answer(self.headers.get("X-Amz-Target", ""), body)
            self.send_response(pretended.status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None: ...

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        pretended.url = f"http://127.0.0.1:{server.server_port}"
        yield pretended


def fill(aws: Aws) -> None:
    aws.products = {
        "Compute Instance": [
            [product("g4dn.xlarge", "0.6000000000"), product("m5.large", "0.096")],
            [product("g5.xlarge", "0.0000000000", "1.1"), product("p3.2xlarge", "0.0")],
        ],
        "Compute Instance (bare metal)": [[product("g4dn.metal", "8.0")]],
        "Storage": [[product("", "0.0952", unit="GB-Mo"), product("", "9", unit="IOPS-Mo")]],
    }
    aws.spot = [
        change("g4dn.xlarge", "us-east-1a", "0.25", 2)
        + change("g4dn.xlarge", "us-east-1a", "9", 9),
        change("g4dn.xlarge", "us-east-1a", "0.30", 200)
        + change("g4dn.xlarge", "us-east-1b", "0.20", 30),
    ]


def test_live_prices_come_page_by_page(aws: Aws, tmp_path: Path) -> None:
    fill(aws)
    prices = price_refresh.live_prices(
        aws.endpoint, tmp_path, NOW, MARKETS, ("us-east-1a", "us-east-1b")
    )
    assert {
        (o.instance_type.name, o.market, o.zone): o.usd_per_hour for o in prices.offers
    } == {
        ("g4dn.xlarge", "on-demand", "us-east-1a"): 0.6,
        ("g4dn.xlarge", "on-demand", "us-east-1b"): 0.6,
        ("g4dn.xlarge", "spot", "us-east-1a"): 0.3,  # the p90: 0.25 is new
        ("g4dn.xlarge", "spot", "us-east-1b"): 0.2,
        ("g4dn.metal", "on-demand", "us-east-1a"): 8.0,
        ("g4dn.metal", "on-demand", "us-east-1b"): 8.0,
        ("g5.xlarge", "on-demand", "us-east-1a"): 1.1,
        ("g5.xlarge", "on-demand", "us-east-1b"): 1.1,
        ("p3.2xlarge", "on-demand", "us-east-1a"): 3.06,  # a price of 0: the table's
        ("p3.2xlarge", "on-demand", "us-east-1b"): 3.06,
    }  # fmt: skip
    assert prices.as_of == "2026-11-21"
    assert any(
        warning.startswith("p3.2xlarge on-demand: $0/h refused") for warning in prices.warnings
    )


def test_price_is_read_by_type(aws: Aws) -> None:
    fill(aws)
    assert price_refresh.read_price(replace(aws.endpoint, region="eu-west-1"), "g4dn.xlarge") == 0.6
    fields = [{item["Field"]: item["Value"] for item in asked["Filters"]} for _, asked in aws.asked]
    assert {(it["instanceType"], it["regionCode"]) for it in fields} == {
        ("g4dn.xlarge", "eu-west-1")
    }
    assert price_refresh.read_price(aws.endpoint, "g6.xlarge") is None
    assert price_refresh.read_price(aws.endpoint, "m5.large") == 0.096, "a head's"
    aws.status = 400
    assert price_refresh.read_price(aws.endpoint, "g4dn.xlarge") is None


def test_a_disk_has_the_price_of_its_region(aws: Aws) -> None:
    assert price_refresh.disk_price(aws.endpoint) is None, "no answer"
    fill(aws)
    assert price_refresh.disk_price(replace(aws.endpoint, region="eu-central-1")) == 0.0952
    _, asked = aws.asked[-1]
    fields = {item["Field"]: item["Value"] for item in asked["Filters"]}
    assert (fields["volumeApiName"], fields["regionCode"]) == ("gp3", "eu-central-1")
    aws.status = 400
    assert price_refresh.disk_price(aws.endpoint) is None


def test_the_week_is_known_by_its_p90(aws: Aws, tmp_path: Path) -> None:
    fill(aws)
    quotes = price_refresh.latest_quotes(aws.endpoint, tmp_path, NOW)
    # $0.30 held for 159 of 168 h, $9 for 7 h, $0.25 for the last 2: the newest may be a lucky one.
    assert quotes.spot["g4dn.xlarge"]["us-east-1a"] == 0.30
    aws.spot[0] += change("g4dn.xlarge", "us-east-1a", "0.5", 1)
    dearer = price_refresh.latest_quotes(aws.endpoint, tmp_path / "other", NOW)
    assert dearer.spot["g4dn.xlarge"]["us-east-1a"] == 0.5, "it has become dearer"


def test_refresh_makes_two_reading_calls(aws: Aws, tmp_path: Path) -> None:
    fill(aws)
    price_refresh.latest_quotes(aws.endpoint, tmp_path, NOW)
    assert {action for action, _ in aws.asked} == {"GetProducts", "DescribeSpotPriceHistory"}
    lists = [request["Filters"] for action, request in aws.asked if action == "GetProducts"]
    regions = [f["Value"] for filters in lists for f in filters if f["Field"] == "regionCode"]
    assert regions == ["us-east-1"] * len(lists)
    spot = next(request for action, request in aws.asked if action == "DescribeSpotPriceHistory")
    assert spot["StartTime"] == "2026-11-14T14:00:00Z"
    assert spot["ProductDescription.1"] == "Linux/UNIX"
    assert "g6f.large" not in spot.values()


def test_other_units_are_no_price(aws: Aws, tmp_path: Path) -> None:
    fill(aws)
    aws.products["Compute Instance"] = [
        [product("g5.xlarge", "1.1", unit="Quantity"), product("g6.xlarge", "6", currency="CNY")]
    ]
    assert price_refresh.latest_quotes(aws.endpoint, tmp_path, NOW).on_demand == {"g4dn.metal": 8.0}


def test_an_answer_serves_for_seven_hours(aws: Aws, tmp_path: Path) -> None:
    fill(aws)
    first = price_refresh.live_prices(aws.endpoint, tmp_path, NOW, MARKETS)
    calls = len(aws.asked)
    assert price_refresh.live_prices(aws.endpoint, tmp_path, NOW + 6.9 * HOUR, MARKETS) == first
    assert len(aws.asked) == calls
    later = price_refresh.live_prices(aws.endpoint, tmp_path, NOW + 7 * HOUR, MARKETS)
    assert len(aws.asked) == 2 * calls
    assert "21:00 UTC" in later.source


def test_an_answer_from_the_future_is_not_trusted(aws: Aws, tmp_path: Path) -> None:
    fill(aws)
    price_refresh.latest_quotes(aws.endpoint, tmp_path, NOW)
    assert price_refresh.latest_quotes(aws.endpoint, tmp_path, NOW - HOUR).taken_at == NOW - HOUR


def test_an_unwritable_folder_keeps_none_from_the_prices(aws: Aws, tmp_path: Path) -> None:
    fill(aws)
    (tmp_path / "file").write_text("")
    assert price_refresh.latest_quotes(aws.endpoint, tmp_path / "file", NOW).trouble == {}


def test_refused_refresh_keeps_the_table(aws: Aws, tmp_path: Path) -> None:
    aws.status = 403
    prices = price_refresh.live_prices(aws.endpoint, tmp_path, NOW, MARKETS)
    assert prices.offers == catalog("us-east-1", MARKETS).offers
    assert prices.as_of == AS_OF
    on_demand, spot = prices.warnings
    assert "not you (it needs pricing:GetProducts); the table of 2026-07-20 stands in" in on_demand
    assert "it needs ec2:DescribeSpotPriceHistory" in spot
    assert list(tmp_path.iterdir()) == [], "trouble is not kept"


def test_an_empty_answer_leaves_the_table(aws: Aws, tmp_path: Path) -> None:
    prices = price_refresh.live_prices(aws.endpoint, tmp_path, NOW)
    assert prices.offers == catalog("us-east-1").offers
    assert "AWS knows none" in prices.warnings[0]


@pytest.mark.parametrize(
    "strange",
    ["nonsense", "[]", "{}", '{"product": {"attributes": {"instanceType": "g5.xlarge"}}}',
     product("g5.xlarge", "one dollar")],
)  # fmt: skip
def test_a_strange_answer_leaves_the_table(aws: Aws, tmp_path: Path, strange: str) -> None:
    aws.products = {"Compute Instance": [[strange]]}
    aws.spot = [change("g5.xlarge", "us-east-1a", "much", 1)]
    prices = price_refresh.live_prices(aws.endpoint, tmp_path, NOW, MARKETS)
    assert prices.offers == catalog("us-east-1", MARKETS).offers
    assert all("an answer that can't be read" in warning for warning in prices.warnings[:2])


def test_no_network_leaves_the_table(tmp_path: Path) -> None:
    nobody = Endpoint("us-west-2", "http://127.0.0.1:9", "test", "test")  # the discard port
    prices = price_refresh.live_prices(nobody, tmp_path, NOW, ("on-demand",))
    assert prices.offers == catalog("us-west-2").offers
    assert "Could not connect" in prices.warnings[0]
    assert prices.source.endswith("used for us-west-2, where prices differ")


def test_a_region_that_is_none_leaves_the_table(tmp_path: Path) -> None:
    prices = price_refresh.live_prices(
        Endpoint("../etc", "http://127.0.0.1:9", "test", "test"), tmp_path, NOW, ("spot",)
    )
    assert "no live spot prices of ../etc" in prices.warnings[0]


def test_the_prices_of_moto_are_refused(emulator: Emulator, tmp_path: Path) -> None:
    """It answers $0.00001, of 2006, for every type: the reason for the checks."""
    prices = price_refresh.live_prices(
        make_endpoint(emulator.access), tmp_path, time.time(), ("spot",), ("us-east-1a",)
    )
    known = catalog("us-east-1", ("spot",), ("us-east-1a",))
    assert set(prices.offers) <= set(known.offers)
    assert prices.offer("g5.xlarge", "spot", "us-east-1a") in known.offers
    assert any(
        warning.startswith("g5.xlarge spot: $0.00001/h in us-east-1a")
        and "the table's $0.41246/h stands in" in warning
        for warning in prices.warnings
    )


@pytest.mark.usefixtures("no_aws")
def test_missing_credentials_get_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no credentials for it here; log in as"):
        price_refresh.check_credentials()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        price_refresh.check_credentials()
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    price_refresh.check_credentials()

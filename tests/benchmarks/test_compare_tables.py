"""Profiles and offers as people write them down."""

from pathlib import Path

import pytest

from benchmarks.compare.offers import offers_of
from benchmarks.compare.speeds import Scaling, scalings
from cloudtune.errors import UsageError
from cloudtune.model.catalog import InstanceType
from cloudtune.profiles import store
from tests.builders import profile

FOUR = InstanceType("g.4x", 4, "t4", 0, 0, 0)
EIGHT = InstanceType("p.8x", 8, "v100", 0, 0, 0)


def scaling(
    tmp_path: Path, text: str, *machines: InstanceType, name: str = "profile.csv"
) -> list[Scaling]:
    (tmp_path / name).write_text(text)
    return scalings(str(tmp_path / name), machines or (FOUR,))


def test_profile_is_relative_to_one_gpu(tmp_path: Path) -> None:
    table = "width,speedup\n4,3.2\n1,1\n2,1.8\n0.5,0.62\n0.33,0.4\n"
    speeds = {1 / 3: 0.4, 0.5: 0.62, 1.0: 1.0, 2.0: 1.8, 4.0: 3.2}
    assert scaling(tmp_path, table) == [Scaling(speeds)]
    assert scaling(tmp_path, "num_gpus,speed\n1,200\n2,300\n") == [Scaling({1.0: 1.0, 2.0: 1.5})]


def test_a_profile_that_we_measured_brings_its_delays(tmp_path: Path) -> None:
    store.write(tmp_path / "own.json", [profile({1.0: 8.0, 2.0: 5.0}, start=4.0, resize=6.0)])
    own = str(tmp_path / "own.json")
    assert scalings(own, [FOUR]) == [Scaling({1.0: 1.0, 2.0: 1.6}, 4.0, 6.0)]
    with pytest.raises(UsageError, match=r"says nothing of 'p\.8x', which --offers has"):
        scalings(own, [EIGHT])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "width,speedup\n2,1.8\n4,3.2\n", "p.csv: no row has width 1"),
        ("p.csv", "width,speedup\n1,1\n2.5,2\n", "p.csv: row 2: width must be whole GPUs"),
        ("p.csv", "width,speedup\n1,1\n2,1.8\n2,1.9\n", "p.csv: row 3: its width has another"),
        ("p.csv", "instance_type,width,speedup\nx,1,1\n", "says nothing of 'g.4x'"),
        ("p.json", "{", "p.json: not JSON"),
        ("p.json", "[1]", 'p.json: write {"1": 1, "2": 1.9}'),
    ],
)
def test_mistakes_in_a_profile(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        scaling(tmp_path, text, name=name)
    assert message in str(raised.value)


def test_offers_are_types_gpus_and_prices(tmp_path: Path) -> None:
    (tmp_path / "offers.csv").write_text(
        "instance_type,gpus,usd_per_hour,market,interruptions_per_hour\n"
        "my.box,2,1.5,,\nmy.box,2,0.5,spot,0.1\np3.2xlarge,1,3.06,,\n"
    )
    one, two, listed = offers_of(str(tmp_path / "offers.csv"))
    assert (one.instance_type.name, one.gpus, one.usd_per_hour) == ("my.box", 2, 1.5)
    assert (one.market, one.interruptions_per_hour) == ("on-demand", 0.0)
    assert (two.market, two.interruptions_per_hour) == ("spot", 0.1)
    assert listed.instance_type.gpu == "v100", "as the catalogue has it"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x,4,0,", "o.csv: row 1: the offer has no usd_per_hour above 0"),
        ("x,1.5,1,", "o.csv: row 1: gpus must be a whole number above 0"),
        ("x,1,1,spto", "o.csv: row 1: market must be on-demand or spot"),
        ("x,1,1,\nx,1,2,", "o.csv: row 2: the offer is there twice; keep one of them"),
    ],
)
def test_mistakes_in_offers(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "o.csv").write_text(f"instance_type,gpus,usd_per_hour,market\n{rows}\n")
    with pytest.raises(UsageError) as raised:
        offers_of(str(tmp_path / "o.csv"))
    assert message in str(raised.value)

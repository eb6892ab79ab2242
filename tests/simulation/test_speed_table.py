"""Profiles and offers as people write them down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cloudtune.catalog import InstanceType
from cloudtune.errors import UsageError
from cloudtune.profiles import store
from cloudtune.simulation.offer_table import offers_of
from cloudtune.simulation.speed_table import Scaling, scalings
from tests.builders import profile

if TYPE_CHECKING:
    from pathlib import Path

FOUR = InstanceType("g.4x", 4, "t4", 0, 0, 0)
EIGHT = InstanceType("p.8x", 8, "v100", 0, 0, 0)


def scaling(
    tmp_path: Path, text: str, *machines: InstanceType, name: str = "profile.csv"
) -> list[Scaling]:
    (tmp_path / name).write_text(text)
    return scalings(str(tmp_path / name), machines or (FOUR,))


def refused(tmp_path: Path, text: str, *machines: InstanceType, name: str = "profile.csv") -> str:
    with pytest.raises(UsageError) as raised:
        scaling(tmp_path, text, *machines, name=name)
    return str(raised.value).replace(f"{tmp_path}/", "")


# ---- profiles ------------------------------------------------------------------------------------


def test_a_profile_is_speed_by_width(tmp_path: Path) -> None:
    found = scaling(tmp_path, "width,speedup\n4,3.2\n1,1\n2,1.8\n0.5,0.62\n0.33,0.4\n")
    assert found == [Scaling({1 / 3: 0.4, 0.5: 0.62, 1.0: 1.0, 2.0: 1.8, 4.0: 3.2})]


def test_any_unit_of_speed_is_relative_to_one_gpu(tmp_path: Path) -> None:
    assert scaling(tmp_path, "num_gpus,speed\n1,200\n2,300\n") == [Scaling({1.0: 1.0, 2.0: 1.5})]


@pytest.mark.parametrize(
    "text",
    [
        '{"1": 1, "2": 1.8}',
        '[{"width": 1, "speedup": 1}, {"width": 2, "speedup": 1.8}]',
        '[{"gpus": 1, "speed": 10}, {"gpus": 2, "speed": 18, "instance_type": null}]',
    ],
)
def test_json_says_the_same(tmp_path: Path, text: str) -> None:
    assert scaling(tmp_path, text, name="profile.json") == [Scaling({1.0: 1.0, 2.0: 1.8})]


def test_each_type_has_its_rows_relative_to_the_first_types_gpu(tmp_path: Path) -> None:
    text = "instance_type,width,speedup\ng.4x,1,1\ng.4x,2,1.9\np.8x,1,3\np.8x,8,15\n"
    found = scaling(tmp_path, text, EIGHT, FOUR)
    assert found == [Scaling({1.0: 3.0, 8.0: 15.0}), Scaling({1.0: 1.0, 2.0: 1.9})]


def test_nothing_is_guessed_of_several_nodes(tmp_path: Path) -> None:
    text = "width,speedup,gpus_per_node\n1,1,8\n4,3.5,8\n8,6.5,8\n8,3,4\n"
    four, eight = scaling(tmp_path, text, FOUR, EIGHT)
    assert four.speeds == {1.0: 1.0, 4.0: 3.5, 8.0: 3.0}
    assert eight.speeds == {1.0: 1.0, 4.0: 3.5, 8.0: 6.5}


def test_a_profile_that_we_measured_brings_its_delays(tmp_path: Path) -> None:
    store.write(tmp_path / "own.json", [profile({1.0: 8.0, 2.0: 5.0}, start=4.0, resize=6.0)])
    found = scalings(str(tmp_path / "own.json"), [FOUR])
    assert found == [Scaling({1.0: 1.0, 2.0: 1.6}, 4.0, 6.0)]
    with pytest.raises(UsageError, match=r"says nothing of 'p\.8x', which --offers has"):
        scalings(str(tmp_path / "own.json"), [EIGHT])


def test_a_bundled_profile_is_taken_by_its_name() -> None:
    (offer,) = offers_of("p3.16xlarge")
    (found,) = scalings("resnet50-cifar10@v100", [offer.instance_type])
    assert found.speeds[1.0] == 1.0
    assert found.speeds[8.0] == pytest.approx(3958 / 707)
    with pytest.raises(UsageError, match="Did you mean 'resnet50-cifar10@v100'"):
        scalings("resnet50-cifar@v100", [offer.instance_type])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("width,speedup\n2,1.8\n4,3.2\n", "profile.csv: no row has width 1; speeds are relative"),
        ("width,speedup\n1,1\n2,\n", "profile.csv:3: speedup is missing; write a number above 0"),
        ("width,speedup\n1,1\n2,0\n", "profile.csv:3: speedup is 0; write a number above 0"),
        ("width,speedup\n1,1\n-2,1\n", "profile.csv:3: width is -2; write a number above 0"),
        ("width,speedup\n1,1\n2.5,2\n", "profile.csv:3: width 2.5 can't be; write whole GPUs"),
        ("width,speedup\n1,1\n0.7,0.8\n", "profile.csv:3: width 0.7 can't be"),
        ("width,speedup\n1,1\ntwo,2\n", "width is 'two'; write a number"),
        ("width,speedup\n1,1\n2,1.8\n2,1.9\n", "profile.csv:4: width 2 has speed 1.9, but 1.8 in"),
        ("width,fast\n1,1\n", "profile.csv: there is no column 'speedup'; there are width, fast."),
        ("instance_type,width,speedup\nx,1,1\n", "says nothing of 'g.4x', which --offers has"),
        ("instance_type,width,speedup\ng.4x,1,1\nx,2,1\n", "no row has width 1 for x"),
        ("width,speedup,gpus_per_node\n1,1,1\n2,2,2\n", ""),
    ],
)
def test_mistakes_in_a_profile_are_told(tmp_path: Path, text: str, told: str) -> None:
    if told:
        assert told in refused(tmp_path, text)
    else:
        assert scaling(tmp_path, text) == [Scaling({1.0: 1.0, 2.0: 2.0})]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "profile.json: not JSON"),
        ("[]", 'profile.json: write {"1": 1, "2": 1.9}'),
        ("[1]", 'profile.json: write {"1": 1, "2": 1.9}'),
        ('{"2": 1.8}', "profile.json: no row has width 1"),
        ('{"1": 1, "two": 2}', "profile.json: entry 2: 'two' is not a number"),
        ('{"1": 1, "2": null}', "profile.json: entry 2: speedup is missing"),
    ],
)
def test_mistakes_in_json_are_told(tmp_path: Path, text: str, told: str) -> None:
    assert told in refused(tmp_path, text, name="profile.json")


def test_a_profile_that_is_not_there_is_told(tmp_path: Path) -> None:
    for name in ("no.csv", "no.json"):
        with pytest.raises(UsageError, match="there is no such file"):
            scalings(str(tmp_path / name), [FOUR])


# ---- offers --------------------------------------------------------------------------------------


def test_offers_are_types_gpus_and_prices(tmp_path: Path) -> None:
    (tmp_path / "offers.csv").write_text(
        "instance_type,gpus,usd_per_hour,market,interruptions_per_hour\n"
        "my.box,2,1.5,,\nmy.box,2,0.5,spot,0.1\n"
    )
    one, two = offers_of(str(tmp_path / "offers.csv"))
    assert (one.instance_type.name, one.gpus, one.usd_per_hour) == ("my.box", 2, 1.5)
    assert (one.market, one.interruptions_per_hour) == ("on-demand", 0.0)
    assert (two.market, two.interruptions_per_hour) == ("spot", 0.1)


def test_of_a_type_that_the_catalogue_has_the_gpu_is_known(tmp_path: Path) -> None:
    (tmp_path / "offers.csv").write_text("instance_type,gpus,usd_per_hour\np3.2xlarge,1,3.06\n")
    (offer,) = offers_of(str(tmp_path / "offers.csv"))
    assert offer.instance_type.gpu == "v100"
    assert scalings("resnet50-cifar10@v100", [offer.instance_type])[0].speeds[1.0] == 1.0


def test_offers_of_the_catalogue_are_taken_by_name_or_pattern() -> None:
    assert [each.instance_type.name for each in offers_of("g4dn.xlarge")] == ["g4dn.xlarge"]
    assert len(offers_of("g4dn.*,p3.2xlarge")) > 3
    assert {each.market for each in offers_of("g4dn.xlarge", "any")} == {"on-demand", "spot"}
    with pytest.raises(UsageError, match=r"Did you mean 'g4dn\.xlarge'"):
        offers_of("g4dn.xlage")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("x,4,", "offers.csv:2: the offer has no price; write its usd_per_hour"),
        ("x,4,nan", "offers.csv:2: the offer has no price; write its usd_per_hour"),
        ("x,4,0", "offers.csv:2: usd_per_hour is 0; write a price above 0"),
        ("x,4,-1", "offers.csv:2: usd_per_hour is -1; write a price above 0"),
        ("x,4,dear", "offers.csv:2: usd_per_hour is 'dear'; write a number"),
        ("x,0,1", "offers.csv:2: gpus is 0; write a whole number above 0"),
        ("x,1.5,1", "offers.csv:2: gpus is 1.5; write a whole number above 0"),
        ("x,,1", "offers.csv:2: gpus is empty; write a whole number above 0"),
        (",1,1", "offers.csv:2: instance_type is empty"),
        ("x,1,1\nx,1,2", "offers.csv:3: x (on-demand) is there twice; keep one of them"),
    ],
)
def test_mistakes_in_offers_are_told(tmp_path: Path, row: str, told: str) -> None:
    (tmp_path / "offers.csv").write_text(f"instance_type,gpus,usd_per_hour\n{row}\n")
    with pytest.raises(UsageError) as raised:
        offers_of(str(tmp_path / "offers.csv"))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("instance_type,gpus\nx,1\n", "there is no column 'usd_per_hour'"),
        ("instance_type,gpus,usd_per_hour,market\nx,1,1,spto\n", "Did you mean 'spot'?"),
        ("instance_type,gpus,usd_per_hour,interruptions_per_hour\nx,1,1,-1\n", "write 0 or more"),
    ],
)
def test_columns_of_offers_are_checked(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "offers.csv").write_text(text)
    with pytest.raises(UsageError) as raised:
        offers_of(str(tmp_path / "offers.csv"))
    assert told in str(raised.value)

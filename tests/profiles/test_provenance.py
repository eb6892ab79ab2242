import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import Provenance, ScalingProfile
from cloudtune.profiles import bundled, ratios
from cloudtune.profiles.provenance import basis, origin_text
from cloudtune.profiles.store import read, write
from tests.builders import LINEAR, profile

TODAY = "2026-11-22"
V100 = InstanceType("p3.2xlarge", 1, "v100", 16384, 8, 62464)
A100 = InstanceType("p4d.24xlarge", 8, "a100", 40960, 96, 1179648)
G5 = replace(profile(LINEAR, name="g5.xlarge"), measured_at="2026-11-19T10:00:00Z")
EMULATED = replace(G5, provenance=Provenance("emulated", core_seconds=0.25, factor=10.0))
P3 = replace(profile({1.0: 8.0}, name="p3.2xlarge"), measured_at=TODAY)


def derive_profile(one: ScalingProfile) -> ScalingProfile:
    result = ratios.derive(one, V100, A100)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (G5, "measured 3 days ago on g5.xlarge"),
        (P3, "measured today on p3.2xlarge"),
        (derive_profile(P3), "derived from p3.2xlarge, measured today"),
        (EMULATED, "emulated"),
        (
            derive_profile(replace(P3, provenance=Provenance("emulated"))),
            "emulated, derived from p3.2xlarge",
        ),
        (bundled.load("resnet50-cifar10@v100", V100), "published 7 years ago for p3.16xlarge"),
        (bundled.load("resnet50-cifar10@v100", A100), "published 7 years ago for p3.16xlarge"),
    ],
)
def test_what_stands_beside_a_figure(one: ScalingProfile, text: str) -> None:
    assert origin_text(one, TODAY) == text


def test_many_sources_are_reported_by_kind() -> None:
    assert basis([G5, G5], TODAY).text == "measured 3 days ago on g5.xlarge"
    assert basis([G5, P3], TODAY).measured
    two = basis([P3, derive_profile(P3)], TODAY)
    assert two.text == "measured today on p3.2xlarge; derived from p3.2xlarge, measured today"
    assert not two.measured
    many = basis([G5, P3, EMULATED], TODAY)
    assert (many.text, many.emulated) == ("emulated; measured", True)
    assert many.kinds == ("emulated", "measured")


def test_what_follows_a_pace_is_emulated_whatever_its_origin() -> None:
    result = basis([G5], TODAY, paced=True)
    assert result.text == "emulated by figures measured 3 days ago on g5.xlarge"
    assert (result.emulated, result.measured) == (True, False)
    assert basis([EMULATED], TODAY, paced=True).text == "emulated"


def test_files_of_earlier_versions_say_it_in_their_source(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write(path, [replace(G5, source="measured on emulated cloud"), G5])
    data = json.loads(path.read_text())
    for one in data["profiles"]:
        del one["provenance"]
    path.write_text(json.dumps(data))
    assert [one.provenance.origin for one in read(path)] == ["emulated", "measured"]

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import UsageError
from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.profiles import bundled, store
from cloudtune.profiles.store import age, read, resolve, stored_path, write
from tests.builders import NODE_BOUNDARY, profile

SCRIPT = "5c" * 32
WANTED = ("g.4x", "g.8x")


def make_profile(source: str, instance_type: str = "g.4x", script: str = SCRIPT) -> ScalingProfile:
    fresh = profile({1 / 3: 9.0, **NODE_BOUNDARY}, spread=0.1)
    return replace(fresh, source=source, instance_type=instance_type, script_hash=script)


def keep(folder: Path, *profiles: ScalingProfile) -> None:
    for one in profiles:
        write(stored_path(folder / "store", one.script_hash, one.instance_type), [one])


def sources(folder: Path, given: Path | None = None) -> list[str]:
    machines = [InstanceType(name, 4, "g", 0, 0, 0) for name in WANTED]
    result = resolve(given, SCRIPT, machines, store=folder / "store", beside=folder)
    return [f"{one.instance_type} {one.source}" for one in result]


def test_profiles_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "p.json"
    profiles = [make_profile("a"), make_profile("b", "g.8x")]
    write(path, profiles)
    assert read(path) == profiles
    write(path, profiles[:1])
    assert read(path) == profiles[:1]
    assert [file.name for file in path.parent.iterdir()] == ["p.json"], "nothing lies around"


@pytest.mark.parametrize("mib", [-1.0, math.inf, math.nan])
def test_impossible_memory_is_refused(tmp_path: Path, mib: float) -> None:
    write(tmp_path / "p.json", [replace(make_profile("a"), memory={1.0: mib})])
    with pytest.raises(UsageError, match=r"p\.json: .*g\.4x: `memory` at width 1 is"):
        read(tmp_path / "p.json")


def test_the_store_goes_before_the_file_beside_the_experiment(tmp_path: Path) -> None:
    write(tmp_path / store.BESIDE, [make_profile("beside"), make_profile("beside", "g.8x")])
    assert sources(tmp_path) == ["g.4x beside", "g.8x beside"]
    keep(tmp_path, make_profile("stored"))
    assert sources(tmp_path) == ["g.4x stored", "g.8x beside"]


def test_a_file_that_was_named_goes_before_all(tmp_path: Path) -> None:
    keep(tmp_path, make_profile("stored"), make_profile("stored", "g.8x"))
    given = tmp_path / "given.json"
    write(given, [make_profile("given")])
    assert sources(tmp_path, given) == ["g.4x given"]


def test_figures_of_another_version_are_passed_over(tmp_path: Path) -> None:
    write(
        tmp_path / store.BESIDE, [make_profile("old", script="0" * 64), make_profile("new", "g.8x")]
    )
    # The name of a stored file holds only the beginning of the hash.
    old = replace(make_profile("old"), script_hash=SCRIPT[:16] + "0" * 48)
    write(stored_path(tmp_path / "store", SCRIPT, "g.4x"), [old])
    assert sources(tmp_path) == ["g.8x new"]


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (make_profile("old", script="0" * 64), "given.json: was measured with another version"),
        (make_profile("other", "p.1x"), "given.json: has no profile for g.4x, g.8x"),
        (None, "no such profile; `cloudtune profile` makes one"),
    ],
)
def test_a_named_file_of_no_use(
    tmp_path: Path, profile: ScalingProfile | None, message: str
) -> None:
    given = tmp_path / "given.json"
    if profile is not None:
        write(given, [profile])
    with pytest.raises(UsageError, match=message):
        sources(tmp_path, given)


VALID = {"cloudtune_profile": 1, "profiles": []}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not a profile"),
        (json.dumps({**VALID, "cloudtune_profile": 2}), "not a profile of version 1"),
        (json.dumps({"cloudtune_profile": 1}), "a damaged profile"),
        (json.dumps({**VALID, "profiles": [{"instance_type": "g.4x"}]}), "a damaged profile"),
        (json.dumps({**VALID, "profiles": [{"epoch": {"one": {}}}]}), "a damaged profile"),
        (json.dumps({**VALID, "profiles": [{"boot": {"mean": "x"}}]}), "a damaged profile"),
        ("\udcff", "not a profile"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=rf"p\.json: {complaint}"):
        read(path)


def test_older_file_is_not_overwritten(tmp_path: Path) -> None:
    """A file is replaced in one step: a profile that can't be encoded leaves the old one."""
    path = tmp_path / "p.json"
    write(path, [make_profile("good")])
    broken = replace(make_profile("bad"), source=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write(path, [broken])
    assert read(path) == [make_profile("good")]


GOOD = Measurement(8.0, 0.1, 3)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"epoch": {}}, "`epoch` is empty"),
        ({"epoch": {1.0: Measurement(0.0)}}, "`epoch` at width 1 has a mean of 0, and must be"),
        ({"epoch": {1.0: GOOD, 2.0: Measurement(-1.0)}}, "`epoch` at width 2 has a mean of -1"),
        ({"epoch": {1.0: Measurement(1.0, math.nan)}}, "at width 1 has a deviation of nan"),
        ({"epoch": {0.0: GOOD}}, "`epoch` has a width of 0, and must have widths above 0"),
        ({"boot": Measurement(-3.0)}, "`boot` has a mean of -3"),
        ({"release": Measurement(1.0, -1.0)}, "`release` has a deviation of -1"),
        ({"error": math.nan}, "`error` is nan"),
    ],
)
def test_impossible_figures(tmp_path: Path, wrong: dict[str, Any], complaint: str) -> None:
    write(
        tmp_path / "p.json", [make_profile("good"), replace(make_profile("bad", "g.8x"), **wrong)]
    )
    where = rf"p\.json: the profile of g\.8x: .*{complaint}.*; measure it again"
    with pytest.raises(UsageError, match=where):
        read(tmp_path / "p.json")


T4 = InstanceType("g.4x", 4, "t4", 16384, 48, 196608)
A100 = InstanceType("g.8x", 8, "a100", 40960, 96, 1179648)
RADEON = InstanceType("g.radeon", 8, "radeon-pro-v520", 46080, 96, 1179648)


def resolve_store(
    folder: Path, given: str | Path | None, *wanted: InstanceType
) -> list[ScalingProfile]:
    return resolve(given, SCRIPT, wanted, store=folder / "store", beside=folder)


def test_a_bundled_profile_goes_before_what_was_measured(tmp_path: Path) -> None:
    keep(tmp_path, make_profile("stored"))
    result = resolve_store(tmp_path, "bert-squad@t4", T4)
    assert result == [bundled.load("bert-squad@t4", T4)]


def test_it_is_derived_for_other_gpus_where_possible(tmp_path: Path) -> None:
    result = resolve_store(tmp_path, "resnet18-cifar10-b2048@t4", RADEON, A100, T4)
    assert [one.instance_type for one in result] == ["g.8x", "g.4x"]
    assert [one.error for one in result] == [0.0, 0.0]
    assert [one.gpu_error for one in result] == [pytest.approx(0.38, abs=0.01), 0.05]


def test_published_figures_in_a_file_are_of_any_script(tmp_path: Path) -> None:
    published = [bundled.load("bert-squad@t4", T4)]
    write(tmp_path / "kept.json", published)
    assert resolve_store(tmp_path, tmp_path / "kept.json", T4) == published


def test_an_age_is_in_days() -> None:
    assert age("2021-07-14", "2021-07-14") == 0
    assert age("2026-01-31T23:59:00Z", "2026-02-02") == 2
    assert age("2026-02-02", "2026-01-31") == 0, "a clock may be off"
    assert age("long ago", "2026-01-31") is None


def test_profile_without_gpu_error_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    write(path, [make_profile("old")])
    data = json.loads(path.read_text())
    del data["profiles"][0]["gpu_error"]
    path.write_text(json.dumps(data))
    assert [one.gpu_error for one in read(path)] == [0.0]


def test_an_impossible_error_of_a_gpu_is_named(tmp_path: Path) -> None:
    write(tmp_path / "p.json", [replace(make_profile("bad"), gpu_error=-0.5)])
    with pytest.raises(UsageError, match=r"`gpu_error` is -0\.5, and must be 0 or more"):
        read(tmp_path / "p.json")

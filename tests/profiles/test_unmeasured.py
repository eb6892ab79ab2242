import math
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.infra.aws import pricing
from cloudtune.model.catalog import InstanceType
from cloudtune.model.scaling import DELAYS, Measurement
from cloudtune.profiles.observed_timings import EpochTimes, RunTimes, with_earlier_runs
from cloudtune.profiles.priors import add_spreads
from cloudtune.profiles.provenance import basis, origin_text
from cloudtune.profiles.ratios import between, gpu_speeds
from cloudtune.profiles.store import read, write
from cloudtune.profiles.unmeasured import prior_profile
from tests.builders.values import present

TYPES = pricing.instance_types()
TODAY = "2026-11-29"
OFFERED = [row.instance_type for row in pricing.rentable()]


@pytest.mark.parametrize("machine", OFFERED, ids=lambda machine: machine.name)
def test_every_type_has_widths_up_to_all_its_gpus(machine: InstanceType) -> None:
    result = prior_profile(machine, epoch_seconds=60.0, error=1.0)
    powers = [2.0**k for k in range(5) if 2**k <= machine.gpus]
    assert result.widths == tuple(powers)
    ratio = present(between("v100", machine.gpu))
    assert result.epoch_seconds(1.0) == pytest.approx(60.0 / ratio.ratio)
    assert (result.error, result.gpu_error) == (1.0, gpu_speeds().own_errors[machine.gpu])
    assert all(result.epoch[width].n == 0 for width in powers)
    errors = [result.epoch[width].error / result.epoch_seconds(width) for width in powers]
    assert errors == sorted(errors)
    assert errors[0] == 0.0
    assert all(getattr(result, name).error > 0 for name in DELAYS)


def test_a_v100_takes_what_is_assumed() -> None:
    result = prior_profile(TYPES["p3.2xlarge"], epoch_seconds=60.0, error=1.0)
    assert result.epoch_seconds(1.0) == pytest.approx(60.0)


def test_rarely_compared_gpus_err_more() -> None:
    own = gpu_speeds().own_errors
    assert max(own["a100"], own["h100"]) < own["v100"] < min(own["t4"], own["l4"], own["m60"])


@pytest.mark.parametrize(("one", "other"), [("a10g", "l40s"), ("t4", "l4"), ("k80", "v100")])
def test_pair_errors_make_the_spread(one: str, other: str) -> None:
    own = gpu_speeds().own_errors
    spread = present(between(one, other)).spread
    assert math.hypot(own[one], own[other]) == pytest.approx(spread, rel=0.1)


def test_a_gpu_of_no_table_may_be_any() -> None:
    unknown = InstanceType("local-1", 2, "quadro-p600", 2048, 8, 16384)
    result = prior_profile(unknown, epoch_seconds=60.0, error=0.5)
    assert result.epoch_seconds(1.0) == 60.0
    assert result.gpu_error == gpu_speeds().spread_of_all > 1.0
    assert "no table has a quadro-p600" in result.source


def test_known_delays_replace_the_assumed_ones() -> None:
    queue = Measurement(300.0, 60.0)
    result = prior_profile(
        TYPES["p3.2xlarge"], epoch_seconds=60.0, error=1.0, delays={"launch": queue}
    )
    assert result.launch == queue
    assert result.boot.mean == 90.0


def test_people_read_what_is_assumed() -> None:
    both = [
        prior_profile(TYPES[name], epoch_seconds=60.0, error=1.0)
        for name in ("p3.2xlarge", "p4d.24xlarge")
    ]
    text = (
        "never measured: an epoch is assumed to take 1m on a V100, off by a factor of 2.7 either "
        "way; GPUs by published ratios"
    )
    assert [origin_text(profile, TODAY) for profile in both] == [text, text]
    result = basis(both, TODAY)
    assert (result.text, result.kinds, result.own, result.measured) == (
        text,
        ("assumed",),
        False,
        False,
    )
    first, *others = add_spreads(both[1], "aws").assumed
    off = math.exp(both[1].speed_error)
    assert first == f"speed off by a factor of {off:.1f} either way: assumed"
    assert "epochs on 8 GPUs ± 33%: predicted from published scaling, not measured" in others


def test_a_run_counts_for_more_than_what_was_assumed() -> None:
    profile = prior_profile(TYPES["p4d.24xlarge"], epoch_seconds=60.0, error=1.0)
    seen = EpochTimes("p4d.24xlarge", 1.0, Measurement(5.0, 0.1, 20))
    run = RunTimes("r1", "2026-11-29T10:00:00Z", ((seen,), (seen,)), ())
    result = present(
        with_earlier_runs(
            profile, runs=[run], machine="p4d.24xlarge", market="on-demand", where="aws"
        )
    )
    assert result.epoch_seconds(1.0) == pytest.approx(5.0, rel=0.1)
    assert result.gpu_error < 0.1 * profile.gpu_error
    assert result.error < 0.1
    apart = result.epoch_seconds(1.0) / result.epoch_seconds(8.0)
    assert apart == pytest.approx(profile.epoch_seconds(1.0) / profile.epoch_seconds(8.0), rel=0.1)


def test_a_part_of_a_gpu_trains_nothing() -> None:
    with pytest.raises(ValueError, match="0 GPUs"):
        prior_profile(TYPES["g6f.large"], epoch_seconds=60.0, error=1.0)


def test_it_is_kept_and_read_with_its_errors(tmp_path: Path) -> None:
    profile = replace(
        prior_profile(TYPES["g5.12xlarge"], epoch_seconds=60.0, error=1.0), script_hash="abc"
    )
    write(tmp_path / "p.json", [profile])
    assert read(tmp_path / "p.json") == [profile]

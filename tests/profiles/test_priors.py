"""What is assumed of a profile's spread where few measurements can't tell."""

import math
from dataclasses import replace
from datetime import date

import pytest

from cloudtune.model.scaling import Measurement
from cloudtune.profiles.csv_table import rows
from cloudtune.profiles.priors import add_spreads, prior
from tests.builders import SUBLINEAR, profile

DELAYS = ("launch", "boot", "start", "resize", "release")
ONCE = replace(
    profile(SUBLINEAR),
    launch=Measurement(10.0),
    boot=Measurement(90.0),
    start=Measurement(11.0),
    resize=Measurement(12.0),
    release=Measurement(4.0),
)


@pytest.mark.parametrize("where", ["", "aws", "emulated", "local"])
@pytest.mark.parametrize("name", DELAYS)
def test_one_measurement_has_a_spread_between_and_within_runs(name: str, where: str) -> None:
    measured, result = getattr(ONCE, name), getattr(add_spreads(ONCE, where), name)
    known = prior(name, where)
    assert (measured.n, measured.sd) == (1, 0.0)
    assert (result.mean, result.n) == (measured.mean, 1)
    assert result.sd == pytest.approx(known.within * measured.mean)
    assert result.error >= max(known.between * measured.mean, known.floor) > 0


def test_speed_is_surer_the_more_configurations_were_measured() -> None:
    errors = [add_spreads(replace(ONCE, configurations=k), "aws").error for k in (1, 4, 100)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(math.hypot(0.19 * math.sqrt(1.25), 0.03))
    assert add_spreads(ONCE, "emulated").error == 0.02, "there it is a table's"


def test_means_stay_and_nothing_is_assumed_twice() -> None:
    result = add_spreads(ONCE, "aws")
    assert [result.epoch_seconds(w) for w in result.widths] == [*SUBLINEAR.values()]
    assert result.assumed
    assert add_spreads(result, "emulated") is result


def test_each_assumption_has_its_source_and_date() -> None:
    for row in rows("priors.csv"):
        assert row["source"]
        assert date.fromisoformat(row["date"])

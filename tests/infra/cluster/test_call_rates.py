"""A run calls EC2 for less than a twentieth of what EC2 allows, however many its instances are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.call_rates import calls_in_an_hour, share

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("instances", [1, 50])
def test_an_hour_of_a_run_is_a_small_part_of_what_ec2_allows(
    instances: int, tmp_path: Path
) -> None:
    calls = calls_in_an_hour(instances, tmp_path)
    assert calls["RunInstances"] == instances
    assert calls["DescribeInstances"] >= 2 * 3600 / 3 * 0.95  # two look, every three seconds
    assert {
        action: share(action, count) < 0.05 for action, count in calls.items()
    } == dict.fromkeys(calls, True)

import math

import pytest

from cloudtune.profiles.gpu_speeds import (
    Comparison,
    GpuSpeeds,
    Specification,
    published_comparisons,
    solve,
    specifications,
)
from tests.builders.values import present


def row(
    slow: str, fast: str, ratio: float, spread: float | None = 0.1, programs: int = 10
) -> Comparison:
    return Comparison(
        slow, fast, ratio, spread, programs, programs, "", "2026-01-01", f"{slow}/{fast}"
    )


def sheet(gpu: str, speed: float) -> Specification:
    return Specification(gpu, math.log(speed), math.log(speed), "2026-01-01")


SHEETS = [sheet("a", 1), sheet("b", 2), sheet("c", 4), sheet("d", 8)]


def ratio(speeds: GpuSpeeds, slow: str, fast: str) -> float:
    return present(speeds.between(slow, fast)).ratio


def test_uncompared_gpu_is_placed_by_specification() -> None:
    speeds = solve([row("a", "b", 2.0), row("b", "c", 2.0)], SHEETS)
    placed = present(speeds.between("a", "d"))
    assert placed.ratio == pytest.approx(8.0)
    assert (placed.n, placed.source.split("; ")[-1]) == (0, "specifications of d and c")
    assert placed.spread > present(speeds.between("a", "c")).spread


def test_chains_of_any_length_add_their_spreads() -> None:
    rows = [row("a", "b", 2.0), row("b", "c", 2.0), row("c", "d", 2.0)]
    result = present(solve(rows, SHEETS).between("a", "d"))
    assert result.source == "over b, c: a/b; b/c; c/d"
    assert result.spread == pytest.approx(math.sqrt(3 * 0.1**2 * 1.1))


def test_rows_with_more_programs_count_for_more() -> None:
    few = solve([row("a", "b", 2.0), row("a", "b", 4.0, programs=1), row("b", "c", 2.0)], SHEETS)
    many = solve([row("a", "b", 2.0, programs=1), row("a", "b", 4.0), row("b", "c", 2.0)], SHEETS)
    assert 2.0 < ratio(few, "a", "b") < ratio(many, "a", "b") < 4.0


def test_sources_that_differ_make_a_pair_less_sure() -> None:
    agreeing = solve([row("a", "b", 2.0), row("a", "b", 2.0), row("b", "c", 2.0)], SHEETS)
    differing = solve([row("a", "b", 1.4), row("a", "b", 2.8), row("b", "c", 2.0)], SHEETS)
    assert agreeing.between_sources == pytest.approx(0.0, abs=1e-3)
    assert differing.between_sources > 0.2
    assert present(differing.between("a", "b")).spread > 0.3


def test_a_single_program_counts_little_beside_the_specification() -> None:
    rows = [row("a", "b", 2.0), row("b", "c", 2.0), row("a", "c", 4.0, 0.9)]
    one = solve([*rows, row("c", "d", 4.0, None, 1)], SHEETS)
    ten = solve([*rows, row("c", "d", 4.0)], SHEETS)
    assert 2.0 < ratio(one, "c", "d") < ratio(ten, "c", "d") < 4.0


def test_gpu_without_specification_is_an_error() -> None:
    with pytest.raises(KeyError):
        solve([row("a", "x", 2.0)], SHEETS)


def test_the_tables_agree_within_what_they_say() -> None:
    speeds = solve(published_comparisons(), specifications())
    assert 0.15 < speeds.specification_error < 0.25
    assert speeds.between_sources < 0.2
    fast_to_slow = ["b300", "b200", "h200", "h100", "a100", "l40s", "v100", "t4", "k80"]
    assert sorted(fast_to_slow, key=lambda gpu: -speeds.logs[gpu]) == fast_to_slow

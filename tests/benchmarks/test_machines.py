import math

import pytest

from benchmarks.machines import Program, Table, lambdas, over_cheapest
from cloudtune.profiles.gpu_speeds import Comparison, published_comparisons

ROWS = [row for row in published_comparisons() if row.source.startswith("Lambda")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.slow}-{row.fast}-{row.precision}")
def test_the_published_rows_follow_from_their_programs(row: Comparison) -> None:
    again = lambdas().again(row)
    assert again is not None
    assert (again.n, again.programs) == (row.n, row.programs)
    assert again.ratio == pytest.approx(row.ratio, abs=1e-3)
    assert again.spread == pytest.approx(row.spread, abs=1e-3)


def test_left_out_model_stays_in_other_tables() -> None:
    programs = [Program(f"m{n}", "", "fp16", {"v100": 1.0, "a100": 1 / n}) for n in (2, 4, 8)]
    table = Table("Lambda", programs, {"v100": "p3.2xlarge", "a100": "p4d.24xlarge"})
    (row,) = (r for r in table.compared("m8") if r.source.startswith("Lambda"))
    assert (row.slow, row.fast, row.n) == ("v100", "a100", 2)
    assert row.ratio == pytest.approx(math.sqrt(8))
    assert len(table.compared("m8")) == len(published_comparisons()) - len(ROWS) + 1


def test_race_costs_no_more_than_prior() -> None:
    found = over_cheapest(lambdas(), "on-demand")
    assert {len(ratios) for ratios in found.values()} == {20}
    assert found["oracle"] == [1.0] * 20
    for dear, cheap in (
        ("the dearest", "always V100"),
        ("the prior alone", "a race of two"),
        ("a race of two", "a race of three"),
    ):
        pairs = zip(found[dear], found[cheap], strict=True)
        assert all(more >= less >= 1.0 for more, less in pairs)

"""F15: PBT exploits whom it should, and BOHB's configurations are its model's, at any width.

The algorithms are written apart, in `written_apart.py`.
"""

from dataclasses import replace

import pytest

from cloudtune.policy.registry import ALLOCATORS
from tests.strategies.test_decisions import hyperband
from tests.strategies.written_apart import bred, model_decisions, modelled, pbt_decisions, reached

NAMES = sorted(name for name in ALLOCATORS if not name.startswith("hypersched"))  # which are slow


@pytest.mark.parametrize(
    ("allocator", "last"),
    [*((name, 9) for name in NAMES), ("hypersched", 9), ("same", 24), ("dynamic-fluid", 24)],
)
def test_f15_pbt_exploits_as_truncation_selection_does(allocator: str, last: int) -> None:
    """Judged after each epoch, and after each second one."""
    found = bred(allocator, 0, 32, last)
    count, differing = pbt_decisions(found)
    assert count > 200
    assert len(found.exploits) >= 8
    assert differing == 0


@pytest.mark.parametrize(
    ("strategy", "allocator"),
    [*(("bohb", name) for name in NAMES), ("sync-bohb", "same"), ("sync-bohb", "dynamic-fluid")],
)
def test_f15_bohb_proposes_what_tpe_does_and_decides_as_hyperband(
    strategy: str, allocator: str
) -> None:
    found = modelled(strategy, allocator, 0, 26)
    count, by_model, differing = model_decisions(found)
    assert count == 26
    assert by_model >= 6
    assert differing == 0
    expected, _ = hyperband(26, 3, 9, lambda number, epoch: reached(found.configs[number], epoch))
    assert found.epochs == tuple(expected[number] for number in range(26))


def test_f15_what_was_told_counts_and_when() -> None:
    """The comparison notices a best result that is the worst, and one that came too late."""
    found = modelled("sync-bohb", "dynamic-fluid", 0, 26)
    first = [at for at, (_, epoch, _) in enumerate(found.steps) if epoch == 1][:9]  # a bracket's
    best = max(first, key=lambda at: found.steps[at][2] or 0.0)
    before, (trial, epoch, value), after = found.steps[:best], found.steps[best], found.steps[best:]
    assert value is not None
    worst = (*before, (trial, epoch, value - 9.0), *after[1:])
    assert model_decisions(replace(found, steps=worst))[2]
    assert model_decisions(replace(found, steps=(*before, *after[1:], after[0])))[2]

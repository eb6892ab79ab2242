"""The rows of a table as configurations to try."""

import numpy as np
import pytest

from benchmarks.compare.sampler import TableSampler
from cloudtune.errors import UsageError
from cloudtune.model.trial import Trial
from cloudtune.strategies.samplers.sampler import SAMPLERS
from tests.strategies.samplers.test_sampler import told


def table(count: int = 150) -> list[Trial]:
    chance = np.random.default_rng(0)
    return [
        Trial(f"c{n}", {"x": float(chance.random()), "y": float(10 ** -(4 * chance.random()))})
        for n in range(count)
    ]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_each_row_comes_once(kind: str) -> None:
    rows = table(6 if kind == "gp" else 20)
    trials = told(TableSampler(rows, kind, 2), len(rows))
    assert sorted(trial.id for trial in trials) == sorted(trial.id for trial in rows)
    assert trials == told(TableSampler(rows, kind, 2), len(rows))
    assert trials != told(TableSampler(rows, kind, 3), len(rows))


def test_rows_without_hyperparameters_can_only_be_drawn() -> None:
    rows = [Trial(f"c{n}", {}) for n in range(5)]
    assert len({t.id for t in iter(TableSampler(rows).ask, None)}) == 5
    with pytest.raises(UsageError, match=r"needs the hyperparameters.*--configs.*random"):
        TableSampler(rows, "tpe")
    with pytest.raises(UsageError, match="perturbs hyperparameters"):
        TableSampler(rows).explore(rows[0])


def test_a_clone_of_a_table_is_the_nearest_row_that_is_left() -> None:
    rows = [Trial(f"c{n}", {"x": n / 10}) for n in range(11)]
    sampler = TableSampler(rows, seed=1)
    clones = [sampler.explore(rows[5]) for _ in range(11)]
    assert len({clone.id for clone in clones if clone is not None}) == 11
    assert sampler.explore(rows[5]) is None
    assert sampler.ask() is None

"""The rows of a table as configurations to try."""

import pytest

from benchmarks.compare.sampler import TableSampler
from cloudtune.errors import UsageError
from cloudtune.model.trial import Trial


def test_table_clone_is_nearest_row() -> None:
    rows = [Trial(f"c{n}", {"x": n / 10}) for n in range(11)]
    sampler = TableSampler(rows, seed=1)
    clones = [sampler.explore(rows[5]) for _ in range(11)]
    assert len({clone.id for clone in clones if clone is not None}) == 11
    assert sampler.explore(rows[5]) is None
    assert sampler.ask() is None
    with pytest.raises(UsageError, match="perturbs hyperparameters"):
        TableSampler([Trial("c0", {})]).explore(rows[0])

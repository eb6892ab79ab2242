"""Trials read the same batches where these are the same, and only there."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from cloudtune.train.shared_input.fingerprint import UnknownDataError, fingerprint
from cloudtune.train.shared_input.order import Batches, BatchOrder


class Images(Dataset[Any]):
    def __init__(self, numbers: Any, *, turn: int = 0, transform: Any = None) -> None:
        self.numbers, self.turn, self.transform = numbers, turn, transform

    def __len__(self) -> int:
        return len(self.numbers)


def key(data: Any = None, name: str = "", collate: Any = list, **numbers: Any) -> str:
    data = Images(np.arange(10)) if data is None else data
    order = BatchOrder(data, numbers.get("seed", 1), numbers.get("shuffles", True))
    size, last = numbers.get("batch_size", 4), numbers.get("drop_last", False)
    return fingerprint(Batches(data, order, size, last, collate), name)


def scale_by(by: float) -> Any:
    return lambda sample: sample * by


def test_equal_ones_made_apart_are_the_same() -> None:
    assert key() == key()
    assert key(Images(torch.arange(5), transform=scale_by(2))) == key(
        Images(torch.arange(5), transform=scale_by(2))
    )


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2},
        {"shuffles": False},
        {"batch_size": 5},
        {"drop_last": True},
        {"collate": tuple},
        {"name": "digits"},
        {"data": Images(np.arange(10) + 1)},
        {"data": Images(np.arange(10).astype(np.int32))},
        {"data": Images(np.arange(10).reshape(10, 1))},
        {"data": Images(torch.arange(10))},
        {"data": Images(np.arange(10), turn=5)},
        {"data": Images(np.arange(10), transform=scale_by(2))},
        {"data": TensorDataset(torch.arange(10))},
    ],
)
def test_whatever_makes_other_batches_tells_them_apart(other: dict[str, Any]) -> None:
    assert key(**other) != key()


def test_what_a_function_has_taken_from_around_it_counts() -> None:
    two, three = (Images(np.arange(3), transform=scale_by(by)) for by in (2, 3))
    assert key(two) != key(three)


def test_other_numbers_deep_in_a_large_tensor_are_noticed() -> None:
    large = torch.zeros(2_000_000)
    other = large.clone()
    other[1_234_567] = 1
    assert key(Images(large)) != key(Images(other))


def test_incomparable_datasets_are_reported(tmp_path: Path) -> None:
    with (tmp_path / "data").open("w+b") as file:
        data = Images(np.arange(10), transform=file)
        with pytest.raises(UnknownDataError, match=r"compared with others' .*an open file"):
            key(data)
        assert key(data, "digits") == key(name="digits")
        assert key(data, "digits") != key(data, "letters")


PROGRAM = """
from torch.utils.data import Dataset
class Mine(Dataset):
    def __init__(self): self.numbers = [1, 2]
    def __len__(self): return 2
    def __getitem__(self, index): return index * 2
data = Mine()
"""


def test_equal_datasets_share_a_fingerprint() -> None:
    """As where trials are commands: cloudpickle has another number for a class in each process."""

    def tell(program: str, channel: Any) -> None:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(program, names)
        channel.send(key(names["data"]))

    forked = multiprocessing.get_context("fork")
    keys = []
    for program in (PROGRAM, PROGRAM, PROGRAM.replace("* 2", "* 3")):
        ours, its = forked.Pipe()
        process = forked.Process(target=tell, args=(program, its))
        process.start()
        keys.append(ours.recv())
        process.join()
    assert keys[0] == keys[1] != keys[2]

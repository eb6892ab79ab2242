"""A batch comes out of shared memory as it went in, and belongs to who has it."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cloudtune.train.shared_input.frames import Frame, read_batch, write_frame


class Pair(NamedTuple):
    inputs: Any
    names: list[str]


def again(frame: Frame) -> Frame:
    return Frame(os.dup(frame.file), frame.size, frame.head)


KINDS = [
    *(torch.bool, torch.uint8, torch.int64, torch.float16),
    *(torch.bfloat16, torch.float32, torch.complex64),
]


def test_whatever_a_collate_function_gives_comes_back() -> None:
    tensors = [torch.arange(7).to(kind) for kind in KINDS]
    batch: dict[str, Any] = {
        "pair": Pair(torch.rand(3, 5).T, ["a", "ä"]),
        "tensors": tensors,
        "empty": torch.empty(0, 4),
        "one": torch.tensor(3.0),
        "arrays": (np.arange(6.0).reshape(2, 3), np.zeros((0, 2)), np.array(["x", "yz"])),
        "objects": np.array([{"a": 1}, None], dtype=object),
        "sparse": torch.eye(2).to_sparse(),
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "number": 5,
        "nothing": None,
    }
    result = read_batch(write_frame(batch))
    assert torch.equal(result["pair"].inputs, batch["pair"].inputs)
    assert result["pair"].names == ["a", "ä"]
    for kind, tensor, wanted in zip(KINDS, result["tensors"], tensors, strict=True):
        assert tensor.dtype is kind
        assert torch.equal(tensor, wanted)
    assert result["empty"].shape == (0, 4)
    assert result["one"] == 3.0
    for array, wanted in zip(result["arrays"], batch["arrays"], strict=True):
        np.testing.assert_array_equal(array, wanted)
        assert array.dtype == wanted.dtype
    assert list(result["objects"]) == [{"a": 1}, None]
    assert torch.equal(result["sparse"].to_dense(), torch.eye(2))
    assert result["conjugated"].resolve_conj() == 1 - 2j
    assert (result["number"], result["nothing"]) == (5, None)


def test_what_one_writes_into_its_batch_no_other_sees() -> None:
    frame = write_frame((torch.ones(4), np.ones(4)))
    mine, other = read_batch(again(frame)), read_batch(frame)
    mine[0].zero_()
    mine[1][:] = 0
    assert other[0].tolist() == other[1].tolist() == [1.0] * 4


def test_a_batch_outlives_its_frame() -> None:
    kept = [read_batch(write_frame(torch.full((1000,), float(number)))) for number in range(20)]
    assert [item[0].item() for item in kept] == list(range(20))


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [read_batch(write_frame(torch.ones(4))) for _ in range(3)]
    assert sum(map(len, kept)) == 12
    with (tmp_path / "open").open("w") as file, pytest.raises(TypeError):
        write_frame([torch.ones(4), file])
    assert len(list(Path("/proc/self/fd").iterdir())) == before

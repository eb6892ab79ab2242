import contextlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import cloudtune
from cloudtune.train.batch_scaling import GrowingBatch, batch_and_lr
from cloudtune.train.checkpoint import CheckpointStore
from cloudtune.train.session import NeverReportedError
from tests.train.sessions import make_session

WIDTHS = st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0, 8.0])


@given(st.integers(1, 512), st.floats(1e-6, 10.0), WIDTHS, WIDTHS)
def test_h22_steps_are_a_tenth_at_most(each: int, lr: float, width: float, other: float) -> None:
    before = each * math.ceil(width)
    batch, rates = batch_and_lr(before, lr, width, other)
    assert batch == each * math.ceil(other)
    steps = [b - a for a, b in itertools.pairwise((lr, *rates))]
    assert all(0 < step <= 0.1 * lr * (1 + 1e-6) for step in steps)
    last = rates[-1] if rates else lr
    growth = math.sqrt(math.ceil(other) / math.ceil(width))
    assert last == pytest.approx(lr * max(1, growth))
    assert len(rates) >= 5 * (growth > 1)
    assert batch_and_lr(batch, last, other, width, initial_lr=lr / 10)[1] == ()


@pytest.mark.parametrize(
    ("batch", "lr", "width", "new"),
    [(0, 0.1, 1, 2), (8, 0.0, 1, 2), (8, 0.1, 0, 2), (8, 0.1, 1, -1), (8, math.nan, 1, 2)],
)
def test_nothing_of_it_may_be_zero(batch: int, lr: float, width: float, new: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        batch_and_lr(batch, lr, width, new)


def test_a_batch_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 100 can't be split evenly over 3 GPUs"):
        batch_and_lr(100, 0.1, 3, 4)


class _Optimizer:
    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.0}, {"lr": 0.0}]


def rates(batch: GrowingBatch, epochs: int) -> list[float]:
    """Return the learning rates of the next epochs, as the optimizer has them."""
    actual = []
    for _ in range(epochs):
        optimizer = _Optimizer()
        result = batch.begin_epoch(optimizer)
        assert [group["lr"] for group in optimizer.param_groups] == [result, result]
        actual.append(result)
    return actual


def test_h22_batch_and_rate_follow_the_width() -> None:
    narrow = GrowingBatch(32, 0.1, workers=1)
    assert (narrow.size, narrow.previous_workers, narrow.previous_size) == (32, None, None)
    assert rates(narrow, 3) == [0.1] * 3
    wide = GrowingBatch(32, 0.1, workers=4)
    wide.load_state_dict(narrow.state_dict())
    assert (wide.size, wide.previous_workers, wide.previous_size) == (128, 1, 32)
    assert rates(wide, 12) == pytest.approx([*(0.1 + n / 100 for n in range(1, 11)), 0.2, 0.2])


def test_h22_second_move_keeps_present_rate() -> None:
    wide = GrowingBatch(32, 0.1, workers=4)
    wide.load_state_dict(GrowingBatch(32, 0.1, workers=1).state_dict())
    assert rates(wide, 3)[-1] == pytest.approx(0.13)
    again = GrowingBatch(32, 0.1, workers=4)
    again.load_state_dict(wide.state_dict())
    assert rates(again, 7) == pytest.approx([0.143, 0.156, 0.169, 0.182, 0.195, 0.2, 0.2])


def test_h22_the_rate_is_never_lowered() -> None:
    """A trial that shrinks keeps it, and one that grows again goes no further than it was."""
    wide = GrowingBatch(32, 0.1, workers=4)
    assert rates(wide, 10)[-1] == pytest.approx(0.2)
    narrow = GrowingBatch(32, 0.1, workers=1)
    narrow.load_state_dict(wide.state_dict())
    assert narrow.size == 32
    assert rates(narrow, 2) == pytest.approx([0.2, 0.2])
    wide.load_state_dict(narrow.state_dict())
    assert rates(wide, 2) == pytest.approx([0.2, 0.2])


def test_h22_who_begins_wide_warms_up() -> None:
    assert rates(GrowingBatch(32, 0.1, workers=4), 11)[-2:] == pytest.approx([0.2, 0.2])
    with pytest.raises(ValueError, match="above 0"):
        GrowingBatch(0, 0.1, workers=1)


def train_epoch(
    folder: Path, share: float, restore: str | None, *, trial: str = "t", saves: bool = False
) -> tuple[str, list[Any]]:
    """Train an epoch by a script on one worker; returns its checkpoint, and what it got."""
    result: list[Any] = []
    paths: list[str] = []
    folder.mkdir(exist_ok=True)
    (folder / "state").write_text("all of it")

    def script(_config: Any) -> None:
        context = cloudtune.get_context()
        batch = GrowingBatch(8, 0.1)
        result.append((context.get_previous_gpus(), context.get_previous_batch_size()))
        result.append((batch.previous_workers, batch.previous_size))
        points: Any = torch.arange(32)
        loader = cloudtune.prepare_data_loader(DataLoader(points, batch.size))
        cloudtune.prepare_data_loader(DataLoader(points, 32))  # of a validation
        for _ in cloudtune.epochs():
            assert len(list(loader)) == 4
            here = cloudtune.Checkpoint.from_directory(folder)
            if saves:
                assert cloudtune.save(here)
                return
            cloudtune.report({"acc": 0.5}, here)

    store = CheckpointStore(str(folder.parent / "store"))
    place = {"trial_id": trial, "store": store, "restore": restore, "share": share}
    session = make_session(lambda report: paths.append(report.checkpoint or ""), **place)
    session.stop()
    with contextlib.suppress(NeverReportedError):
        session.run(script, {})
    return (paths[-1] if paths else ""), result


def test_h22_context_has_checkpoint_batch(tmp_path: Path) -> None:
    path, result = train_epoch(tmp_path / "files", 0.5, None)
    assert result == [(None, None), (None, None)]
    again, result = train_epoch(tmp_path / "files", 1.0, path)
    assert result == [(0.5, 8), (1, 8)]
    _, result = train_epoch(tmp_path / "files", 0.5, again, trial="clone")
    assert result == [(1.0, 8), (1, 8)], "a clone gets its donor's"


def test_h22_mid_epoch_save_keeps_report(tmp_path: Path) -> None:
    path, _ = train_epoch(tmp_path / "files", 0.5, None)
    train_epoch(tmp_path / "files", 1.0, path, saves=True)
    _, result = train_epoch(tmp_path / "files", 1.0, path)
    assert result[0] == (0.5, 8)


def test_a_checkpoint_from_before_says_nothing_of_it(tmp_path: Path) -> None:
    path, _ = train_epoch(tmp_path / "files", 0.5, None)
    manifest = Path(path, "manifest.json")
    document = json.loads(manifest.read_text())
    assert document.pop("trained") == {"gpus": 0.5, "batch_size": 8}
    manifest.write_text(json.dumps(document))
    _, result = train_epoch(tmp_path / "files", 0.5, path)
    assert result == [(None, None), (None, None)]

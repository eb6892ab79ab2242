"""The names of ray.train.torch, and of ray.train, under cloudtune."""

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import cloudtune
from cloudtune import train
from cloudtune.errors import UsageError
from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session("t1", lambda _: None, "acc", "max", 3, rank=1, local_rank=1, world_size=2)
    with made.activate():
        yield made


def test_the_whole_facade_is_there_as_in_ray_train() -> None:
    import cloudtune as ray

    assert ray.train.report is cloudtune.report
    assert ray.train.torch.prepare_model is cloudtune.prepare_model
    assert train.Checkpoint is Checkpoint
    with pytest.raises(AttributeError, match=r"'cloudtune.train' has no attribute 'get_dataset_"):
        _ = train.get_dataset_shard


def test_a_worker_knows_its_place(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    context = cloudtune.get_context()
    assert (context.get_trial_name(), context.get_local_world_size()) == ("t1", 2)
    assert context.get_node_rank() == 0
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("NODE_RANK", "1")
    assert (context.get_local_world_size(), context.get_node_rank()) == (1, 1)
    assert train.torch.get_devices() == [cloudtune.get_device()] == [torch.device("cpu")]


def test_a_model_is_only_moved_without_a_strategy(session: Session) -> None:
    model = torch.nn.Linear(2, 2)
    assert cloudtune.prepare_model(model, parallel_strategy=None) is model
    assert session.models == []
    elsewhere = cloudtune.prepare_model(model, torch.device("meta"), None)
    assert next(elsewhere.parameters()).device.type == "meta"
    unknown: Any = "deepspeed"
    with pytest.raises(UsageError, match=r'\'deepspeed\'; give it "ddp", "fsdp", "auto" or None'):
        cloudtune.prepare_model(model, parallel_strategy=unknown)


def test_loader_is_shared_on_request(session: Session) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=4)
    assert [len(batch[0]) for batch in cloudtune.prepare_data_loader(loader)] == [2, 2]
    whole = cloudtune.prepare_data_loader(loader, add_dist_sampler=False, move_to_device=False)
    assert [batch[0].tolist() for batch in whole] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(("batch", "world"), [(64, 3), (10, 4), (2, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_step_is_the_same_at_any_width(batch: int, world: int, drop_last: bool) -> None:
    """The mean over the workers of what their gradients count is the gradient of the batch."""
    data = TensorDataset(torch.randn(131, 5, generator=torch.manual_seed(0)))
    model = torch.nn.Linear(5, 1)

    def gradients(rank: int, width: int) -> list[torch.Tensor]:
        made = Session(
            "t", lambda _: None, "acc", "max", 3, rank=rank, local_rank=rank, world_size=width
        )
        with made.activate():
            given = DataLoader(data, batch_size=batch, shuffle=True, drop_last=drop_last)
            loader = cloudtune.prepare_data_loader(given)
            assert loader.batch_size is not None
            assert abs(loader.batch_size - batch / width) <= 1
            result: list[torch.Tensor] = []
            for _ in range(2):
                for (inputs,) in loader:
                    loss = model(inputs).square().mean() * made.batch_weight
                    (gradient,) = torch.autograd.grad(loss, [model.weight])
                    result.append(gradient)
            assert len(result) == 2 * len(loader)
            assert made.batch_weight == 1.0
            return result

    alone = gradients(0, 1)
    together = zip(*(gradients(rank, world) for rank in range(world)), strict=True)
    for one, many in zip(alone, together, strict=True):
        torch.testing.assert_close(torch.stack(many).mean(0), one)


def test_gradients_count_by_the_share_of_the_batch(session: Session, tmp_path: Path) -> None:
    plain = torch.nn.Linear(3, 2)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = cloudtune.prepare_model(plain)
        assert model is not plain
        whole: list[torch.Tensor] = []
        part: list[torch.Tensor] = []
        for weight, into in ((1.0, whole), (0.5, part)):
            session.batch_weight = weight
            model.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            into += [
                parameter.grad.clone()
                for parameter in plain.parameters()
                if parameter.grad is not None
            ]
        for one, other in zip(whole, part, strict=True):
            torch.testing.assert_close(0.5 * one, other)
        # The last to hold the group ends it, and a model does so with the GIL, which the group's
        # own thread may be waiting for: then neither ends (torch 2.13, one suite in many).
        del model
    finally:
        torch.distributed.destroy_process_group()


def test_what_of_mixed_precision_torch_has_itself_changes_nothing() -> None:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    assert cloudtune.prepare_optimizer(optimizer) is optimizer
    cloudtune.backward((3 * weight).sum())
    assert weight.grad is not None
    assert weight.grad.item() == 3


def test_reproducible_is_seeded_and_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    draws = []
    try:
        for _ in range(2):
            cloudtune.enable_reproducibility(7)
            draws.append((torch.rand(1).item(), random.random()))
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert draws[0] == draws[1]


def test_a_checkpoint_is_copied_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "state").write_text("1")
    saved = Checkpoint.from_directory(tmp_path / "a")
    assert (Path(saved.to_directory(tmp_path / "c")) / "b" / "state").read_text() == "1"
    named = Path(saved.to_directory())
    assert (named / "b" / "state").read_text() == "1"
    (named / "b" / "state").unlink()


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_a_missing_library_has_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"cloudtune.integrations.{name}", raising=False)
    with pytest.raises(UsageError, match=rf"pip install 'cloudtune\[{name}\]'"):
        importlib.import_module(f"cloudtune.integrations.{name}")

"""What only a real GPU shows; on a machine without one all of it is skipped.

It needs nothing of Ray or of a cloud, and nothing of conftest.py: on a machine with torch, psutil
and pyarrow alone, `PYTHONPATH=.package:. python -m pytest --noconftest tests/gpu` runs it.
"""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import cloudtune
from benchmarks.gpu import nccl, sharing, zygote
from benchmarks.gpu.clients import short_folder
from benchmarks.gpu.node import Bench
from benchmarks.gpu.results import Findings
from cloudtune.infra.node.gpus import gpus
from cloudtune.infra.node.messages import Epoch
from cloudtune.infra.node.mps import MpsDaemons
from cloudtune.infra.node.mps_daemon import CONTROL
from cloudtune.train.session import Session
from cloudtune.train.torch_state import digest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and its torch"),
]
needs_mps = pytest.mark.skipif(not shutil.which(CONTROL), reason=f"{CONTROL} is not installed")


def test_zygote_has_no_cuda() -> None:
    result = Findings()
    with Bench(spares=True) as bench:
        bench.start("one.1", 1.0, until=1)
        bench.hear("one.1", Epoch)
        zygote._look_into(result, int(bench.hello["zygote"]), "zygote")
        assert result.failed == {}
        assert bench.hello["note"] == "warm"
        assert bench.noted("one.1", "stepped")[1]["device"] == "cuda:0"
        bench.end("one.1")
        bench.start("two.1", 1.0, until=1)  # on the spare one, if it is ready
        bench.hear("two.1", Epoch)
        assert bench.noted("two.1", "stepped")[1]["device"] == "cuda:0"
        bench.end("two.1")


def test_single_worker_may_use_nccl() -> None:
    with Bench() as bench:
        bench.start("one.1", 1.0, nccl=True)
        epoch = bench.hear("one.1", Epoch).body
        assert isinstance(epoch, Epoch)
        assert bench.noted("one.1", "joined")[1]["right"]
        assert epoch.report.memory_mib
        bench.end("one.1")


def test_workers_on_one_gpu_get_advice() -> None:
    result = Findings()
    nccl._two_on_one(result, gpus()[0].uuid)
    assert result.failed == {}


@pytest.fixture
def daemons() -> Iterator[MpsDaemons]:
    made = MpsDaemons(short_folder(), gpus()[:1])
    yield made
    made.stop()


@needs_mps
@pytest.mark.parametrize("part", sharing.PARTS, ids=lambda part: part.__name__.strip("_"))
def test_mps_as_in_its_manual(
    daemons: MpsDaemons, part: Callable[[Findings, MpsDaemons], None]
) -> None:
    assert daemons.notice == ""
    result = Findings()
    part(result, daemons)
    assert result.failed == {}, result


def session(rank: int, width: int) -> Session:
    place: dict[str, Any] = {"rank": rank, "local_rank": 0, "world_size": width}
    return Session("t", lambda _: None, "acc", "max", 3, device="cuda:0", **place)


@pytest.mark.parametrize(("batch", "width"), [(64, 3), (10, 4)])
def test_a_step_is_the_same_at_any_width(batch: int, width: int) -> None:
    data = TensorDataset(torch.randn(131, 5, generator=torch.manual_seed(0)))
    model = torch.nn.Linear(5, 1).cuda()

    def gradients(rank: int, of: int) -> list[torch.Tensor]:
        with session(rank, of).activate() as made:
            given = DataLoader(data, batch_size=batch, shuffle=True, pin_memory=True)
            result: list[torch.Tensor] = []
            for (inputs,) in cloudtune.prepare_data_loader(given):
                assert inputs.is_cuda
                loss = model(inputs).square().mean() * made.batch_weight
                result += torch.autograd.grad(loss, [model.weight])
            return result

    alone = gradients(0, 1)
    together = zip(*(gradients(rank, width) for rank in range(width)), strict=True)
    for one, many in zip(alone, together, strict=True):
        torch.testing.assert_close(torch.stack(many).mean(0), one)


def test_the_parameters_of_a_gpu_are_compared_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (3, 1 << 20, 5_000_001)
    parameters = [torch.randn(size, device="cuda") for size in sizes]
    parameters.append(torch.randn(7, device="cuda", dtype=torch.bfloat16))
    copied: list[int] = []
    real = torch.Tensor.cpu

    def cpu(tensor: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        copied.append(tensor.numel())
        return real(tensor, *given, **named)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    first = digest(parameters)
    assert digest([parameter.clone() for parameter in parameters]) == first
    assert sum(copied) < 50, "sums, and no parameters"
    for number, parameter in enumerate(parameters):
        other = [it.clone() for it in parameters]
        other[number].view(torch.uint8)[-1] ^= 1
        assert digest(other) != first, parameter.shape

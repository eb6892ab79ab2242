"""What is reported of an error in a worker."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloudtune.infra.node import worker as module
from cloudtune.infra.node.messages import Begin, Training, WorkerSlot
from cloudtune.infra.node.worker import Worker, describe_failure
from cloudtune.model.commands import StartTrial


def raise_from(error: BaseException, source: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error from source
    return caught.value


def test_worker_error_has_line_and_traceback() -> None:
    failure = describe_failure(raise_from(ValueError("bad luck")), world_size=1)
    assert failure.error == "ValueError: bad luck"
    assert "test_worker.py" in failure.traceback
    assert not failure.out_of_memory
    assert not failure.peer


def test_terminal_codes_in_errors_are_cleaned() -> None:
    bad = "\x1b[31mred\x1b[0m \x1b]0;title\x07 lone \udcff bell\x07 " + "x" * 20_000_000
    failure = describe_failure(raise_from(ValueError(bad)), world_size=1)
    for text, most in ((failure.error, 4096), (failure.traceback, 65536)):
        assert len(text.encode()) < most + 100
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "bytes left out]" in text
    assert "\\udcff" in failure.error
    assert failure.error.startswith("ValueError: red ")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_out_of_memory_causes_are_recognized(error: Exception) -> None:
    assert describe_failure(raise_from(error), world_size=2).out_of_memory
    wrapped = describe_failure(
        raise_from(RuntimeError("the step failed"), source=error), world_size=1
    )
    assert wrapped.out_of_memory
    assert not wrapped.peer


def test_a_peer_that_has_gone_is_recognised() -> None:
    text = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    assert describe_failure(raise_from(RuntimeError(text)), world_size=2).peer
    assert describe_failure(
        raise_from(torch.distributed.DistBackendError("NCCL error")), world_size=2
    ).peer
    assert not describe_failure(raise_from(RuntimeError(text)), world_size=1).peer
    assert not describe_failure(raise_from(RuntimeError("shapes differ")), world_size=2).peer


def test_the_script_gets_nested_parameters_as_mappings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    got: list[dict[str, Any]] = []
    session = SimpleNamespace(grant=lambda _until: None, run=lambda train, config: train(config))
    worker = Worker(SimpleNamespace(send=lambda _body: None))  # type: ignore[arg-type]
    monkeypatch.setattr(module, "Session", lambda **_given: session)
    monkeypatch.setattr(torch, "set_num_threads", lambda _count: None)
    monkeypatch.setitem(module._preloaded, "train.py:train", got.append)
    training = Training("train.py:train", "loss", "min", 1, str(tmp_path), 0)
    command = StartTrial("t1.1", "t1", {"lr": 1.0, "opt/name": "sgd"}, 1.0, (), None, 0, 1)
    begin = Begin(training, WorkerSlot(0, 0, 1, 1), command, 0, "", False, "", 0.0, {})
    worker._train(begin, None)
    assert got == [{"lr": 1.0, "opt": {"name": "sgd"}}]


def test_long_library_error_is_shortened() -> None:
    page = (
        "NCCL error in: ProcessGroupNCCL.cpp:77, invalid usage (run with NCCL_DEBUG=WARN), NCCL "
        "version 2.27.3\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000"
    )
    failure = describe_failure(raise_from(torch.distributed.DistBackendError(page)), world_size=2)
    assert failure.error.startswith("DistBackendError: two workers of the trial are on one GPU")
    assert "LOCAL_RANK" in failure.error
    assert not failure.peer, "it is the script's, and not tried again"

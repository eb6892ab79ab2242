"""A node's GPUs, real by a stand-in for nvidia-smi, or numbers only."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloudtune.infra.node import gpu_sharing
from cloudtune.infra.node.gpu_sharing import NodeGpus
from cloudtune.infra.node.messages import Training
from tests.infra.mps_stand_in import write_control, write_script, write_smi

TWO = "0, GPU-aaaa, NVIDIA A10G, 24000\n1, GPU-bbbb, NVIDIA A10G, 24000\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins, first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", "/tmp")
    write_smi(tmp_path / "bin", TWO)
    return tmp_path / "bin"


@pytest.fixture
def two(programs: Path) -> Iterator[NodeGpus]:
    write_control(programs, programs.parent / "commands")
    node = NodeGpus(2)
    yield node
    node.close()


def test_lone_worker_starts_no_mps(two: NodeGpus) -> None:
    assert two.are_real
    assert two.environment((1,), 1.0) == {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}
    assert two.check() == []
    assert not two.is_fault(1, "CUDA error: an illegal memory access was encountered")


def test_packed_workers_share_their_gpu_by_mps(two: NodeGpus) -> None:
    packed = two.environment((1,), 0.5)
    assert packed["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb"
    assert packed["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert two.notice == ""
    pipes = Path(packed["CUDA_MPS_PIPE_DIRECTORY"])
    two.close()
    assert not pipes.parent.exists()


def test_workers_know_where_to_meet(two: NodeGpus, programs: Path) -> None:
    node = NodeGpus(2, programs)
    places = [node.environment(gpus, share) for gpus, share in [((0,), 1.0), ((1,), 0.5)]]
    node.close()
    assert [place["CLOUDTUNE_INPUT"] for place in places] == [str(programs / "input")] * 2
    assert "CUDA_MPS_PIPE_DIRECTORY" in places[1]
    assert "CLOUDTUNE_INPUT" not in two.environment((1,), 1.0)


def test_time_slicing_without_mps_is_noticed(programs: Path) -> None:
    node = NodeGpus(2)
    assert node.notice == ""
    assert node.environment((0,), 0.5) == {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}
    assert "time-slicing" in node.notice
    node.close()


def test_excess_gpus_are_numbers(programs: Path) -> None:
    node = NodeGpus(4)
    assert not node.are_real
    assert node.environment((3,), 0.5) == {"CUDA_VISIBLE_DEVICES": ""}


def test_only_gpus_found_at_boot_are_used(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTUNE_GPUS", "GPU-bbbb")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as Ray has it in an actor without GPUs
    assert NodeGpus(1).environment((0,), 1.0) == {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}


def test_missing_gpus_are_a_problem(programs: Path) -> None:
    script = Training("train.py:train", "loss", "min", 4, "s", 0, has_gpus=True)
    assert NodeGpus(4).gpu_problem(script) == "2 of its 4 GPUs"
    result = NodeGpus(1).gpu_problem(script)
    assert result == f"GPUs of which its torch {torch.__version__} can use 0"
    assert NodeGpus(4).gpu_problem(replace(script, has_gpus=False)) == ""


def test_gpus_that_start_are_waited_for(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "UserWarning: CUDA initialization: Error 802: system not yet initialized"
    python = write_script(
        programs / "python",
        f"[ -e {programs}/up ] && exec echo 2.9.0 2\n"
        f"touch {programs}/up; echo '{said}' >&2; echo 2.9.0 0",
    )
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(gpu_sharing, "_FABRIC_PAUSE", 0.01)
    script = Training("train.py:train", "loss", "min", 4, "s", 0, has_gpus=True)
    assert NodeGpus(2).gpu_problem(script) == ""

"""This machine as an instance type, and the environment that its trials get."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.node import this_machine as local
from cloudtune.infra.node.gpus import Gpu
from cloudtune.infra.node.this_machine import (
    catalog,
    environment,
    kept_variables,
    model,
    this_machine,
)
from tests.infra.mps_stand_in import write_script, write_smi

A10G = "GPU-{0}, NVIDIA A10G, 24000\n"
METADATA = "http://127.0.0.1:5/_imds/i-1/key"


@pytest.fixture(autouse=True)
def looked_at_afresh() -> Iterator[None]:
    """This machine is looked at once in a process; here it changes."""
    this_machine.cache_clear()
    yield
    this_machine.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for stand-ins that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "bin"


def test_without_a_gpu_cores_are_slots(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(local, "_CGROUP", machine / "no such file")
    result = this_machine()
    assert (result.name, result.gpus, result.gpu, result.vcpus) == ("local-8x-cpu", 8, "cpu", 8)
    assert result.memory_mib > 0
    assert this_machine(3).name == "local-3x-cpu"


FAILS = "echo 'NVIDIA-SMI has failed: no running driver'; exit 9"


@pytest.mark.parametrize(
    ("smi", "visible", "why"),
    [
        (FAILS, None, "nvidia-smi fails: NVIDIA-SMI has failed: no running driver; to train"),
        (None, "MIG-3f", r"CUDA_VISIBLE_DEVICES=MIG-3f names none .* \(MIG\) can't be used; to"),
        (None, "7", "CUDA_VISIBLE_DEVICES=7 names none of this machine's GPUs; to train"),
    ],
)
def test_the_cores_are_not_taken_in_silence(
    machine: Path, monkeypatch: pytest.MonkeyPatch, smi: str | None, visible: str | None, why: str
) -> None:
    if smi is None:
        write_smi(machine, "0, " + A10G.format(0))
    else:
        write_script(machine / "nvidia-smi", smi)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UsageError, match=why):
        this_machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert this_machine().gpu == "cpu"


def test_a_container_s_quota_counts(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    quota = machine.parent / "cpu.max"
    monkeypatch.setattr(local, "_CGROUP", quota)
    quota.write_text("250000 100000\n")
    assert local.cores() == 2
    quota.write_text("max 100000\n")
    assert local.cores() == 8
    quota.write_text("50000 100000\n")
    assert local.cores() == 1


def test_machine_name_has_its_gpus(machine: Path) -> None:
    write_smi(machine, "0, " + A10G.format("a") + "1, " + A10G.format("b"))
    result = this_machine()
    assert (result.name, result.gpus, result.gpu) == ("local-2x-a10g", 2, "a10g")
    assert result.gpu_memory_mib == 24000
    assert this_machine(1).name == "local-1x-a10g"
    with pytest.raises(UsageError, match=r"cloud\.slots: this machine has 2 GPUs"):
        this_machine(3)


def test_gpus_of_two_models_are_both_named(machine: Path) -> None:
    write_smi(machine, "0, " + A10G.format("a") + "1, GPU-b, Tesla T4, 15360\n")
    result = this_machine()
    assert result.name == "local-1x-a10g-1x-t4"
    assert result.gpu_memory_mib == 15360


def test_gpus_may_be_kept_for_other_work(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_smi(machine, "0, " + A10G.format("a") + "1, " + A10G.format("b"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert this_machine().gpus == 1


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada-generation"),
        ("NVIDIA", "gpu"),
    ],
)
def test_models_are_named_as_in_the_price_table(driver_name: str, name: str) -> None:
    assert model(Gpu(0, "GPU-a", driver_name, 1)) == name


def test_it_costs_what_its_owner_says(machine: Path) -> None:
    (offer,) = catalog("us-east-1", 2, 0.0).offers
    assert offer.instance_type.name == "local-2x-cpu"
    assert offer.charge(3600.0) == 0.0
    (offer,) = catalog("us-east-1", 2, 0.5).offers
    assert offer.charge(7.2) == pytest.approx(0.001)  # no minimum, no grain


def test_its_trials_have_the_user_s_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hf")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    monkeypatch.setenv("RAY_ADDRESS", "another cluster")
    monkeypatch.setenv("BASH_ENV", "/etc/profile")
    monkeypatch.setenv("no_proxy", "intranet")
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    given = environment(Path("/f/i-1"), METADATA)
    assert given["HOME"] == os.environ["HOME"]
    assert given["HF_HOME"] == "/data/hf"
    assert given["AWS_SECRET_ACCESS_KEY"] == "mine"
    assert "AWS_EC2_METADATA_SERVICE_ENDPOINT" not in given
    assert given["CLOUDTUNE_METADATA"] == METADATA
    assert given["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert not {"RAY_ADDRESS", "BASH_ENV"} & set(given)


def test_its_shutdown_is_never_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/sbin:/usr/sbin")
    given = environment(Path("/f/i-1"), METADATA)
    assert given["PATH"].startswith("/f/i-1/bin:")


def test_caller_settings_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "work")
    past = kept_variables(["AWS_PROFILE", "AWS_ENDPOINT_URL"])
    monkeypatch.delenv("AWS_PROFILE")
    assert "AWS_PROFILE" not in past
    for name, value in past.items():
        monkeypatch.setenv(name, value)
    given = environment(Path("/f"), METADATA)
    assert given["AWS_PROFILE"] == "work"
    assert not [name for name in given if "KEPT" in name]

"""Where checkpoints wait on an instance, by what the kernel says of its disks."""

from pathlib import Path

import pytest

from cloudtune.infra.node import boot
from cloudtune.infra.node.boot import METADATA_VARIABLE, instance_store
from tests.infra.mps_stand_in import write_smi


def disks(folder: Path, model: str) -> Path:
    """Return a folder as /sys/block is, with one disk of that model."""
    (folder / "nvme1n1" / "device").mkdir(parents=True)
    (folder / "nvme1n1" / "device" / "model").write_text(f"{model:<40}\n")
    return folder


def test_mounted_disks_are_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = disks(tmp_path / "sys", "Amazon EC2 NVMe Instance Storage")
    mounted: list[Path] = []
    monkeypatch.setattr("time.sleep", lambda _seconds: mounted.append(tmp_path / "nvme"))
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)
    assert instance_store(tmp_path / "nvme", store) == tmp_path / "nvme"
    assert len(mounted) == 1
    assert instance_store(tmp_path / "other" / "nvme", store) is None, "another image"
    only_ebs = disks(tmp_path / "ebs", "Amazon Elastic Block Store")
    assert instance_store(tmp_path / "nvme", only_ebs) is None


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLOUDTUNE_STAGING", METADATA_VARIABLE, "AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def test_a_booting_node_says_where_checkpoints_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boot, "instance_store", lambda: tmp_path)
    assert boot.staging() == str(tmp_path / "cloudtune")
    assert f"checkpoints wait in {tmp_path}/cloudtune" in capsys.readouterr().out
    write_smi(tmp_path / "bin", "0, GPU-0, cloudtune stand-in, 0\n")
    with monkeypatch.context() as emulated:
        emulated.setenv("PATH", str(tmp_path / "bin"))
        assert boot.staging() == "", "an emulated machine has no disk of its own"
    monkeypatch.setenv(METADATA_VARIABLE, "http://127.0.0.1:1")
    assert boot.staging() == "", "the user's own machine"
    monkeypatch.setenv("CLOUDTUNE_STAGING", "/fast")
    assert boot.staging() == "/fast"


def test_unwritable_disk_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boot, "instance_store", lambda: tmp_path / "nowhere")
    assert boot.staging() == ""
    assert "checkpoints don't wait on the instance's own disk" in capsys.readouterr().out

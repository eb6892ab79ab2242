"""An instance's own disks, by what the kernel says of them; commands are noted, and not run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloudtune.infra import disks
from cloudtune.infra.disks import MODEL, DiskView, mounted_store, prepared_store
from cloudtune.infra.node import boot
from cloudtune.infra.node.boot import METADATA_VARIABLE
from tests.infra.mps_stand_in import write_smi

EBS = "Amazon Elastic Block Store"
ROOT = "28 1 259:1 / / rw - ext4 /dev/root rw\n"


class Commands:
    """What was run; `codes` are exit codes by a command's name, 0 for others."""

    def __init__(self, **codes: int) -> None:
        self.codes = {"blkid": 2, **codes}
        self.run: list[str] = []

    def __call__(self, command: Sequence[str]) -> int:
        self.run.append(" ".join(command))
        return self.codes.get(command[0].partition(".")[0], 0)


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def machine(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> DiskView:
    """A g5.xlarge as its root sees it: EBS first, and an instance store that nobody has used."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for number, (name, model) in enumerate((("nvme0n1", EBS), ("nvme1n1", MODEL))):
        disk = tmp_path / "sys" / name
        (disk / "device").mkdir(parents=True)
        (disk / "holders").mkdir()
        (disk / "device" / "model").write_text(f"{model:<40}\n")
        (disk / "dev").write_text(f"259:{10 * number}\n")
    part = tmp_path / "sys" / "nvme0n1" / "nvme0n1p1"
    part.mkdir()
    (part / "dev").write_text("259:1\n")
    (tmp_path / "mountinfo").write_text(ROOT)
    (tmp_path / "uid_map").write_text("         0          0 4294967295\n")
    return DiskView(
        tmp_path / "sys",
        Path("/dev"),
        tmp_path / "mountinfo",
        tmp_path / "uid_map",
        tmp_path / "dlami" / "nvme",
        tmp_path / "mounted",
        commands,
    )


def mount(machine: DiskView, number: str, place: Path) -> None:
    place.mkdir(exist_ok=True)
    with machine.mounts.open("a") as mounts:
        mounts.write(f"99 28 {number} / {place} rw,noatime - ext4 /dev/x rw\n")


def test_a_disk_that_nobody_has_used_is_formatted_and_mounted(
    machine: DiskView, commands: Commands
) -> None:
    assert mounted_store(machine) is None
    assert prepared_store(machine) == machine.mounted
    assert [line.split()[0] for line in commands.run] == ["blkid", "mkfs.ext4", "mount"]
    assert all("/dev/nvme1n1" in line for line in commands.run), "never the disk of the root"
    assert machine.mounted.stat().st_mode & 0o777 == 0o700


def test_one_that_an_image_has_mounted_is_taken_as_it_is(
    machine: DiskView, commands: Commands, tmp_path: Path
) -> None:
    volume = machine.sys / "nvme1n1" / "holders" / "dm-0"
    volume.mkdir()
    (volume / "dev").write_text("253:0\n")
    mount(machine, "253:0", tmp_path / "with space")
    text = machine.mounts.read_text().replace("with space", "with\\040space")
    machine.mounts.write_text(text)
    assert mounted_store(machine) == prepared_store(machine) == tmp_path / "with space"
    assert commands.run == []


@pytest.mark.parametrize(
    ("kind", "code"), [("partitioned", 2), ("a volume's", 2), ("formatted", 0), ("in use", 4)]
)
def test_what_may_hold_anything_is_left_alone(
    machine: DiskView, commands: Commands, kind: str, code: int
) -> None:
    commands.codes["blkid"] = code
    inside = {"partitioned": "nvme1n1p1", "a volume's": "holders/md0"}.get(kind)
    if inside is not None:
        (machine.sys / "nvme1n1" / inside).mkdir()
        (machine.sys / "nvme1n1" / inside / "dev").write_text("9:0\n")
    assert prepared_store(machine) is None
    assert not [line for line in commands.run if "mkfs" in line]


def test_nobody_but_the_root_of_the_machine_itself_formats_anything(
    machine: DiskView, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.uid_map.write_text("0 1000 1\n")
    assert prepared_store(machine) is None, "in a namespace of users"
    machine.uid_map.write_text("0 0 4294967295\n")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert prepared_store(machine) is None
    assert commands.run == []


@pytest.mark.parametrize("broken", ["mkfs", "mount"])
def test_without_the_disk_checkpoints_wait_where_they_did(machine: DiskView, broken: str) -> None:
    assert prepared_store(dataclasses.replace(machine, run=Commands(**{broken: 1}))) is None


def test_an_image_that_mounts_disks_itself_is_waited_for(
    machine: DiskView, commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.dlami.parent.mkdir()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            mount(machine, "259:10", tmp_path / "late")

    monkeypatch.setattr("time.sleep", sleep)
    assert prepared_store(machine) == tmp_path / "late"
    assert len(waits) == 3
    assert commands.run == []


def test_a_machine_without_such_disks_is_asked_nothing(
    machine: DiskView, commands: Commands
) -> None:
    (machine.sys / "nvme1n1" / "device" / "model").write_text(EBS)
    assert prepared_store(machine) is None
    assert commands.run == []


def test_a_booting_node_says_where_checkpoints_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CLOUDTUNE_STAGING", METADATA_VARIABLE, "AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(boot, "prepared_store", lambda: tmp_path)
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


def test_a_disk_that_can_not_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CLOUDTUNE_STAGING", raising=False)
    monkeypatch.delenv(METADATA_VARIABLE, raising=False)
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    monkeypatch.setattr(boot, "prepared_store", lambda: tmp_path / "nowhere")
    assert boot.staging() == ""
    assert "checkpoints don't wait on the instance's own disk" in capsys.readouterr().out


def test_a_command_that_is_not_there_has_failed() -> None:
    assert disks._run(["/nonexistent/mkfs"]) == -1
    assert disks._run(["/bin/sh", "-c", "exit 3"]) == 3

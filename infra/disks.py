"""The instance store of an EC2 machine: disks of its own, where checkpoints wait for the storage.

Facts, from AWS's "SSD instance store volumes for EC2 instances" and "Amazon EBS volumes and NVMe"
(EC2 User Guide, read 2026-11-23) and "What is AWS Deep Learning AMIs?": these disks are NVMe
devices whose model is `MODEL` (that of EBS is "Amazon Elastic Block Store"), nothing is on them at
boot, and what is written there goes with the instance. Their names change from boot to boot. The
deep learning AMIs mount them at `DLAMI` at boot, as one volume.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODEL = "Amazon EC2 NVMe Instance Storage"
DLAMI = Path("/opt/dlami/nvme")
MOUNTED = Path("/run/cloudtune-nvme")
"""Where we mount one that isn't mounted yet."""
_DLAMI_SECONDS = 20.0
_POLL_SECONDS = 0.5
_MAKE_SECONDS = 60.0
_NOTHING_FOUND = 2  # blkid's, for a device with nothing on it
_WHOLE = "0 0 4294967295"


def _run(command: Sequence[str]) -> int:
    """Return a command's exit code; -1 where it isn't there, or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAKE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return -1
    return done.returncode


@dataclass(frozen=True)
class DiskView:
    """Where the kernel says what disks there are; elsewhere in tests.

    `run` runs a command and returns its exit code.
    """

    sys: Path = Path("/sys/block")
    dev: Path = Path("/dev")
    mounts: Path = Path("/proc/self/mountinfo")
    uid_map: Path = Path("/proc/self/uid_map")
    dlami: Path = DLAMI
    mounted: Path = MOUNTED
    run: Callable[[Sequence[str]], int] = _run

    def disks(self) -> list[Path]:
        """Return the disks of the instance store, as folders of /sys/block."""
        return sorted(disk for disk in self.sys.glob("nvme*") if _model(disk) == MODEL)

    def mounts_of(self, disk: Path) -> list[Path]:
        """Return where a disk is mounted, or a part of it, or a volume that it is a part of."""
        numbers = {(device / "dev").read_text().strip() for device in _with_parts(disk)}
        places = []
        for line in self.mounts.read_text().splitlines():
            words = line.split()
            if len(words) > 4 and words[2] in numbers:
                places.append(Path(words[4].replace("\\040", " ")))
        return places


def _model(disk: Path) -> str:
    try:
        return (disk / "device" / "model").read_text().strip()
    except OSError:
        return ""


def _with_parts(disk: Path) -> Iterator[Path]:
    """Yield a disk, its partitions, and the volumes that contain one of them."""
    for device in (disk, *disk.glob(f"{disk.name}p*")):
        yield device
        yield from (device / "holders").glob("*")


def mounted_store(machine: DiskView | None = None) -> Path | None:
    """Return where the instance store is mounted, so that this process may write there."""
    machine = machine or DiskView()
    try:
        places = [place for disk in machine.disks() for place in machine.mounts_of(disk)]
    except OSError:
        return None
    free = [place for place in places if os.access(place, os.W_OK | os.X_OK)]
    return max(free, key=lambda place: shutil.disk_usage(place).free, default=None)


def prepared_store(machine: DiskView | None = None) -> Path | None:
    """Return where the instance store is mounted; an unused disk is mounted by us.

    For a machine that has just been rented, as its root: a disk is formatted only where it is of
    the instance store and has no partition, no volume and no file system. Where an image mounts
    them itself that is waited for. None where there is no such disk, or it can't be had.
    """
    machine = machine or DiskView()
    store = mounted_store(machine)
    if store is not None or not machine.disks():
        return store
    if machine.dlami.parent.is_dir():
        give_up = time.monotonic() + _DLAMI_SECONDS
        while store is None and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
            store = mounted_store(machine)
        return store
    if os.geteuid() != 0 or " ".join(machine.uid_map.read_text().split()) != _WHOLE:
        return None
    return next((place for disk in machine.disks() if (place := _mount(machine, disk))), None)


def _mount(machine: DiskView, disk: Path) -> Path | None:
    """Format a disk with nothing on it, and mount it; None where that can't be."""
    device = str(machine.dev / disk.name)
    if len(list(_with_parts(disk))) > 1 or machine.mounts_of(disk):
        return None
    if machine.run(["blkid", "--probe", device]) != _NOTHING_FOUND:
        return None
    # No journal and no discard: nothing of it outlives the instance, and seconds count.
    lazily = "nodiscard,lazy_itable_init=1"
    if machine.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-E", lazily, device]):
        return None
    machine.mounted.mkdir(mode=0o700, parents=True, exist_ok=True)
    if machine.run(["mount", "-o", "noatime", device, str(machine.mounted)]):
        return None
    return machine.mounted

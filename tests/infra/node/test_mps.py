"""MPS with stand-ins for NVIDIA's programs: a daemon for each GPU, checked, restarted, ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudtune.infra.node.gpus import Gpu, gpus
from cloudtune.infra.node.mps import MpsDaemons
from cloudtune.infra.node.mps_daemon import LONGEST_FOLDER
from cloudtune.infra.processes import is_running
from tests.infra.mps_stand_in import CLIENT, write_control, write_smi

A10G, B10G = Gpu(0, "GPU-aaaa", "NVIDIA A10G", 24000), Gpu(1, "GPU-bbbb", "NVIDIA A10G", 24000)
PATIENCE = 4.0  # a stand-in is a Python of its own: on loaded cores it takes more than one


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    write_control(tmp_path / "bin", tmp_path / "commands")
    return Machine(tmp_path)


class Machine:
    """Where the stand-ins are and what they were sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"

    @property
    def commands(self) -> list[str]:
        """What the control was sent: the name of the daemon's folder, and the command."""
        return (self.folder / "commands").read_text().splitlines()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, whatever pytest's are like."""
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def mps(machine: Machine, short: Path) -> Iterator[MpsDaemons]:
    """Daemons for two GPUs; none of their processes may be left."""
    daemons = MpsDaemons(short, (A10G, B10G), patience=PATIENCE)
    assert daemons.notice == ""
    started = [find_daemon(short, 0), find_daemon(short, 1)]
    yield daemons
    daemons.stop()
    assert not any(map(is_running, started))
    assert not short.exists()


def find_daemon(folder: Path, gpu: int) -> psutil.Process:
    return psutil.Process(int((folder / f"m{gpu}" / "nvidia-cuda-mps-control.pid").read_text()))


class Client:
    """A process that stands in for a training under MPS."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-IS", "-c", CLIENT, *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def pid(self) -> int:
        return self.process.pid


def await_server(folder: Path, gpu: int) -> psutil.Process:
    """Wait until the daemon has started a server for its client; return the server."""
    server = folder / f"m{gpu}" / "server"
    while not (server.exists() and server.read_text()):
        pass
    return psutil.Process(int(server.read_text()))


def test_gpus_are_read_from_nvidia_smi(machine: Machine) -> None:
    write_smi(machine.bin, "0, GPU-aaaa, NVIDIA A10G, 24000\n1, GPU-bbbb, NVIDIA A10G, 24000\n")
    assert gpus() == (A10G, B10G)
    assert gpus("1") == (B10G,)
    assert gpus("GPU-bb,0") == (B10G, A10G)
    assert gpus("1,7,0") == (B10G,)  # as CUDA does: nothing after one that doesn't exist
    assert gpus("GPU-") == ()  # it may be either
    assert gpus("") == ()
    # A memory that the driver doesn't know is zero.
    write_smi(machine.bin, "0, GPU-gb10, NVIDIA GB10, [N/A]\n")
    assert gpus() == (Gpu(0, "GPU-gb10", "NVIDIA GB10", 0),)


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    write_smi(machine.bin, "NVIDIA-SMI has failed because it couldn't communicate\n")
    assert gpus() == ()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ()


def test_packed_client_gets_its_share(mps: MpsDaemons, short: Path) -> None:
    third = mps.environment(1, 1 / 3)
    assert third == {
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb",
        "CUDA_MPS_PIPE_DIRECTORY": str(short / "m1"),
        "CUDA_MPS_LOG_DIRECTORY": str(short / "m1" / "log"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8000MB",
    }
    assert mps.environment(0, 0.29)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "29"
    assert mps.environment(0, 0.001)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"


def test_each_daemon_sees_its_own_gpu(mps: MpsDaemons, short: Path) -> None:
    assert (short / "m0" / "visible").read_text() == "GPU-aaaa"
    assert (short / "m1" / "visible").read_text() == "GPU-bbbb"


def test_a_client_is_taken_off_the_gpu(mps: MpsDaemons, machine: Machine, short: Path) -> None:
    with Client(mps.environment(1, 0.5)) as client:
        server = await_server(short, 1)
        assert mps.release(client.pid)
        assert f"m1 terminate_client {server.pid} {client.pid}" in machine.commands
    with subprocess.Popen(["/bin/sleep", "600"]) as other:
        assert not mps.release(other.pid), "it is no client"
        other.kill()


def test_a_faulted_server_costs_its_own_gpu_alone(mps: MpsDaemons, short: Path) -> None:
    before = [find_daemon(short, 0), find_daemon(short, 1)]
    with Client(mps.environment(0, 0.5)), Client(mps.environment(1, 0.5)):
        servers = [await_server(short, 0), await_server(short, 1)]
        (short / "m1" / "fault").touch()
        assert [mps.has_fault(0), mps.has_fault(1)] == [False, True]
        assert mps.check() == [1]
        assert [is_running(item) for item in before] == [True, False]
        assert [is_running(item) for item in servers] == [True, False]
    assert mps.check() == []
    assert mps.environment(1, 0.5)["CUDA_MPS_PIPE_DIRECTORY"] == str(short / "m1")


def test_dead_mps_daemon_is_replaced(mps: MpsDaemons, short: Path) -> None:
    with Client(mps.environment(0, 0.5)):
        server = await_server(short, 0)
        assert mps.check() == []
        find_daemon(short, 0).kill()
        assert mps.check() == [0]
        assert not is_running(server)
        assert is_running(find_daemon(short, 0))


def test_hanging_mps_daemon_is_killed(mps: MpsDaemons, short: Path) -> None:
    before = find_daemon(short, 0)
    (short / "m0" / "hang").touch()
    assert mps.check() == [0]
    assert not is_running(before)
    assert mps.check() == []


def test_a_daemon_that_does_not_come_back(mps: MpsDaemons, machine: Machine, short: Path) -> None:
    write_control(machine.bin, machine.folder / "commands", broken=True)
    (short / "m1" / "fault").touch()
    with Client(mps.environment(1, 0.5)):
        await_server(short, 1)
        assert mps.check() == [1]
    assert mps.environment(1, 0.5) == {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}
    assert "CUDA_MPS_PIPE_DIRECTORY" in mps.environment(0, 0.5)
    assert "GPU 1" in mps.notice
    assert "time-slicing" in mps.notice


def test_leftover_mps_daemons_are_replaced(mps: MpsDaemons, short: Path) -> None:
    before = find_daemon(short, 0)
    again = MpsDaemons(short, (A10G,), patience=PATIENCE)
    assert not is_running(before)
    assert is_running(find_daemon(short, 0))
    again.stop()


def test_reused_pid_is_spared(machine: Machine, short: Path) -> None:
    (short / "m0").mkdir()
    with subprocess.Popen(["/bin/sleep", "600"]) as stranger:
        (short / "m0" / "nvidia-cuda-mps-control.pid").write_text(str(stranger.pid))
        daemons = MpsDaemons(short, (A10G,), patience=PATIENCE)
        assert stranger.poll() is None
        stranger.kill()
    daemons.stop()


def test_time_slicing_is_noticed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    daemons = MpsDaemons(short, (A10G,))
    assert daemons.environment(0, 0.5) == {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}
    assert "nvidia-cuda-mps-control is not installed" in daemons.notice
    assert "time-slicing" in daemons.notice
    assert daemons.check() == []
    assert MpsDaemons(short, ()).notice == "no NVIDIA GPU: packed trials share CPU cores"


def test_a_control_that_fails_is_reported_of(machine: Machine, short: Path) -> None:
    write_control(machine.bin, machine.folder / "commands", broken=True)
    daemons = MpsDaemons(short, (A10G,), patience=PATIENCE)
    assert "MPS can't run on GPU 0" in daemons.notice
    assert daemons.environment(0, 0.5) == {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}


def test_long_mps_folder_is_unused(machine: Machine, tmp_path: Path) -> None:
    daemons = MpsDaemons(tmp_path / ("x" * LONGEST_FOLDER), (A10G,))
    assert "too long" in daemons.notice


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="this machine has no NVIDIA GPU")
@pytest.mark.skipif(not shutil.which("nvidia-cuda-mps-control"), reason="MPS is not installed")
def test_processes_share_a_real_gpu(short: Path) -> None:
    code = "import torch; x = torch.ones(8, device='cuda'); print(int(x.sum())); input()"
    daemons = MpsDaemons(short, gpus()[:1])
    assert daemons.notice == ""
    environment = {**os.environ, **daemons.environment(0, 0.5)}
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "8\n"
        assert daemons.check() == []
        assert all(daemons.release(client.pid) for client in clients)
    finally:
        for client in clients:
            client.kill()
            client.communicate()
        daemons.stop()

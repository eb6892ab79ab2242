"""A real Slurm cluster on this machine: munge, a controller and nodes of a user's own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_CONFIG = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SchedulerParameters=bf_interval=1,sched_interval=2
KillWait=2
InactiveLimit=0
MailProg=/bin/true
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2
NodeName=g1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:tesla:2
PartitionName=cpu Nodes=n[1-{nodes}] Default=YES PriorityTier=1 GraceTime=20
PartitionName=gpu Nodes=g1 MaxTime=0-02:00:00
PartitionName=urgent Nodes=n[1-{nodes}] PriorityTier=10 PreemptMode=OFF
"""


@dataclass
class SlurmCluster:
    """The cluster, and what a command needs to find it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "SLURM_TIME_FORMAT": "%s"}

    def ask(self, *command: str) -> str:
        """Return what a command of Slurm prints."""
        return subprocess.run(
            command,
            env={**os.environ, **self.environment},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def jobs(self, states: str = "all") -> list[list[str]]:
        """Return number, name, state, begin and end of jobs."""
        said = self.ask("squeue", "--noheader", f"--states={states}", "--format=%i|%j|%T|%S|%e")
        return [line.split("|") for line in said.splitlines()]

    def submit(self, partition: str, command: str, *options: str) -> str:
        """Submit somebody's job; returns its number."""
        answer = self.ask(
            *("sbatch", "--parsable", f"--partition={partition}", "--output=/dev/null"),
            *(*options, "--wrap", command),
        )
        return answer.strip()


@contextmanager
def slurm_cluster(folder: Path, *, nodes: int) -> Iterator[SlurmCluster]:
    """Start a cluster with CPU nodes, and one of two GPUs that only Slurm believes in.

    Skips the test where Slurm isn't installed.
    """
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"no Slurm here: {', '.join(missing) or 'only root starts its daemons'} "
            "(Debian: slurmctld, slurmd, slurm-client and munge)"
        )
    cluster = SlurmCluster(folder)
    started: list[subprocess.Popen[bytes]] = []
    _configure(folder, nodes)
    commands = [
        [
            *("munged", "--foreground", "--force", f"--key-file={folder}/munge/key"),
            *(f"--socket={folder}/munge/socket", f"--pid-file={folder}/munge/pid"),
            *(f"--log-file={folder}/munge/log", f"--seed-file={folder}/munge/seed"),
        ],
        ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"],
        *(
            ["slurmd", "-D", "-N", name, "-f", f"{folder}/slurm.conf"]
            for name in ("g1", *(f"n{number + 1}" for number in range(nodes)))
        ),
    ]
    try:
        for command in commands:
            with (folder / "daemons.log").open("ab") as log:
                started.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                    )
                )
        _wait_until_up(cluster, nodes + 1)
        yield cluster
        cluster.ask("scancel", "--quiet", "--user=root")
        _wait_for_no_job(cluster)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _configure(folder: Path, nodes: int) -> None:
    for name in ("munge", "state", "g1", *(f"n{number + 1}" for number in range(nodes))):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    first = _free_ports(nodes + 2)
    config = _CONFIG.format(
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        nodes=nodes,
        ports=(first, first + 1),
        first=first + 2,
        last=first + 1 + nodes,
    )
    (folder / "slurm.conf").write_text(config)
    for number in range(2):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName=g1 Name=gpu Type=tesla File={folder}/gpu[0-1]\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")


def _free_ports(count: int) -> int:
    """Return the first of so many ports in a row that are free now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = int(probe.getsockname()[1])
        if first + count < 65536 and all(_is_free(first + more) for more in range(count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _wait_until_up(cluster: SlurmCluster, count: int) -> None:
    give_up = time.monotonic() + 60
    said = ""
    while time.monotonic() < give_up:
        try:
            said = cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %T")
        except subprocess.CalledProcessError as error:
            said = str(error.stderr)
        if len({line for line in said.splitlines() if line.endswith(" idle")}) == count:
            return
        time.sleep(0.2)
    logs = "\n".join(log.read_text()[-1500:] for log in cluster.folder.glob("*.log"))
    raise AssertionError(f"Slurm doesn't start: {said}\n{logs}")


def _wait_for_no_job(cluster: SlurmCluster) -> None:
    give_up = time.monotonic() + 60
    while cluster.jobs("running,completing,pending"):
        assert time.monotonic() < give_up, cluster.jobs()
        time.sleep(0.2)

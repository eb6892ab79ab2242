"""A real Slurm cluster on this machine: munge, a controller and nodes of a user's own."""

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "sacct", "mariadbd", "mariadb-install-db")
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
_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[0]}
AccountingStoragePass={folder}/munge/socket
AccountingStorageEnforce=limits
MinJobAge=10
"""
_ACCOUNTING_DAEMON = """\
DbdHost=localhost
DbdPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[1]}
StorageUser=root
"""


@dataclass
class SlurmCluster:
    """The cluster, its daemons by name, and what a command needs to find it."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "SLURM_TIME_FORMAT": "%s"}

    def ask(self, *command: str) -> str:
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

    def bill(self) -> dict[str, tuple[float, float]]:
        """Return begin and end of the jobs that have run, by their numbers, as sacct has them."""
        fields = "--format=JobIDRaw,Start,End"
        said = self.ask(
            "sacct", "-X", "--noheader", "--parsable2", "--starttime=now-1hours", fields
        )
        rows = [line.split("|") for line in said.splitlines()]
        ran = [row for row in rows if row[1].isdecimal() and row[2].isdecimal()]
        return {job: (float(begin), float(end)) for job, begin, end in ran}

    def submit(self, partition: str, command: str, *options: str) -> str:
        answer = self.ask(
            *("sbatch", "--parsable", f"--partition={partition}", "--output=/dev/null"),
            *(*options, "--wrap", command),
        )
        return answer.strip()

    def start(self, *command: str) -> None:
        """Start a daemon, which is called by its program or the node it is of."""
        name = command[command.index("-N") + 1] if "-N" in command else command[0]
        with (self.folder / "daemons.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_controller(self) -> None:
        self.start("slurmctld", "-D")

    def stop(self, name: str) -> None:
        process = self.daemons[name]
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def slurm_cluster(folder: Path, *, nodes: int, accounting: bool = False) -> Iterator[SlurmCluster]:
    """Start a cluster with CPU nodes, and one of two GPUs that only Slurm believes in.

    With `accounting` it has a slurmdbd, and forgets jobs ten seconds after their end. Skips the
    test where Slurm, or what that needs, isn't installed.
    """
    programs = (*_PROGRAMS, *(_ACCOUNTING_PROGRAMS if accounting else ()))
    missing = [name for name in programs if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"no Slurm here: {', '.join(missing) or 'only root starts its daemons'} "
            "(Debian: slurmctld, slurmd, slurm-client, munge, slurmdbd and mariadb-server)"
        )
    cluster = SlurmCluster(folder)
    ports = _free_ports(nodes + 4)
    _configure(folder, nodes, ports)
    try:
        cluster.start(
            *("munged", "--foreground", "--force", f"--key-file={folder}/munge/key"),
            *(f"--socket={folder}/munge/socket", f"--pid-file={folder}/munge/pid"),
            *(f"--log-file={folder}/munge/log", f"--seed-file={folder}/munge/seed"),
        )
        if accounting:
            _start_accounting(cluster, ports[-2:])
        cluster.start_controller()
        for name in ("g1", *(f"n{number + 1}" for number in range(nodes))):
            cluster.start("slurmd", "-D", "-N", name)
        _wait(cluster, lambda: _is_up(cluster, nodes + 1))
        yield cluster
        cluster.ask("scancel", "--quiet", "--user=root")
        _wait(cluster, lambda: not cluster.jobs("running,completing,pending"))
    finally:
        for name in reversed(cluster.daemons):
            cluster.stop(name)


def _start_accounting(cluster: SlurmCluster, ports: Sequence[int]) -> None:
    """Start a database and slurmdbd; this user may submit there."""
    folder = cluster.folder
    database = ("--no-defaults", "--user=root", f"--datadir={folder}/database")
    normal = "--auth-root-authentication-method=normal"
    cluster.ask("mariadb-install-db", *database, normal, "--skip-test-db")
    cluster.start(
        *("mariadbd", *database, f"--socket={folder}/database.socket", f"--port={ports[1]}"),
        *("--bind-address=127.0.0.1", f"--pid-file={folder}/database.pid"),
    )
    _wait(cluster, lambda: not _is_free(ports[1]))
    daemon = folder / "slurmdbd.conf"
    daemon.write_text(_ACCOUNTING_DAEMON.format(folder=folder, ports=ports))
    daemon.chmod(0o600)
    with (folder / "slurm.conf").open("a") as config:
        config.write(_ACCOUNTING.format(folder=folder, ports=ports))
    cluster.start("slurmdbd", "-D")
    _wait(cluster, lambda: not _is_free(ports[0]))
    for words in ("cluster lab", "account lab cluster=lab", "user root account=lab"):
        cluster.ask("sacctmgr", "--immediate", "add", *words.split())


def _configure(folder: Path, nodes: int, ports: Sequence[int]) -> None:
    for name in ("munge", "state", "g1", *(f"n{number + 1}" for number in range(nodes))):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = _CONFIG.format(
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        nodes=nodes,
        ports=ports,
        first=ports[2],
        last=ports[1 + nodes],
    )
    (folder / "slurm.conf").write_text(config)
    for number in range(2):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName=g1 Name=gpu Type=tesla File={folder}/gpu[0-1]\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")


def _free_ports(count: int) -> range:
    """Return ports in a row that are free now, below those of outgoing connections."""
    while True:
        first = random.randrange(10_000, 32_000)
        ports = range(first, first + count)
        if all(map(_is_free, ports)):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _is_up(cluster: SlurmCluster, count: int) -> bool:
    try:
        said = cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %T")
    except subprocess.CalledProcessError:
        return False
    return len({line for line in said.splitlines() if line.endswith(" idle")}) == count


def _wait(cluster: SlurmCluster, until: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not until():
        if time.monotonic() > give_up:
            logs = "\n".join(log.read_text()[-1500:] for log in cluster.folder.glob("*.log"))
            raise AssertionError(f"Slurm doesn't start or end:\n{logs}")
        time.sleep(0.2)

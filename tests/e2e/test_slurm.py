"""A whole run on a real Slurm cluster, with other people's jobs on it."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import Bench, follow, wait_for
from tests.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.walk("it starts a real Slurm cluster")]


@pytest.fixture(scope="module")
def lab(leaves_nothing: None) -> Iterator[SlurmCluster]:
    """A cluster of three CPU nodes."""
    with (
        tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder,
        slurm_cluster(Path(folder), nodes=3) as started,
    ):
        yield started


def ready(bench: Bench, lab: SlurmCluster, trouble: str) -> Path:
    """Write an experiment for the cluster, and a profile of its nodes; returns its path."""
    bench.environment |= lab.environment
    path = bench.experiment(trouble, trials=6, first=2, last=8)
    text = path.read_text().partition("limits:")[0]
    text += "trial: {try_first: false}\nlimits: {deadline: 5m, gpu_hours: 0.5}\n"
    text += "strategy: {name: asha, fleet: constant:3}\n"
    text += "cloud: {provider: slurm, instances: [cpu], slots: 2}\n"
    path.write_text(text)
    bench.profile_on("cpu", {1.0: 0.5, 2.0: 0.3}, boot=8.0)
    return path


def ours(lab: SlurmCluster, state: str) -> list[str]:
    """Return the numbers of cloudtune's jobs in a state."""
    jobs = lab.jobs()
    return [job[0] for job in jobs if job[1].startswith("cloudtune-") and job[2] == state]


def test_a_run_among_other_jobs_is_preempted_killed_and_resumed(
    bench: Bench, lab: SlurmCluster
) -> None:
    waits = "while epoch == 8 and not os.path.exists({!r}):\n            time.sleep(0.1)"
    trouble = "import time; time.sleep(0.3)\n        " + waits.format(str(bench.folder / "go"))
    path = ready(bench, lab, trouble)
    other = lab.submit("cpu", "sleep 300", "--cpus-per-task=2")
    wait_for(lambda: other in [job[0] for job in lab.jobs("running")])

    run = bench.start("run", path)
    follow(run, bench, "NodeJoined", 2)
    assert len(ours(lab, "PENDING")) == 1, "the third waits: that is no launch"
    assert bench.recorded('"InstanceLaunched"') == 2
    follow(run, bench, "EpochDone")
    os.kill(run.pid, signal.SIGKILL)  # its jobs go on, and the next controller finds them
    run.communicate()
    assert "slurm-" in bench.here("status").out

    lab.ask("scancel", other)
    run = bench.start("resume")
    follow(run, bench, "NodeJoined", 3)
    lab.submit("urgent", "sleep 1", "--cpus-per-task=2")
    follow(run, bench, "InterruptionNotice")
    follow(run, bench, "InstanceGone")
    (bench.folder / "go").touch()
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, out + err
    assert "0 instances left" in out
    assert not ours(lab, "RUNNING")
    assert not ours(lab, "PENDING")
    began = time.monotonic()
    assert bench.here("gc").code == 0
    assert time.monotonic() - began < 60

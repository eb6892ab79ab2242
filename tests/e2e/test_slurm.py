"""Whole runs on a real Slurm cluster: what goes wrong there, and what it may cost; sacct's word."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudtune.infra.provider import INTENT_TAG, RUN_TAG, Endpoint
from cloudtune.infra.slurm import calls
from cloudtune.infra.slurm.provider import SLURM
from tests.bench import Bench, follow, wait_for
from tests.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.walk("it starts a real Slurm cluster")]
DEADLINE = 240.0
GPU_HOURS = 0.3
SLOTS = 2


@pytest.fixture(scope="module")
def lab(leaves_nothing: None) -> Iterator[SlurmCluster]:
    """A cluster of three CPU nodes with accounting, where a QOS allows one job a user."""
    with (
        tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder,
        slurm_cluster(Path(folder), nodes=3, accounting=True) as started,
    ):
        for words in ("add qos tight MaxSubmitJobsPerUser=1", "modify user root set qos+=tight"):
            started.ask("sacctmgr", "--immediate", *words.split())
        yield started


def ready(bench: Bench, lab: SlurmCluster, cloud: str = "") -> Path:
    bench.environment |= lab.environment
    settings = f"provider: slurm, instances: [cpu], slots: {SLOTS}, avoid: 2s{cloud}"
    limits = f"{{deadline: {DEADLINE:.0f}s, gpu_hours: {GPU_HOURS}}}"
    return bench.shared(f"{{{settings}}}", "cpu", limits)


def ours(lab: SlurmCluster, states: str = "all") -> list[str]:
    """Return the numbers of cloudtune's jobs in these states that the controller knows."""
    return [job[0] for job in lab.jobs(states) if job[1].startswith("cloudtune-")]


def training(bench: Bench, lab: SlurmCluster) -> tuple[subprocess.Popen[str], str]:
    """Start a run; returns it once two nodes train, and the number of one's job."""
    run = bench.start("run", ready(bench, lab))
    follow(run, bench, "NodeJoined", 2)
    follow(run, bench, "EpochDone")
    return run, ours(lab, "running")[0]


def never_starts(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    lab.submit("cpu", "sleep 600", "--nodes=2", "--ntasks-per-node=2")
    wait_for(lambda: bool(lab.jobs("running")))
    run = bench.start("run", ready(bench, lab))
    follow(run, bench, "EpochDone")
    assert len(ours(lab, "pending")) == bench.recorded('"InstanceLaunched"') == 1
    wait_for(lambda: bench.recorded("Slurm's job is PENDING: ") >= 1)
    return run


def cancel(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    run, job = training(bench, lab)
    lab.ask("scancel", job)
    follow(run, bench, "NodeJoined", 3)
    return run


def preempt(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    run, _ = training(bench, lab)
    lab.submit("urgent", "sleep 1", "--nodes=3", "--ntasks-per-node=2")
    follow(run, bench, "InterruptionNotice", 2)
    follow(run, bench, "InstanceGone", 2)
    return run


def node_down(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    run, job = training(bench, lab)
    node = lab.ask("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    lab.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    follow(run, bench, "NodeJoined", 3)
    return run


def busy_account(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    """A QOS takes no second job; and the nodes' Python is one that is named."""
    path = ready(bench, lab, ", request: {qos: tight}")
    python = bench.folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    path.write_text(f"{path.read_text()}setup: {{python_path: {python}}}\n")
    run = bench.start("run", path)
    follow(run, bench, "LaunchFailed")
    follow(run, bench, "EpochDone")
    assert bench.recorded("LimitReached")
    return run


def silent(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    run, _ = training(bench, lab)
    lab.stop("slurmctld")
    time.sleep(20.0)
    assert run.poll() is None
    lab.start_controller()
    return run


def kill(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    """A job ends, and is forgotten, while no controller of ours looks."""
    run, job = training(bench, lab)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    assert f"slurm-{job}" in bench.here("status").out
    lab.ask("scancel", job)
    wait_for(lambda: job not in ours(lab))
    run = bench.start("resume")
    follow(run, bench, "NodeJoined", 3)
    return run


def enter(bench: Bench, lab: SlurmCluster) -> subprocess.Popen[str]:
    """A person runs a command in a job beside its trials, and opens a terminal there."""
    run, job = training(bench, lab)
    [name] = (path.name for path in (bench.home / "runs").iterdir())
    words = ("sh", "-c", "ls; echo job $SLURM_JOB_ID; exit 3")
    seen = bench("exec", name, f"slurm-{job}", "--", *words)
    assert (seen.code, seen.out.split("\n")[-2]) == (3, f"job {job}"), seen.err
    assert "train.py" in seen.out
    assert bench("exec", name, "t00", "--", "true").code == 0
    assert "in 42" in bench.type_into("shell", name, f"slurm-{job}")
    return run


FAULTS = (enter, never_starts, cancel, preempt, node_down, busy_account, silent, kill)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda it: it.__name__)
def test_limits_and_winner_hold_and_nothing_is_left(
    bench: Bench, lab: SlurmCluster, fault: Callable[[Bench, SlurmCluster], subprocess.Popen[str]]
) -> None:
    before = lab.bill()
    run = fault(bench, lab)
    (bench.folder / "go").touch()
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, out + err
    assert "0 instances left" in out
    assert not ours(lab, "pending,running")
    lab.ask("scancel", "--user=root")
    wait_for(lambda: not lab.jobs("pending,running,completing"))

    report = bench.last_report()
    bill = {f"slurm-{job}": times for job, times in lab.bill().items() if job not in before}
    ids = {it["intent"]: it["id"] for it in report["instances"]}
    gpu_seconds = 0.0
    for span in report["accounting"]["instances"]:
        begin, end = bill.get(ids[span["intent"]], (0.0, 0.0))  # one that never began
        gpu_seconds += SLOTS * (end - begin)
        assert span["end"] - span["begin"] == pytest.approx(end - begin, abs=2.5)
    bench.judge(fault.__name__, DEADLINE, GPU_HOURS, gpu_seconds)


def test_missing_python_ends_the_run(bench: Bench, lab: SlurmCluster) -> None:
    path = ready(bench, lab)
    path.write_text(f"{path.read_text()}setup: {{python_path: /no/such/python}}\n")
    done = bench("run", path)
    assert done.code == 1, done.out
    assert "/no/such/python has no cloudtune, or isn't there (setup.python_path)" in done.err
    assert not ours(lab, "pending,running")


def test_forgotten_slurm_job_is_billed(lab: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(calls, "BILL_SECONDS", 0.0)
    watcher = SLURM.calls(Endpoint("lab"))
    assert watcher.ours("short") == []
    comment = {"token": "t", "kind": "cpu", "logs": "/", RUN_TAG: "short", INTENT_TAG: "i000"}
    job = lab.submit("cpu", "exit 1", f"--comment={json.dumps(comment)}")
    wait_for(lambda: job not in [row[0] for row in lab.jobs()])
    (found,) = watcher.ours("short")
    assert found.id == f"slurm-{job}"
    assert not found.billing

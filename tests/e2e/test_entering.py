"""`exec` and `shell`: a person's command among the trials of a live run."""

import getpass
import re
import subprocess
import sys

import pytest

from tests.bench import PLAIN, Bench, follow
from tests.builders.experiments import write_experiment

LOCAL = "{provider: local, slots: 1}"
EMULATED = "{provider: emulated, instances: [g7.12xlarge], max_instances: 1}"
EXPERIMENT = """
name: small
train: train.py:train
metric: {{name: loss, mode: min}}
search: {{lr: {{grid: [0.1, 0.2]}}}}
strategy: asha
trials: 2
epochs: {{min: 2, max: 2}}
trial: {{try_first: false}}
limits: {{deadline: 12m, budget: {budget}}}
cloud: {cloud}
"""


def begin(bench: Bench, cloud: str) -> subprocess.Popen[str]:
    """Start a run whose last epochs wait for the file `go`; returns it once a trial trains."""
    go = str(bench.folder / "go")
    path = write_experiment(
        bench.folder,
        EXPERIMENT.format(cloud=cloud, budget="" if cloud == LOCAL else "$2"),
        PLAIN.format(last=2, go=go),
    )
    run = bench.start("run", path, "--no-pace", "--yes")
    follow(run, bench, "EpochDone")
    return run


@pytest.mark.cluster
@pytest.mark.parametrize("cloud", [LOCAL, EMULATED])
def test_a_command_finds_what_trials_find(bench: Bench, cloud: str) -> None:
    running = begin(bench, cloud)
    [run] = (path.name for path in (bench.home / "runs").iterdir())
    seen = bench("exec", run, "--", "ls").succeeded("train.py")
    python = bench("exec", run, "--", "python", "-c", "import ray, sys; print(sys.prefix)")
    assert python.succeeded().out.strip() == sys.prefix
    [instance] = bench.here("status", "-o", "json").json["instances"]
    by_trial = bench("exec", run, "t00", "--", "sh", "-c", "echo $CLOUDTUNE_MACHINE; exit 7")
    assert (by_trial.code, by_trial.out.strip()) == (7, instance["id"])
    assert bench("exec", run, instance["id"], "--", "ls").out == seen.out
    shown = bench.type_into("shell", run)
    assert "in 42" in shown
    assert "machines" not in shown
    bench("exec", run, "t99", "--", "ls").refused("t99 is no instance and no trial of")
    bench("exec", run, "ls").refused("write the command after two dashes")
    (bench.folder / "go").touch()
    running.communicate(timeout=120)
    assert running.returncode == 0
    bench("exec", run, "--", "ls").refused(f"run {run} has no instance now")
    visits = bench.last_report()["visits"]
    assert {it["instance"] for it in visits} == {instance["id"]}
    assert [it["exit_code"] for it in visits] == [0, 0, 7, 0, 0]
    assert [it["command"] for it in visits][::4] == [["ls"], []]
    user = getpass.getuser()
    bench.here("report").succeeded(f"Entered by {user} on {instance['id']}: ls (exit code 0)")


FAILING = """
import cloudtune

def train(config):
    if config["lr"] > 0.15:
        open("left-behind", "w").write("what went wrong")
        raise ValueError("no such rate")
    for epoch in cloudtune.epochs():
        cloudtune.report({"loss": config["lr"] / epoch})
"""


@pytest.mark.cluster
def test_failed_trial_instance_waits(bench: Bench) -> None:
    path = bench.folder / "experiment.yaml"
    (bench.folder / "train.py").write_text(FAILING)
    path.write_text(EXPERIMENT.format(cloud=EMULATED, budget="$9"))
    running = bench.start("run", path, "--no-pace", "--yes", "--keep-failed", "8m")
    follow(running, bench, "KeepInstance")
    follow(running, bench, "EpochDone", 2)
    [folder] = (bench.home / "runs").iterdir()
    run = folder.name
    text = (folder / "ledger.jsonl").read_text()
    failed = re.search(r'"TrialFailed".*?"session": ?"(t\d+)\.', text)
    assert failed is not None
    looked = bench("exec", run, failed[1], "--", "cat", "left-behind")
    assert looked.succeeded().out == "what went wrong"
    assert len(bench.alive()) == 1
    bench("stop", run).succeeded()
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 0, "it had what it wanted before"
    assert "kept until" in out
    assert not bench.alive()
    report = bench.here("report", run, "-o", "json").json
    assert report["accounting"]["categories"]["kept"]["dollars"] > 0


def test_only_a_run_of_this_machine_is_entered(bench: Bench) -> None:
    bench.here("exec", "none", "--", "ls").refused("no run none in")
    bench.here("shell", "none").refused("no run none in")

"""Trouble in a run, through the command line: it ends as documented, and nothing is left."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cloudtune.train.checkpoint import Checkpoint
from tests.bench import Bench, wait_for

pytestmark = pytest.mark.cluster

TROUBLE = """import time; time.sleep(0.3)
        name = cloudtune.get_context().get_trial_id()
        if name == 't01' and epoch == 3: raise ValueError('\\u00fc\\udcff')
        if name == 't02' and epoch == 2: value = math.nan
        if name == 't03': return
        if name == 't04':
            cloudtune.report({{'accuracy': 1.0}})
            continue
        while epoch == 8 and not os.path.exists({go!r}): time.sleep(0.1)"""


def test_run_survives_failures_hangup_and_gc(bench: Bench) -> None:
    """The reader of its output goes, then its terminal; the instances of a killed run end alone."""
    go = bench.folder / "go"
    path = bench.ready(TROUBLE.format(go=str(go)), trials=6, first=4, last=8)
    bench.environment["PYTHONIOENCODING"] = "ascii"
    doomed = bench.start("run", longer(path), "--deadline", "20m")
    wait_for(lambda: bool(bench.alive()))
    first, *_ = bench.alive()
    dead = first["tags"]["cloudtune:run"]
    process = bench.start("run", path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    wait_for(lambda: len(runs_alive(bench)) > 1)
    (other,) = runs_alive(bench) - {dead}
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.communicate()
    process.send_signal(signal.SIGHUP)

    bench("gc").succeeded()
    assert not bench.alive(dead)
    assert bench.alive(other)
    assert not (bench.home / "runs" / dead / "head.json").exists()

    go.touch()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert not list(bench.home.glob("runs/*/screen.log"))
    report = bench.last_report()
    trials = {trial["trial"]: trial for trial in report["trials"]}
    assert trials["t01"]["status"] == "failed"
    assert trials["t01"]["epoch"] == 2
    assert trials["t01"]["error"] == "ValueError: \u00fc\\udcff"
    assert "train.py" in trials["t01"]["traceback"]
    assert "in train" in trials["t01"]["traceback"]
    assert trials["t02"]["error"] == "loss was nan at epoch 2"
    assert "returned without ever calling cloudtune.report()" in trials["t03"]["error"]
    assert "report() gave {accuracy}; the experiment's metric is 'loss'" in trials["t04"]["error"]
    assert {trials["t00"]["epoch"], trials["t05"]["epoch"]} == {8}
    assert report["ended"] == "done"
    assert report["best"]["trial"] in {"t00", "t05"}
    bench("report").succeeded("\\xfc\\udcff")


def runs_alive(bench: Bench) -> set[str]:
    """Return the runs that have an instance."""
    return {machine["tags"]["cloudtune:run"] for machine in bench.alive()}


def longer(path: Path) -> Path:
    """Write an experiment like this one of hundreds of epochs; returns its path."""
    text = re.sub("epochs: .*", "epochs: {min: 200, max: 400}", path.read_text())
    longer = path.with_name("longer.yaml")
    longer.write_text(text)
    return longer


@pytest.mark.walk("a run stands still until its leases have ended")
def test_run_that_stood_still_has_the_last_epoch_saved(bench: Bench) -> None:
    path = longer(bench.ready(trials=1))
    process = bench.start("run", path, "--strategy", "random", "--deadline", "80s")
    wait_for(lambda: bench.recorded('"EpochDone"') > 5, seconds=80)
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: not bench.alive(), seconds=120)
    saved = max(bench.home.glob("**/epoch-*/manifest.json")).parent.name
    assert bench.recorded(saved) == 0
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    assert f"epoch-{bench.last_report()['best']['epoch']:05d}" == saved


def test_leases_end_instances_without_ec2(bench: Bench) -> None:
    """And credentials that expire while all is given back cost no result."""
    path = bench.ready(trials=2)
    bench.refuse("TerminateInstances", "UnauthorizedOperation", times=None)
    process = bench.start("run", path)
    wait_for(lambda: bench.recorded('"Release"') > 0)
    # So often it is asked in some 20 s.
    bench.control.add({"action": "*", "code": "ExpiredToken", "times": 30})
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "0 instances left" in out
    assert bench.last_report()["best"]["epoch"] == 4
    assert bench.recorded("Client.InstanceInitiatedShutdown") == 1
    assert out.count("  gives i-") == 1, "gone before it is given back again"


# From epoch 3 on there is room for the checkpoints of two trials, after the rung at 4 for none.
FULL = """from cloudtune.train.calls import current_session
        store = current_session().store
        finish = type(store)._finish
        def finish_in_small(*saved):
            kept = {path.parts[-3] for path in Path(store.uri).glob('*/*/manifest.json')}
            if len(kept) > 2: raise OSError(28, 'No space left on device')
            return finish(store, *saved)
        def full(*_): raise OSError(28, 'No space left on device')
        if epoch == 3:
            store._finish = finish_in_small
        if epoch == 5:
            store._commit, store._patience._waits = full, ()
            type(store)._is_on_local_disk = False"""


def test_a_full_storage_takes_finished_trials_room(bench: Bench) -> None:
    path = bench.ready(FULL, trials=4, first=2, last=8)
    done = bench("run", path)
    assert done.code == 8, done.out + done.err
    assert done.err.count("is over, and its checkpoints are gone") == 2 + 1
    assert "epoch 3 is not saved" not in done.out
    assert "epoch 5 is not saved: " in done.out
    assert "No space left on device" in done.out
    assert "0 instances left" in done.out
    assert "error: the best model could not be saved to storage" in done.err
    report = bench.last_report()
    assert report["exit_code"] == 8
    assert report["ended"] == "done"
    assert report["best"]["epoch"] == 4
    assert report["best_lost"]["epoch"] == 8
    assert report["best_lost"]["value"] < report["best"]["value"]
    rescued = report["best_lost"]["rescued"]
    assert f"its files are kept on this machine: {rescued}" in done.out
    with Checkpoint.from_storage(rescued).as_directory() as folder:
        assert [path.name for path in Path(folder).iterdir()] == ["state.pt"]
    assert [path.name for path in Path(rescued).parent.iterdir()] == ["epoch-00008"]


TWICE = """
import atexit, sys
import cloudtune

atexit.register(print, "its own handler ran")
try:
    cloudtune.run(sys.argv[1], deadline="100s", force=True, progress=False)
except cloudtune.CloudtuneError as error:
    print("raised", error.exit_code, *str(error).split(), flush=True)
sys.stdin.readline()
again = cloudtune.run(sys.argv[2], trials=1, progress=False)
print("then", again.ended)
sys.exit(17)
"""


@pytest.mark.walk("three minutes until a head counts as dead")
def test_program_survives_a_dead_head(bench: Bench) -> None:
    """One of two instances is frozen; the other ends itself, as its cluster is gone."""
    path = bench.ready("import time; time.sleep(0.3)", trials=2, first=2, last=4)
    (bench.folder / "twice.py").write_text(TWICE)
    process = subprocess.Popen(
        [sys.executable, "twice.py", str(longer(path)), str(path)],
        cwd=bench.folder,
        env={**os.environ, **bench.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: bench.recorded('"NodeJoined"') == 2)
    frozen = bench.alive()[0]["id"]
    bench.refuse("TerminateInstances", "UnauthorizedOperation", times=None)
    bench.control.freeze(frozen)
    end_the_head(bench)
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said:  # seen once in some ten suites, within a second of the head's end
        bench.control.replace([])
        assert bench("gc").code == 0
        err = process.communicate()[1]
        pytest.xfail(f"Ray ended the program, exit code {process.returncode}: {err[-3000:]}")
    assert said.startswith("raised 7 ")
    assert "the run can't go on: " in said
    assert f"the cloud did not confirm the end of {frozen}; they may still bill" in said
    assert [instance["id"] for instance in bench.alive()] == [frozen]
    bench.control.replace([])
    assert bench("gc").code == 0
    out, err = process.communicate("\n", timeout=600)
    assert process.returncode == 17, out + err
    assert out == "then done\nits own handler ran\n"


def end_the_head(bench: Bench) -> None:
    (record,) = bench.home.glob("runs/*/head.json")
    leader = psutil.Process(json.loads(record.read_text())["pid"])
    (gcs,) = (child for child in leader.children(recursive=True) if child.name() == "gcs_server")
    os.kill(gcs.pid, signal.SIGKILL)

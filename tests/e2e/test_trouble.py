"""Trouble in a run, through the command line: it ends as documented, and nothing is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cloudtune.train.checkpoint import Checkpoint, CheckpointStore
from tests.bench import Bench, wait_for

pytestmark = pytest.mark.cluster


def test_all_trials_failing_shows_the_first_traceback(bench: Bench) -> None:
    trouble = (
        "name = cloudtune.get_context().get_trial_id()\n"
        "        if name == 't00': raise RuntimeError('no data here')\n"
        "        if name == 't01': return\n"
        "        if name == 't02': cloudtune.report({'accuracy': 1.0}); continue"
    )
    path = bench.ready(trouble, trials=3, first=2, last=4)
    done = bench("run", path, "--no-pace")
    assert done.code == 1, done.out + done.err
    assert "every trial failed; the first: t00: RuntimeError: no data here" in done.err
    assert "Traceback" in done.err
    assert "0 instances left (checked " in done.out
    told = bench.last_report()
    assert not told["paced"]
    errors = {trial["trial"]: trial["error"] for trial in told["trials"]}
    assert "returned without ever calling cloudtune.report()" in errors["t01"]
    assert "report() gave {accuracy}; the experiment's metric is 'loss'" in errors["t02"]


def test_a_crash_a_nan_and_a_terminal_that_goes_end_no_run(bench: Bench) -> None:
    """Two trials fail, one so that it can't be printed; the reader goes, then the terminal."""
    trouble = (
        "name = cloudtune.get_context().get_trial_id()\n"
        "        if name == 't01' and epoch == 3: raise ValueError('\\u00fc\\udcff')\n"
        "        if name == 't02' and epoch == 2: value = math.nan"
    )
    path = bench.ready(trouble, trials=4, first=4, last=8)
    bench.environment["PYTHONIOENCODING"] = "ascii"
    process = bench.start("run", path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    wait_for(lambda: bool(bench.alive()))
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert not list(bench.home.glob("runs/*/screen.log"))
    told = bench.last_report()
    trials = {trial["trial"]: trial for trial in told["trials"]}
    assert trials["t01"]["status"] == "failed"
    assert trials["t01"]["epoch"] == 2
    assert trials["t01"]["error"] == "ValueError: \u00fc\\udcff"
    assert "train.py" in trials["t01"]["traceback"]
    assert "in train" in trials["t01"]["traceback"]
    assert trials["t02"]["error"] == "loss was nan at epoch 2"
    assert {trials["t00"]["epoch"], trials["t03"]["epoch"]} == {8}
    assert told["ended"] == "done"
    assert told["best"]["trial"] in {"t00", "t03"}
    shown = bench("report")
    assert shown.code == 0, shown.err
    assert "\\xfc\\udcff" in shown.out


def test_a_run_measures_first_and_the_budget_stops_it_with_the_best_kept(bench: Bench) -> None:
    path = bench.experiment("__import__('time').sleep(0.4)", trials=4, first=200, last=400)
    done = bench("run", path, "--deadline", "10m", "--budget", "$0.24", "--force", timeout=300)
    assert done.code == 4, done.out + done.err
    assert "measuring it first" in done.out
    assert "epoch on 1 GPU" in done.out
    told = bench.last_report()
    assert told["ended"] == "budget"
    assert 0.1 < told["dollars"]["actual"] <= 0.24
    best = told["best"]["checkpoint"]
    store = CheckpointStore(str(Path(best).parents[1]))
    store.load(best, bench.folder / "best")
    assert (bench.folder / "best" / "state.pt").exists()
    again = bench.here("plan", path, "--deadline", "20m", "--budget", "$9")
    assert again.code == 0, "the profile is kept"


def test_a_dry_pool_is_asked_without_a_retry_storm(bench: Bench) -> None:
    path = bench.ready(trials=2)
    bench.refuse("RunInstances", "InsufficientInstanceCapacity")
    done = bench("run", path, "--deadline", "60s")
    assert done.code == 6, done.out + done.err
    calls = bench.last_report()["provider_calls"]
    asked = [call["intent"] for call in calls if call["what"] == "asking"]
    assert len(asked) == len(set(asked)), "each intent is asked for once"
    assert len(asked) >= 7, "where EC2 likes, and in us-east-1a to f by name"
    assert len(asked) <= 70, "with a pause after each round"


def test_gc_returns_a_killed_run_s_instances_alone(
    bench: Bench,
) -> None:
    path = bench.ready(trials=2, first=200, last=400)
    doomed = bench.start("run", path, "--deadline", "20m")
    wait_for(lambda: bool(bench.alive()))
    first, *_ = bench.alive()
    dead = first["tags"]["cloudtune:run"]
    spared = bench.start("run", path, "--deadline", "110s", "--force")
    wait_for(lambda: len(bench.alive()) > len(bench.alive(dead)))
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.communicate()
    other, *_ = [each for each in bench.alive() if each["tags"]["cloudtune:run"] != dead]

    done = bench("gc")
    assert done.code == 0, done.out + done.err
    assert not bench.alive(dead)
    assert other["id"] in {machine["id"] for machine in bench.alive()}
    assert not (bench.home / "runs" / dead / "head.json").exists()
    out, err = spared.communicate(timeout=150)
    assert spared.returncode == 5, out + err
    told = bench.last_report()
    assert told["ended"] == "deadline"
    assert told["fleet"][-1]["instances"] == 0
    assert told["fleet"][-1]["at"] <= 110
    assert told["best"]["checkpoint"]


def test_instances_end_themselves_though_ec2_may_not_end_them(bench: Bench) -> None:
    path = bench.ready(trials=2)
    bench.refuse("TerminateInstances", "UnauthorizedOperation", times=None)
    done = bench("run", path)
    assert done.code == 0, done.out + done.err
    assert "0 instances left" in done.out
    assert bench.recorded("Client.InstanceInitiatedShutdown") == 1
    assert done.out.count("  gives i-") == 1, "gone before it is given back again"


def test_credentials_that_expire_while_all_is_given_back_cost_no_result(bench: Bench) -> None:
    path = bench.ready(trials=2)
    process = bench.start("run", path)
    wait_for(lambda: bench.recorded('"Release"') > 0)
    bench.refuse("*", "ExpiredToken", times=30)  # so often it is asked in some 20 s
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, out + err
    assert "0 instances left" in out
    assert bench.last_report()["best"]["epoch"] == 4


FULL = (
    "if epoch == 3:\n"
    "            from cloudtune.train.calls import current_session\n"
    "            def full(*_): raise OSError(28, 'No space left on device')\n"
    "            store = current_session().store\n"
    "            store._commit, store._patience._waits = full, ()\n"
    "            type(store)._is_on_local_disk = False"
)


def test_a_full_storage_is_told_by_the_exit_code(bench: Bench) -> None:
    path = bench.ready(FULL, trials=2, first=2, last=4)
    done = bench("run", path)
    assert done.code == 8, done.out + done.err
    assert "epoch 3 is not saved: " in done.out
    assert "No space left on device" in done.out
    assert "0 instances left" in done.out
    assert "error: the best model could not be saved to storage" in done.err
    told = bench.last_report()
    assert told["exit_code"] == 8
    assert told["ended"] == "done"
    assert told["best"]["epoch"] == 2
    assert told["best_lost"]["epoch"] == 4
    assert told["best_lost"]["value"] < told["best"]["value"]
    rescued = told["best_lost"]["rescued"]
    assert f"its files are kept on this machine: {rescued}" in done.out
    with Checkpoint.from_storage(rescued).as_directory() as folder:
        assert [path.name for path in Path(folder).iterdir()] == ["state.pt"]
    assert [path.name for path in Path(rescued).parent.iterdir()] == ["epoch-00004"]


# From epoch 3 on there is room for the checkpoints of two trials.
SMALL = (
    "from cloudtune.train.calls import current_session\n"
    "        store = current_session().store\n"
    "        finish = type(store)._finish\n"
    "        def finish_in_small(manifest):\n"
    "            kept = {path.parts[-3] for path in Path(store.uri).glob('*/*/manifest.json')}\n"
    "            if len(kept) > 2: raise OSError(28, 'No space left on device')\n"
    "            return finish(store, manifest)\n"
    "        if epoch > 2: store._finish = finish_in_small"
)


def test_trials_that_are_over_make_room_in_a_full_storage(bench: Bench) -> None:
    path = bench.ready(SMALL, trials=4, first=2, last=4)
    done = bench("run", path)
    assert done.code == 0, done.out + done.err
    assert done.err.count("is over, and its checkpoints are gone") == 2
    assert "is not saved" not in done.out
    best = bench.last_report()["best"]
    assert best["epoch"] == 4
    assert CheckpointStore("any").is_intact(best["checkpoint"])


TWICE = """
import atexit, os, signal, sys, threading, time
import psutil
import cloudtune

def kill_the_head():
    while True:
        for process in psutil.Process().children(recursive=True):
            if process.name() == "gcs_server" and launched.wait():
                process.kill()
                return
        time.sleep(0.1)

launched = threading.Event()
atexit.register(print, "its own handler ran")
threading.Thread(target=kill_the_head, daemon=True).start()
try:
    cloudtune.run(sys.argv[1], on_event=lambda event, _: launched.set(), progress=False)
except cloudtune.CloudtuneError as error:
    print("raised", error)
again = cloudtune.run(sys.argv[1], trials=1, progress=False)
print("then", again.ended)
sys.exit(17)
"""


def test_a_program_outlives_a_head_that_dies_and_runs_again(bench: Bench) -> None:
    path = bench.ready(trials=2, first=2, last=4)
    (bench.folder / "twice.py").write_text(TWICE)
    done = subprocess.run(
        [sys.executable, "twice.py", str(path)],
        cwd=bench.folder,
        env={**os.environ, **bench.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 17, done.stdout + done.stderr
    assert "raised the run can't go on: " in done.stdout
    assert done.stdout.endswith("then done\nits own handler ran\n")
    assert not bench.alive()


def end_the_head(bench: Bench) -> None:
    (record,) = bench.home.glob("runs/*/head.json")
    leader = psutil.Process(json.loads(record.read_text())["pid"])
    (gcs,) = (child for child in leader.children(recursive=True) if child.name() == "gcs_server")
    os.kill(gcs.pid, signal.SIGKILL)


def test_instances_left_by_a_dead_head_give_exit_code_7(bench: Bench) -> None:
    """One of two instances is frozen; the other ends itself, as its cluster is gone."""
    path = bench.ready(trials=2, first=200, last=400)
    process = bench.start("run", path, "--deadline", "100s", "--force")
    wait_for(lambda: bench.recorded('"NodeJoined"') == 2)
    frozen = bench.alive()[0]["id"]
    bench.refuse("TerminateInstances", "UnauthorizedOperation", times=None)
    bench.control.freeze(frozen)
    end_the_head(bench)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 7, out + err
    assert "the run can't go on: " in err
    assert f"EC2 did not confirm the end of {frozen}; they may still bill" in err
    assert [each["id"] for each in bench.alive()] == [frozen]
    bench.control.clear()
    assert bench("gc").code == 0

"""Runs whose process is killed in the middle, and `cloudtune resume`."""

import json
import os
import signal
from pathlib import Path

import pytest

from cloudtune.engine.ledger import read_entries, read_header
from cloudtune.model.commands import Launch, StartTrial
from cloudtune.model.events import EpochDone, InstanceLaunched, RunContinued, RunResumed
from cloudtune.runs.job import Job, trials
from tests.bench import Bench, Done, interrupt, wait_for

pytestmark = pytest.mark.cluster
# The loss follows from the configuration and the epoch alone, whichever session trains it.
LOSS = "value = abs(config['lr'] - 0.05) + config['n'] / 1000 / epoch"


def test_killed_run_finds_same_winner(bench: Bench) -> None:
    path = bench.ready(LOSS, first=8, last=32)
    process = bench.start("run", path)
    wait_for(lambda: bench.recorded('"EpochDone"') > 0)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    bench("resume").succeeded("0 instances left")
    (ledger,) = bench.home.glob("runs/*/ledger.jsonl")
    entries = list(read_entries(ledger))
    assert sum(isinstance(entry.event, RunResumed) for entry in entries) == 1
    asked = [c.intent for entry in entries for c in entry.commands if isinstance(c, Launch)]
    launched = [e.event.intent for e in entries if isinstance(e.event, InstanceLaunched)]
    assert len(asked) == len(set(asked)), "no intent is bought twice"
    assert sorted(launched) == sorted(asked)
    report = bench.last_report()
    best = report["best"]
    assert (best["trial"], best["epoch"]) == (winner(ledger), 32)
    assert sorted(trial["epoch"] for trial in report["trials"]) == [8, 8, 16, 32]


def test_run_survives_a_moved_home(bench: Bench, tmp_path: Path) -> None:
    process = bench.start("run", bench.ready(LOSS + "; import time; time.sleep(0.2)", last=32))
    wait_for(lambda: bench.recorded('"EpochDone"') > 8)
    interrupt(process)
    process.communicate()
    bench.home = bench.home.rename(tmp_path / "moved")
    bench.environment["CLOUDTUNE_HOME"] = str(bench.home)
    assert Path(bench.last_report()["best"]["checkpoint"]).is_relative_to(bench.home)
    [folder] = bench.home.glob("runs/*")
    before = len(list(read_entries(folder / "ledger.jsonl")))

    elsewhere = folder.rename(tmp_path / "elsewhere")
    report = bench.here("report", elsewhere, "-o", "json").succeeded().json
    assert Path(report["best"]["checkpoint"]).is_dir()
    check_refusal(bench.here("resume", elsewhere), "move it there to resume it")
    elsewhere.rename(folder)

    bench("resume", "--deadline", "+5m").succeeded("0 instances left")
    entries = list(read_entries(folder / "ledger.jsonl"))[before:]
    starts = [it for entry in entries for it in entry.commands if isinstance(it, StartTrial)]
    saved = [it.checkpoint for it in starts if it.start_epoch > 0]
    assert saved
    assert all(it is not None and it.startswith(str(bench.home)) for it in saved)
    best = bench.last_report()["best"]
    assert best["epoch"] == 32
    assert (bench.home / "storage" / folder.name / "best").is_dir()


def test_resumed_run_reads_its_checkpoints(bench: Bench) -> None:
    # A file so large that its checksum has a stamp, by which this run's own workers trust it.
    large = "os.truncate(os.open(folder + '/large', os.O_CREAT | os.O_WRONLY), 100_000_000)"
    path = bench.ready("import time; time.sleep(0.5)", trials=1, first=40, last=40)
    script = path.with_name("train.py")
    saves = "torch.save(model.state_dict()"
    script.write_text(script.read_text().replace(saves, f"{large}; {saves}"))
    bench.profile()
    process = bench.start("run", path)
    wait_for(lambda: bench.recorded('"EpochDone"') > 2)
    interrupt(process)
    process.communicate(timeout=600)
    saved = sorted(bench.home.glob("storage/*/*/epoch-*/manifest.json"))
    last = saved[-1].parent
    damage_silently(last)

    bench("resume", "--deadline", "+5m").succeeded("0 instances left")
    logs = "".join(log.read_text() for log in bench.home.rglob("*.log"))
    assert f"{last.name} is missing or damaged" in logs
    assert bench.last_report()["best"]["epoch"] == 40


def damage_silently(checkpoint: Path) -> None:
    """Change a byte of a large file, as a failing disk does: its times and size stay as noted."""
    manifest = checkpoint / "manifest.json"
    document = json.loads(manifest.read_text())
    file = checkpoint / document["folder"] / "large"
    with file.open("r+b") as data:
        data.write(b"\1")
    saved = document["files"]["large"]
    assert saved["stamp"]
    state = file.stat()
    unchanged = saved["stamp"].rpartition("/")[0].rpartition("/")[0]
    saved["stamp"] = f"{unchanged}/{state.st_mtime_ns}/{state.st_ctime_ns}"
    manifest.write_text(json.dumps(document))


def winner(ledger: Path) -> str:
    """Halve the trials by what the script's formula says of their configurations."""
    job = Job.from_json(read_header(ledger))
    left = {trial.id: trial.config for trial in trials(job.experiment)}

    def loss(trial: str, epoch: int) -> float:
        rate = left[trial]["lr"]
        noise = left[trial]["n"]
        assert isinstance(rate, float)
        assert isinstance(noise, int)
        return abs(rate - 0.05) + noise / 1000 / epoch

    better_half = sorted(left, key=lambda trial: loss(trial, 8))[:2]
    return min(better_half, key=lambda trial: loss(trial, 16))


def test_a_saved_plan_goes_on_after_ctrl_c(bench: Bench) -> None:
    check_refusal(bench.here("resume"), "no run yet")
    path = bench.ready("import time; time.sleep(0.3)", trials=2, first=200, last=400)
    assert bench.here("plan", path, "--save", "plan.json").code == 0
    process = bench.start("run", "plan.json")
    wait_for(lambda: bool(bench.alive()))
    (folder,) = bench.home.glob("runs/*")
    ledger = folder / "ledger.jsonl"
    wait_for(lambda: epochs(ledger) > 0)
    check_refusal(bench.here("resume", folder.name), f"is driven by process {process.pid}")
    check_refusal(bench.here("resume", "nosuchrun"), "no run nosuchrun")
    interrupt(process)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, out + err
    assert "0 instances left (checked " in out
    assert "Traceback" not in err
    check_refusal(bench.here("resume", "--deadline", "2s"), "its deadline leaves no time", "+1h")
    result = epochs(ledger)
    more = time_for_a_start(ledger)
    check_refusal(bench.here("resume", "--trials", "3"), "as in --trials +16")
    done = bench("resume", "--deadline", f"+{more}s")
    assert done.code == 5, done.out + done.err
    assert "Continue: cloudtune resume" in done.out
    assert epochs(ledger) > result
    entries = list(read_entries(ledger))
    [begins] = [n for n, entry in enumerate(entries) if isinstance(entry.event, RunContinued)]
    starts = [c for e in entries[begins:] for c in e.commands if isinstance(c, StartTrial)]
    assert any(start.checkpoint for start in starts), "it trains on from what was saved"
    begin = entries[begins].event
    assert isinstance(begin, RunContinued)
    ended = bench.last_report()
    assert ended["ended"] == "deadline"
    assert ended["fleet"][-1]["instances"] == 0
    assert ended["fleet"][-1]["at"] <= begin.at + more
    assert ended["best"]["checkpoint"]
    assert bench.alive() == []


def time_for_a_start(ledger: Path) -> int:
    """Return seconds in which a run starts again and trains: a little more than the first start.

    How long a start takes depends on what else this machine does.
    """
    first = next(e.event for e in read_entries(ledger) if isinstance(e.event, EpochDone))
    return 40 + round(1.3 * first.at)


def epochs(ledger: Path) -> int:
    return sum(isinstance(entry.event, EpochDone) for entry in read_entries(ledger))


def check_refusal(done: Done, *words: str) -> None:
    """Look for one clear message and nothing else."""
    assert done.code == 2, done.out + done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert len(done.err.strip().splitlines()) == 1
    for word in words:
        assert word in done.err

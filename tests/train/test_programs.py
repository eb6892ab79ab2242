"""Commands that train, as a worker runs them: real processes, on this thread."""

import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.node.worker import describe_failure
from cloudtune.model.events import EpochReport
from cloudtune.model.trial import nest
from cloudtune.script.command import split_words
from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.programs.program import Program
from cloudtune.train.programs.running import CommandFailedError, CommandRun, Post, command_run
from cloudtune.train.progress_cursor import Progress
from cloudtune.train.sync_check import NotOneModelError
from tests.guard import is_alive
from tests.train.sessions import make_place

# As such scripts are written: it knows nothing of cloudtune.
WRITES = """
import argparse, json, pathlib, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int)
parser.add_argument("--resume")
parser.add_argument("--fast", action="store_true")
args = parser.parse_args()
done = 0
if args.resume:
    done = json.loads(pathlib.Path(args.resume, "state.json").read_text())["epoch"]
print("begins at", done, "lr", args.lr, "fast", args.fast, "data", open("data.txt").read())
log = open("metrics.jsonl", "a", buffering=1)
log.write(json.dumps({"note": "no report", "loss": 1}) + "\\n")
for epoch in range(done + 1, args.epochs + 1):
    pathlib.Path("out").mkdir(exist_ok=True)
    pathlib.Path("out/state.json").write_text(json.dumps({"epoch": epoch}))
    log.write(json.dumps({"epoch": epoch, "accuracy": args.lr * epoch, "kind": "val"}) + "\\n")
    print(f"Test set: Accuracy: {epoch}/10 ({10 * epoch}%)")
    signal.sigwait([signal.SIGCONT])  # an epoch is long: it is seen, before the next has ended
"""
SPEAKS = """
import sys, pathlib
import cloudtune
done = cloudtune.get_checkpoint().epoch if cloudtune.get_checkpoint() else 0
print("begins at", done, pathlib.Path("out/state").exists())
if done:
    cloudtune.report({"accuracy": 0.0}, epoch=done)  # evaluated first
for epoch in cloudtune.epochs():
    pathlib.Path("out").mkdir(exist_ok=True)
    pathlib.Path("out/state").write_text(str(epoch))
    cloudtune.report({"accuracy": 0.1 * epoch}, epoch=epoch)
print("never printed")
"""


@dataclass
class Trial:
    """A command for one trial after the other, in a folder; what it reports, and what it prints."""

    folder: Path
    command: str
    program: dict[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    place: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=lambda: {"lr": 0.5})
    met: bool = True
    attempt: int = 0
    reports: list[EpochReport] = field(default_factory=list)

    def run(
        self,
        until: int = 3,
        last: int = 3,
        restore: str | None = None,
        each: Callable[[CommandRun, EpochReport], object] = lambda run, report: None,
    ) -> str:
        """Train as far as that, and stop there; returns what was printed."""
        self.attempt += 1
        log = self.folder / f"a.{self.attempt}.0.log"
        post = Post(
            place=make_place(max_epoch=last, restore=restore, **self.place),
            storage=str(self.folder / "store"),
            losses_per_hour=0.0,
            progress=self.progress,
            config=self.config,
            nested=nest(self.config),
            name=f"a.{self.attempt}",
            code=self.folder / "code",
            log=log,
            met=self.met,
        )
        every = self.progress.every
        program = Program(
            self.command, split_words(self.command), int(last * every), **self.program
        )

        def keep_report(report: EpochReport) -> None:
            self.reports.append(report)
            each(run, report)
            if report.epoch >= until:
                run.stop()

        run = command_run(program, post, keep_report)
        run.grant(until)
        with redirected(log):
            run.run()
        assert not run.folder.exists()
        return log.read_text()

    @property
    def epochs(self) -> list[int]:
        return [report.epoch for report in self.reports]


class redirected:  # noqa: N801
    """Sends this process's output to a file, as a worker's is."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> None:
        self._kept = [os.dup(1), os.dup(2)]
        file = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)

    def __exit__(self, *_: object) -> None:
        for number, kept in enumerate(self._kept, start=1):
            os.dup2(kept, number)
            os.close(kept)


def trial(folder: Path, script: str, command: str, **more: Any) -> Trial:
    code = folder / "code"
    code.mkdir()
    (code / "main.py").write_text(script)
    (code / "data.txt").write_text("here")
    (code / "out").mkdir()
    (code / "out" / "state.json").write_text("of another day")
    return Trial(folder, command, **more)


PLACE = "accuracy {accuracy}"
COMMAND = "python main.py --lr {lr} --epochs {epochs} --resume {resume} {fast:--fast}"


def test_plain_script_resumes_from_folder(tmp_path: Path) -> None:
    files = {"file": "metrics.jsonl", "folder": "out"}
    it = trial(tmp_path, WRITES, COMMAND, program=files)
    printed = it.run(until=2, last=9)
    assert "begins at 0 lr 0.5 fast False data here" in printed
    assert it.epochs == [1, 2]
    assert it.reports[1].metrics == {"epoch": 2.0, "accuracy": 1.0}
    saved = it.reports[1].checkpoint
    assert saved is not None
    with Checkpoint(saved, 2).as_directory() as folder:
        assert json.loads(Path(folder, "state.json").read_text())["epoch"] == 2
    it.config = {"lr": 0.25, "fast": True}
    assert "lr 0.25 fast True" in it.run(until=4, last=9, restore=saved)
    assert it.epochs[-1] == 4
    assert (tmp_path / "code" / "out" / "state.json").read_text() == "of another day"
    assert not (tmp_path / "code" / "metrics.jsonl").exists()


SETTINGS = """\
# Of a project, with an anchor.
defaults: &adam {name: adam, lr: 1.0e-3, betas: [0.9, 0.999]}
optim:
  <<: *adam
  lr: 1.0e-2  # tuned
  schedule: cosine
epochs: 3
"""
READS_SETTINGS = """
import json, sys, yaml
with open(sys.argv[1]) as file:
    settings = json.load(file) if sys.argv[1].endswith(".json") else yaml.safe_load(file)
optim = settings["optim"]
assert optim["betas"] == [0.9, 0.999] and optim["name"] == "adam", optim
assert settings["defaults"]["lr"] == 1e-3, settings
for epoch in range(settings["epochs"]):
    print(f"epoch {epoch} accuracy {optim['lr'] / 1e-5} schedule {optim['schedule']!r}")
"""


# It finds its folder as many do, and goes on from what it finds there.
FINDS_ITSELF = """
import pathlib, time
from nets import ROOT
last = ROOT / "saves" / "last"
begins = int(last.read_text()) if last.exists() else 0
last.parent.mkdir(exist_ok=True)
print("begins at", begins, "with", (ROOT / "words" / "data.txt").read_text())
for epoch in range(begins + 1, 3):
    last.write_text(str(epoch))
    print(f"epoch {epoch} accuracy {epoch / 10}")
    time.sleep(0.3)
"""


@pytest.mark.parametrize("folder", [None, "tools/saves"])
def test_a_script_that_finds_its_own_folder_has_one_of_the_trial(
    tmp_path: Path, folder: str | None
) -> None:
    it = trial(tmp_path, "", "python tools/main.py {lr}")
    tools = tmp_path / "code" / "tools"
    (tools / "words").mkdir(parents=True)
    (tools / "words" / "data.txt").write_text("words")
    (tools / "nets.py").write_text("import pathlib; ROOT = pathlib.Path(__file__).resolve().parent")
    (tools / "main.py").write_text(FINDS_ITSELF)
    it.program = {"printed": PLACE, "folder": folder}
    for _ in range(2):
        assert "begins at 0 with words" in it.run(until=9, last=2)
    assert it.epochs == [1, 2, 1, 2]
    assert (it.reports[-1].checkpoint is not None) == (folder is not None)
    assert not (tools / "saves").exists()


@pytest.mark.parametrize("name", ["base.yaml", "configs/base.json"])
def test_a_file_of_settings_has_a_trial_s_values(tmp_path: Path, name: str) -> None:
    """PyYAML, which scripts read it by, takes 1e-05 for a text, and `on` for True."""
    it = trial(tmp_path, READS_SETTINGS, f"python main.py {{config:{name}}}")
    it.program = {"printed": PLACE}
    it.config = {"optim/lr": 1e-05, "optim/schedule": "on"}
    path = tmp_path / "code" / name
    path.parent.mkdir(exist_ok=True)
    text = SETTINGS
    if path.suffix == ".json":
        adam = {"name": "adam", "lr": 1e-3, "betas": [0.9, 0.999]}
        settings = {"defaults": adam, "optim": {**adam, "schedule": "cosine"}, "epochs": 3}
        text = json.dumps(settings)
    path.write_text(text)
    printed = it.run()
    assert [report.metrics["accuracy"] for report in it.reports] == pytest.approx([1.0] * 3)
    assert "schedule 'on'" in printed
    assert path.read_text() == text


@pytest.mark.parametrize("mode", ["a", "w"])
def test_restored_lines_are_no_reports(tmp_path: Path, mode: str) -> None:
    """As in facebookresearch/ConvNeXt, whose log stands among its checkpoints."""
    script = WRITES.replace('"metrics.jsonl", "a"', f'"out/log", "{mode}"')
    script = script.replace('"epoch": epoch, "acc', '"acc')
    it = trial(tmp_path, script, COMMAND, program={"file": "out/log", "folder": "out"})
    it.run(until=2, last=9)
    it.run(until=3, last=9, restore=it.reports[1].checkpoint)
    values = [report.metrics["accuracy"] for report in it.reports]
    assert (it.epochs, values) == ([1, 2, 3], [0.5, 1.0, 1.5])


def test_what_a_script_prints_is_read_as_well(tmp_path: Path) -> None:
    pattern = r"Accuracy: \d+/\d+ \((?P<accuracy>[\d.]+)%\)"
    it = trial(tmp_path, WRITES, COMMAND, program={"printed": pattern})
    it.run(until=3, last=9)
    assert [report.metrics["accuracy"] for report in it.reports] == [10.0, 20.0, 30.0]
    assert [report.checkpoint for report in it.reports] == [None] * 3


def test_a_reporting_script_is_granted_unwound_and_counted_once(tmp_path: Path) -> None:
    it = trial(tmp_path, SPEAKS, "python main.py --lr {lr}", program={"folder": "out"})
    printed = it.run(until=2, last=9)
    assert "begins at 0 False" in printed
    assert "never" not in printed
    assert it.epochs == [1, 2]
    it.run(until=3, last=9, restore=it.reports[1].checkpoint)
    assert it.epochs == [1, 2, 3]
    assert it.reports[2].metrics["accuracy"] == pytest.approx(0.3)  # not what it evaluated first
    with Checkpoint(str(it.reports[2].checkpoint), 3).as_directory() as folder:
        assert Path(folder, "state").read_text() == "3"


def test_a_command_is_ended_with_its_children(tmp_path: Path) -> None:
    script = """
import json, subprocess, sys, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"accuracy": 1, "child": child.pid}), file=open("metrics.jsonl", "w"), flush=True)
time.sleep(600)
"""
    it = trial(tmp_path, script, "sh -c 'python main.py; true'", program={"file": "metrics.jsonl"})
    it.run(until=1, last=9)
    assert not is_alive(int(it.reports[0].metrics["child"]))


def test_a_crash_shows_its_code_and_last_lines(tmp_path: Path) -> None:
    advice = "import atexit; atexit.register(print, 'Set FULL_ERROR=1 for more.')"  # as hydra's
    script = f"{advice}\nprint('loads')\nraise ValueError('CUDA out of memory, sort of')"
    it = trial(tmp_path, script, "python main.py", program={"file": "m"})
    with pytest.raises(CommandFailedError) as caught:
        it.run()
    failure = describe_failure(caught.value, 1)
    assert failure.error == (
        "`python main.py` exited with code 1: ValueError: CUDA out of memory, sort of"
    )
    assert failure.out_of_memory
    assert "line 3, in <module>" in failure.traceback
    it.command = "no-such-program main.py"
    with pytest.raises(CommandFailedError, match="no-such-program can't be started: No such file"):
        it.run()


def test_a_file_gitignore_keeps_back_is_named(tmp_path: Path) -> None:
    it = trial(tmp_path, "open('data/train.bin')", "python main.py", program={"file": "m"})
    with pytest.raises(CommandFailedError, match=r"directory: 'data/train\.bin'$"):
        it.run()
    (it.folder / "code" / ".gitignore").write_text("*.bin")  # as in karpathy/nanoGPT
    with pytest.raises(CommandFailedError, match=r"copied to trials: write !data/train\.bin"):
        it.run()


@pytest.mark.parametrize(
    ("script", "program", "message"),
    [
        ("pass", {}, "ended without a report; call cloudtune.report"),
        ("print('acc 1')", {"printed": "(?P<accuracy>x)"}, "no line of what it printed has acc"),
        (
            "import traceback\ntry: 1 / 0\nexcept Exception: traceback.print_exc()",
            {"printed": "accuracy {accuracy}"},
            "an error, and ended with code 0 and without a report: ZeroDivisionError: division by",
        ),
        (
            "open('m', 'w').write('{\"loss\": 1}')",
            {"file": "m"},
            "no line of m has accuracy; its lines have loss",
        ),
        ("open('m', 'w').write('acc: 1\\n')", {"file": "m"}, "is no JSON object: 'acc: 1'"),
        (
            "import cloudtune\ncloudtune.report({'accuracy': 1}, epoch=-1)",
            {},
            "gave epoch -1; it is a number from 0 on",
        ),
        ("import cloudtune\ncloudtune.report({'acc': 1})", {}, "metric is 'accuracy'"),
    ],
)
def test_other_reports(tmp_path: Path, script: str, program: dict[str, str], message: str) -> None:
    it = trial(tmp_path, script, "python main.py", program=program)
    with pytest.raises(UsageError) as caught:
        it.run()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("open('m', 'w').write('{\"accuracy\": 1}')", {"file": "m"}),
        ("import cloudtune\ncloudtune.report({'accuracy': 1})", {}),
    ],
)
def test_a_script_may_end_before_the_last_epoch(
    tmp_path: Path, script: str, program: dict[str, str]
) -> None:
    it = trial(tmp_path, script, "python main.py", program=program)
    it.run()
    assert it.epochs == [1]


def test_last_lines_count_for_last_steps(tmp_path: Path) -> None:
    """As of reinforcement learning, whose episodes end where they end; its summary is no report."""
    script = """
for step in (110, 250, 290):
    print(f"step {step} accuracy {step / 1000}")
print("best: step 110 accuracy 0.9")
"""
    reads = {"printed": "step {step}.*?accuracy {accuracy}"}
    it = trial(tmp_path, script, "python main.py", program=reads, progress=Progress("step", 100))
    it.run()
    assert [(it.epoch, it.metrics["accuracy"]) for it in it.reports] == [
        (1, 0.11),
        (2, 0.25),
        (3, 0.29),
    ]


IN_PARTS = """
import time
for epoch in (1, 2):
    {before}
    for quarter in (1, 2, 3, 4):
        value = epoch - 1 + quarter / 4
        print(f"{line}", flush=True)
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("", "epoch {value:.2f} accuracy {value}"),
        ("", "epoch {epoch} step {500 * quarter}/2000 accuracy {value}"),
        ("print(f'Epoch {epoch}')", "iter {500 * quarter} of 2000, accuracy: {value}"),
    ],
)
@pytest.mark.parametrize("every", [1, 0.25])
def test_parts_of_an_epoch_are_read(tmp_path: Path, before: str, line: str, every: float) -> None:
    """Without `progress` an epoch has its last report, not its first."""
    script = IN_PARTS.format(before=before or "pass", line=line)
    reads = {"printed": "accuracy {accuracy}"}
    progress = Progress(every=every)
    it = trial(tmp_path, script, "python main.py", program=reads, progress=progress)
    last = int(2 / every)
    it.run(until=last + 1, last=last)
    assert [(at.epoch, at.metrics["accuracy"]) for at in it.reports] == [
        (report, report * every) for report in range(1, last + 1)
    ]


@pytest.mark.parametrize("places", ["0.33 0.67 1.0 1.33 1.67 2.0", "1 1 1 2 2 2"])
def test_rounded_and_whole_numbers_of_parts(tmp_path: Path, places: str) -> None:
    script = f"""
for place in "{places}".split():
    print("epoch", place, "accuracy", 1, flush=True)
"""
    reads = {"printed": "accuracy {accuracy}"}
    progress = Progress(every=1 / 3)
    it = trial(tmp_path, script, "python main.py", program=reads, progress=progress)
    it.run(until=7, last=6)
    assert it.epochs == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "line", ["epoch {epoch} step {epoch * 500}/1500", "epoch {epoch} 0.5 s", "epoch {epoch}: 2.5%"]
)
def test_steps_of_the_whole_training_are_no_parts(tmp_path: Path, line: str) -> None:
    script = f"""
for epoch in (1, 2, 3):
    print(f"{line} accuracy {{epoch}}", flush=True)
"""
    reads = {"printed": "accuracy {accuracy}"}
    it = trial(tmp_path, script, "python main.py", program=reads)
    it.run(until=4, last=3)
    assert [(at.epoch, at.metrics["accuracy"]) for at in it.reports] == [(1, 1), (2, 2), (3, 3)]


PRINTS = """
import time
for epoch in range(400):
    print("epoch %d: lr 0.1" % epoch)  # a schedule: none of these has been trained yet
for epoch in range(60):
    for batch in range(120):
        print(f"Epoch: [{epoch}][{batch}/120] accuracy 0.{epoch}", flush=True)
    time.sleep(1.2)
    if epoch == 0:
        print("LAST", flush=True)
"""


def test_a_pattern_that_finds_nothing_ends_a_trial(tmp_path: Path) -> None:
    pattern = r"acc=(?P<accuracy>[0-9.]+)"
    it = trial(tmp_path, PRINTS, "python main.py", program={"printed": pattern})
    with pytest.raises(CommandFailedError) as caught:
        it.run(last=60)
    failure = describe_failure(caught.value, 1)
    assert failure.error == (
        "`python main.py` has trained epochs without a report; no line of what it printed has "
        f"accuracy; mend reports.printed, {pattern!r}"
    )
    # Which line is the last one by then is up to the machine.
    example = r"Without a report, in a\.1\.0\.log: Epoch: \[[1-9]\]\[\d+/120\] accuracy 0\.\d\n"
    assert re.search(example, str(caught.value))


def test_end_of_epoch_pattern_is_awaited(tmp_path: Path) -> None:
    script = PRINTS.replace("LAST", "acc=0.5")
    it = trial(tmp_path, script, "python main.py", program={"printed": "acc=(?P<accuracy>.*)"})
    it.run(until=1, last=60)
    assert it.epochs == [1]


def test_steps_are_counted_by_what_a_line_says(tmp_path: Path) -> None:
    script = """
import json
with open("m", "w") as log:
    for step in range(0, 2000, 100):
        print(json.dumps({"accuracy": step, "global_step": step}), file=log, flush=True)
"""
    progress = Progress("step", 500, "global_step")
    it = trial(tmp_path, script, "python main.py {steps}", program={"file": "m"}, progress=progress)
    it.run(until=99, last=9)
    reported = [(report.epoch, report.metrics["accuracy"]) for report in it.reports]
    assert reported == [(1, 500.0), (2, 1000.0), (3, 1500.0), (4, 1900.0)]


RETURNS = """
import json
with open("m", "w") as log:
    for step in ({steps}):
        print(json.dumps({{"accuracy": step, "{name}": step}}), file=log, flush=True)
"""


@pytest.mark.parametrize(
    ("steps", "name", "field", "expected"),
    [
        # As returns of reinforcement learning: at the end of an episode, whenever that is.
        ("72, 118, 183, 204, 437", "step", None, [(1, 118), (2, 204), (3, 437), (4, 437)]),
        ("72, 118, 183, 204, 437", "frames", "frames", [(1, 118), (2, 204), (3, 437), (4, 437)]),
        ("30, 60", "global_step", None, [(1, 60)]),
        ("150, 9000", "step", None, [(1, 150), *((n, 9000) for n in range(2, 10))]),
    ],
)
def test_reports_at_any_steps_count(
    tmp_path: Path, steps: str, name: str, field: str | None, expected: list[tuple[int, float]]
) -> None:
    script = RETURNS.format(steps=steps, name=name)
    progress = Progress("step", 100, field)
    it = trial(tmp_path, script, "python main.py", program={"file": "m"}, progress=progress)
    it.run(until=99, last=9)
    assert [(report.epoch, report.metrics["accuracy"]) for report in it.reports] == expected
    passed = [report.epoch for report in it.reports if report.of_epoch]
    ends = dict(expected)
    assert passed == [epoch for epoch in ends if ends.get(epoch + 1) == ends[epoch]]


EVALUATES = """
import sys, time
for epoch in range(int(sys.argv[1])):
    print(f"Epoch {epoch + FIRST}", flush=True)
    time.sleep(0.02)
    if (epoch + 1) % 20 == 0:
        print(f"accuracy: {epoch}", flush=True)
"""


@pytest.mark.parametrize("first", [0, 1])
def test_a_script_may_evaluate_every_few_epochs(tmp_path: Path, first: int) -> None:
    script = EVALUATES.replace("FIRST", str(first))
    reads = {"printed": "accuracy {accuracy}"}
    it = trial(tmp_path, script, "python main.py {epochs}", program=reads)
    it.run(until=40, last=40)
    reported = [(it.epoch, it.metrics["accuracy"]) for it in it.reports if not it.of_epoch]
    assert reported == [(20, 19.0), (40, 39.0)]
    assert it.epochs == list(range(1, 41)), "rungs on the way are passed"


def test_workers_that_never_meet_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    it = trial(tmp_path, SPEAKS, "python main.py", place={"world_size": 2})
    with pytest.raises(NotOneModelError, match="its 2 workers never met"):
        it.run()
    assert it.reports == []
    it.met = False  # sync: trusted
    it.run(until=1)
    assert it.epochs == [1]


MEETS = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", rank=rank, world_size=2)
model = torch.nn.Linear(2, 1)
if sys.argv[1] == "ddp":
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(1, 2) * (rank + 1)).sum().backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        print(f"accuracy {epoch}", flush=True)
"""


@pytest.mark.parametrize("how", ["ddp", "forgot"])
def test_no_gradients_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('its own')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'own'}:{os.environ.get('PYTHONPATH', '')}")
    reads = {"printed": "accuracy (?P<accuracy>[0-9]+)"}
    it = trial(tmp_path, MEETS, f"python main.py {how}", program=reads, place={"world_size": 2})
    if how == "ddp":
        assert "its own" in it.run(until=2, last=2)
        assert it.epochs == [1, 2]
        return
    why = r"in epoch 1 its 2 workers took \d+ steps of the optimizer, and exchanged gradients"
    with pytest.raises(NotOneModelError, match=why) as error:
        it.run(until=2, last=2)
    assert describe_failure(error.value, 2).unsynced
    assert it.reports == []


def read_saves(it: Trial, pattern: str, last: int = 3) -> dict[int, dict[str, str]]:
    """Train, and return by epoch the files of its checkpoint that match, by their names."""
    saves: dict[int, dict[str, str]] = {}

    def keep(_: CommandRun, report: EpochReport) -> None:
        if report.checkpoint is not None:
            with Checkpoint(report.checkpoint, report.epoch).as_directory() as folder:
                files = sorted(Path(folder).rglob(pattern))
                saves[report.epoch] = {path.name: path.read_text() for path in files}

    it.run(until=last, last=last, each=keep)
    return saves


def test_a_checkpoint_is_not_taken_half_written(tmp_path: Path) -> None:
    script = """
import json, time
with open("out/state", "w") as state:
    state.write("half")
    state.flush()
    print(json.dumps({"accuracy": 1}), file=open("m", "w"), flush=True)
    time.sleep(0.3)
    state.write(", whole")
time.sleep(600)
"""
    it = trial(tmp_path, script, "python main.py", program={"file": "m", "folder": "out"})
    it.run(until=1)
    with Checkpoint(str(it.reports[0].checkpoint), 1).as_directory() as folder:
        assert Path(folder, "state").read_text() == "half, whole"


@pytest.mark.parametrize("order", ["saves, prints", "prints, saves"])
def test_epochs_seen_at_once_keep_last_save(tmp_path: Path, order: str) -> None:
    """Epochs of microseconds are one look, and a program goes on to do something else."""
    script = """
import sys, time
if sys.argv[1] == "prints,":
    print("accuracy 1\\naccuracy 2\\naccuracy 3")
for epoch in (1, 2, 3):
    open("out/state", "w").write(str(epoch))
if sys.argv[1] == "saves,":
    print("accuracy 1\\naccuracy 2\\naccuracy 3")
time.sleep(600)
"""
    reads = {"printed": "accuracy (?P<accuracy>[0-9]+)", "folder": "out"}
    it = trial(tmp_path, script, f"python main.py {order}", program=reads)
    assert read_saves(it, "state") == {3: {"state": "3"}}
    assert it.epochs == [1, 2, 3]


@pytest.mark.parametrize("saved", [1, 2])
def test_save_before_closing_words(tmp_path: Path, saved: int) -> None:
    """The second report, its save if it is better, and the end come between two looks."""
    script = f"""
import time
for epoch in (1, 2):
    print("accuracy", epoch)
    if epoch <= {saved}:
        open(f"out/state-{{epoch}}", "w").write("whole")
    time.sleep(0.5 * (epoch == 1))
print("done")
"""
    reads = {"printed": "accuracy (?P<accuracy>[0-9]+)", "folder": "out"}
    it = trial(tmp_path, script, "python main.py", program=reads)
    saves = read_saves(it, "state-*", last=2)
    names = {epoch: max(files, default="") for epoch, files in saves.items()}
    assert names.get(saved) == f"state-{saved}"
    assert all(name == f"state-{epoch}" for epoch, name in names.items())


@pytest.mark.parametrize("order", ["saves, prints", "prints, saves"])
def test_an_open_log_beside_the_checkpoints_is_no_save(tmp_path: Path, order: str) -> None:
    script = """
import sys, time
log = open("out/log.txt", "w", buffering=1)
def save(epoch):
    open("out/state", "w").write(str(epoch))
for epoch in range(1, 4):
    for _ in range(10):
        log.write("a batch\\n")
        time.sleep(0.2)
    if sys.argv[1] == "saves,":
        save(epoch)
    print("accuracy", epoch)
    if sys.argv[1] == "prints,":
        time.sleep(0.1)
        save(epoch)
"""
    reads = {"printed": "accuracy (?P<accuracy>[0-9]+)", "folder": "out"}
    it = trial(tmp_path, script, f"python main.py {order}", program=reads)
    assert read_saves(it, "state") == {n: {"state": str(n)} for n in (1, 2, 3)}


def test_late_save_is_awaited_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtune.train.programs.saving._PATIENCE", 0.3)
    script = """
import time
for epoch in range(1, 5):
    time.sleep(2.0)
    print("accuracy", epoch)
    time.sleep(1.0)
    open("out/state", "w").write(str(epoch))
"""
    reads = {"printed": "accuracy (?P<accuracy>[0-9]+)", "folder": "out"}
    it = trial(tmp_path, script, "python main.py", program=reads)
    assert read_saves(it, "state", last=4) == {n: {"state": str(n)} for n in (2, 3, 4)}


def test_report_amid_save_waits(tmp_path: Path) -> None:
    """As of accelerate: a library prints each file that it saves, which ends the progress bar."""
    script = """
import pathlib, sys, time
for epoch in range(1, 4):
    time.sleep(1.0)
    folder = pathlib.Path(f"out/checkpoint-{epoch}")
    folder.mkdir()
    print(f"\\r3/3 accuracy={epoch}", end="", flush=True)
    (folder / "config.json").write_text("{}")
    print("saved config.json", flush=True)
    for name in ("model.bin", "optimizer.bin"):
        time.sleep(0.1)
        (folder / name).write_text(name)
"""
    it = trial(tmp_path, script, "python main.py", program={"printed": PLACE, "folder": "out"})
    saves = read_saves(it, "checkpoint-*/*")
    assert list(saves) == [1, 2, 3]
    for files in saves.values():
        assert list(files) == ["config.json", "model.bin", "optimizer.bin"]


def test_next_free_folder_is_explained(tmp_path: Path) -> None:
    """The folder of checkpoints is there before the program, which then takes the next one."""
    script = """
import pathlib
number = 1
while (folder := pathlib.Path(f"runs/exp{number if number > 1 else ''}")).exists():
    number += 1
(folder / "weights").mkdir(parents=True)
with open(folder / "results.csv", "w") as log:
    log.write("epoch,accuracy\\n1,0.5\\n")
(folder / "weights" / "last.pt").write_text("whole")
"""
    where = {"file": "runs/exp/results.csv", "folder": "runs/exp/weights"}
    it = trial(tmp_path, script, "python main.py", program=where)
    with pytest.raises(CommandFailedError) as refused:
        it.run(until=1, last=1)
    advice = re.search(r"reports: {file: (.*?)} .*checkpoints, {folder: (.*?)}", str(refused.value))
    assert advice is not None
    it.program = {"file": advice[1], "folder": advice[2]}
    assert read_saves(it, "last.pt", last=1) == {1: {"last.pt": "whole"}}


def test_report_log_is_no_save(tmp_path: Path) -> None:
    """As Lightning's: it saves, appends its numbers, and goes on to append those of batches."""
    script = """
import csv, json, pathlib, time
folder = pathlib.Path("out/version_0")
folder.mkdir()
def write(**row):
    with (folder / "metrics.jsonl").open("a") as file:
        print(json.dumps(row), file=file)
for epoch in range(3):
    for batch in range(10):
        write(step=batch, loss=1.0)
        (folder / "events.out.tfevents.1.here").open("ab").write(b"x")
        time.sleep(0.1)
    for old in folder.glob("*.ckpt"):
        old.unlink()
    (folder / f"epoch={epoch}.ckpt").write_text(str(epoch))
    time.sleep(0.2)
    write(epoch=epoch, accuracy=epoch)
"""
    reads = {"file": "out/version_*/metrics.jsonl", "folder": "out"}
    it = trial(tmp_path, script, "python main.py", program=reads)
    saves = read_saves(it, "*.ckpt")
    assert saves == {n + 1: {f"epoch={n}.ckpt": str(n)} for n in range(3)}


def test_the_first_worker_alone_says_why_it_ended(tmp_path: Path) -> None:
    command = """sh -c 'rm -r "$PWD"; cat main.py'"""
    run = command_run(
        Program(command, split_words(command), 1),
        Post(
            make_place(max_epoch=1, rank=1, local_rank=1, world_size=2),
            *("", 0.0, Progress(), {}, {}, "a.8", tmp_path, tmp_path / "log"),
            met=True,
        ),
        lambda _: None,
    )
    run.folder.mkdir(parents=True)
    (run.folder.parent / "furnished").touch()
    stop = threading.Timer(1.0, run.stop)  # what the agent does once it has heard of that failure
    stop.start()
    run.run()
    stop.join()
    shutil.rmtree(run.folder.parent)

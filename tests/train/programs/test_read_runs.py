"""Commands that call nothing of ours: which epoch a report is of, and whose files are its own.

Each script saves how many epochs its model has trained, and its metric says the same, so that a
checkpoint or a report under another epoch's name is seen.
"""

import itertools
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtune.model.events import EpochReport
from cloudtune.script.command import split_words
from cloudtune.train.checkpoint import load, read_manifest
from cloudtune.train.programs import running, saving
from cloudtune.train.programs.metric_parsers import Reading, Readings
from cloudtune.train.programs.program import Program
from cloudtune.train.programs.running import EpochNumbers, Post, command_run
from cloudtune.train.programs.snapshots import last_write
from cloudtune.train.programs.whole_saves import find_unfinished_save
from cloudtune.train.progress_cursor import Progress
from tests.train.sessions import make_place

SCRIPT = """
import argparse, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--epochs", type=int)
parser.add_argument("--resume")
args = parser.parse_args()
kind = set(args.kind.split("+"))
trained = 0
if args.resume and "ignores" not in kind:
    trained = int(pathlib.Path(args.resume).read_text())
first = trained

def save():
    with open("out/model", "w") as file:
        file.write(str(trained))
        if "slowly" in kind:
            file.flush()
            time.sleep(0.2)

def report():
    number = {"counts from 0": trained - 1, "counts from 1": trained}
    for name, value in number.items():
        if name in kind:
            print("Epoch: [%d][10/10]" % value, flush=True)
    print(f"value={trained}", flush=True)

while trained < args.epochs:
    time.sleep(0.15)
    trained += 1
    if "saves before" in kind:
        save()
    report()
    if "saves after" in kind:
        time.sleep(0.03)
        for _ in range(300 if "over and over" in kind else 1):
            save()
"""
RUN = "python main.py --kind {kind} --epochs {epochs} --resume {resume}/model"
COMMAND = f"""sh -c 'exec "$@" >>"$0"' {{log}} {RUN}"""
PRINTED = r"value=(?P<value>\d+)"


class Trial:
    """A trial of the script in a folder, session by session."""

    def __init__(self, folder: Path, kind: str, busy: int = 0) -> None:
        self._folder, self._kind = folder, kind
        self._code = folder / "code"
        self._code.mkdir()
        (self._code / "main.py").write_text(SCRIPT)
        self._log = folder / "t.1.log"
        self._sessions = 0
        self._busy = busy  # epochs in which looks are late, where they are
        self.saved: dict[int, int] = {}
        """By epoch, how many epochs the model of its checkpoint has trained."""

    def session(
        self, until: int, restore: str | None = None, at: int = 0, saves: int = 1
    ) -> list[EpochReport]:
        """Return what is reported until an epoch with a checkpoint, where the session is stopped.

        That may be a later epoch, with which there are as many `saves`: on a busy machine the
        script may write its file again before the last save was seen to be whole.
        """
        own = {"trial_id": "t", "metric_name": "value", "max_epoch": 100}
        place = make_place(**own, restore=restore, start_epoch=at)
        self._sessions += 1
        log = self._folder / f"t.{self._sessions}.log"
        log.touch()
        program = Program(COMMAND, split_words(COMMAND), 100, printed=PRINTED, folder="out")
        config = {"kind": self._kind, "log": str(log)}
        name = f"{self._folder.name}-{self._sessions}"
        storage = str(self._folder / "store")
        post = Post(place, storage, 0.0, Progress(), config, config, name, self._code, log, False)
        reports: list[EpochReport] = []
        enough = threading.Event()

        def note(report: EpochReport) -> None:
            if enough.is_set():
                return
            reports.append(report)
            if report.epoch == self._busy:
                running._POLL = 0.02  # type: ignore[misc]
            if report.checkpoint is not None:  # later ones may take its place
                assert read_manifest(report.checkpoint).epoch == report.epoch
                folder = self._folder / f"{self._sessions}-{report.epoch}"
                load(report.checkpoint, folder)
                self.saved[report.epoch] = int((folder / "model").read_text())
                if report.epoch >= until and len(self.saved) >= saves:
                    enough.set()
                    run.stop()

        run = command_run(program, post, note)
        run.grant(100)
        thread = threading.Thread(target=run.run)
        thread.start()
        thread.join(60.0)
        assert enough.is_set(), log.read_text()
        return reports


ORDERS = ("saves before", "saves after", "saves before+slowly", "saves after+slowly")


@pytest.mark.parametrize(
    "kind", [*ORDERS[:2], f"{ORDERS[2]}+counts from 0", f"{ORDERS[3]}+counts from 1"]
)
def test_a_checkpoint_has_the_files_of_its_epoch(tmp_path: Path, kind: str) -> None:
    trial = Trial(tmp_path, kind)
    first = trial.session(until=2)
    last = first[-1]
    again = trial.session(last.epoch + 2, last.checkpoint, at=last.epoch, saves=4)
    reports = [*first, *again]
    assert [report.metrics["value"] for report in reports] == [it.epoch for it in reports]
    assert [report.epoch for report in reports] == list(range(1, len(reports) + 1))
    assert all(trained == epoch for epoch, trained in trial.saved.items()), trial.saved


def test_opening_file_is_not_read(tmp_path: Path) -> None:
    """It is emptied before it shows as open, and a process runs on while a signal reaches it."""
    trial = Trial(tmp_path, "saves after+over and over")
    trial.session(until=8, saves=8)
    assert all(trained == epoch for epoch, trained in trial.saved.items()), trial.saved


@pytest.mark.parametrize("late", ["by 0.1", "by 0.5", "within the look"])
@pytest.mark.parametrize("order", ORDERS)
def test_late_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, late: str) -> None:
    """On a busy machine a report is read when the script has saved, or trained on."""
    trial = Trial(tmp_path, order, busy=2)
    if late == "within the look":
        monkeypatch.setattr(saving, "last_write", slowly(last_write))
    else:
        monkeypatch.setattr(running, "_POLL", float(late.removeprefix("by ")))
    reports = trial.session(until=6)
    assert [report.metrics["value"] for report in reports] == [float(r.epoch) for r in reports]
    assert all(trained == epoch for epoch, trained in trial.saved.items()), trial.saved


def slowly(call: Callable[[Path], float]) -> Callable[[Path], float]:
    """Return what does the same, as where another process has the core after the first calls."""
    calls = itertools.count()

    def slow(path: Path) -> float:
        result = call(path)
        time.sleep(0.2 if next(calls) < 4 else 0.0)
        return result

    return slow


@pytest.mark.parametrize(
    "kind", ["saves before", "saves after+counts from 0", "saves before+counts from 1"]
)
def test_epochs_of_a_script_that_starts_over_are_early(tmp_path: Path, kind: str) -> None:
    trial = Trial(tmp_path, f"ignores+{kind}")
    saved = trial.session(until=2)[-1]
    again = trial.session(saved.epoch + 2, saved.checkpoint, at=saved.epoch)
    epochs = [report.epoch for report in again]
    assert [report.metrics["value"] for report in again] == epochs
    assert epochs == list(range(epochs[0], epochs[-1] + 1))


def positions(progress: Progress, *own: float | None, from_zero: bool = False) -> list[object]:
    """Return where reports with these numbers of the script stand, each after the one before."""
    numbers = EpochNumbers(progress)
    result: list[object] = []
    reported = 0
    for number in own:
        position = numbers.position(Reading({}, number), reported, from_zero=from_zero)
        result.append(position.get("epoch"))
        reported = progress.number(reported, {}, position) or reported
    return [*result, reported]


@pytest.mark.parametrize(
    ("own", "from_zero", "expected"),
    [
        ([1, 2, 3], False, [1, 2, 3, 3]),
        ([0, 1, 2], False, [1, 2, 3, 3]),
        ([20, 40], False, [20, 40, 40]),
        ([19, 39], True, [20, 40, 40]),
        ([0.5, 1.0, 1.5, 2.0], False, [0.5, 1.0, 1.5, 2.0, 2]),
        ([1, 1, 2, 2], False, [1, 1, 2, 2, 2]),
        ([1, 2, 1, 2], False, [1, 2, None, None, 4]),
        ([None, None], False, [None, None, 2]),
        ([None, 1], False, [None, None, 2]),
    ],
)
def test_a_report_belongs_to_the_epoch_that_it_names(
    own: list[float | None], from_zero: bool, expected: list[object]
) -> None:
    assert positions(Progress(), *own, from_zero=from_zero) == expected


def test_line_epoch_is_of_next_report(tmp_path: Path) -> None:
    path = tmp_path / "log"
    readings = Readings(path, "value", PRINTED, first=7)
    path.write_text(
        "Namespace(epoch=100)\nvalue=1\nEpoch 0\nvalue=2\nEpoch 1\nvalue=3\nvalue=4\n"
        "Epoch 40: value=5\nEpoch 90\nvalue=6\nEpoch 8\nvalue=7\n"
    )
    assert [reading.epoch for reading in readings.more()] == [None, 0, 1, None, 40, None, 8]
    assert readings.from_zero


def test_an_empty_file_or_half_an_archive_is_torn(tmp_path: Path) -> None:
    whole, half, empty = (tmp_path / name for name in ("whole", "half", "empty"))
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("data", b"x" * 1000)
    half.write_bytes(whole.read_bytes()[:600])
    empty.touch()
    assert find_unfinished_save([whole]) is None
    assert find_unfinished_save([whole, half]) == half
    assert find_unfinished_save([empty]) == empty

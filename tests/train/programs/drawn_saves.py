"""Scripts that save one to eight files in many ways, and what is kept of them."""

import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from cloudtune.model.events import EpochReport
from cloudtune.script.command import split_words
from cloudtune.train.checkpoint import load
from cloudtune.train.programs.program import Program
from cloudtune.train.programs.running import Post, command_run
from cloudtune.train.progress_cursor import Progress
from tests.train.sessions import make_place

SCRIPT = """
import json, pathlib, sys, time
way = json.loads(sys.argv[1])
out = pathlib.Path("." if way["beside"] else "out")
done = 0
whole = out if way["in_place"] else max(
    (it for it in out.glob("checkpoint-*") if (it / f"f{way['files'] - 1}.pt").exists()),
    key=lambda it: int(it.name.split("-")[1]), default=None)
if way["resumes"] and whole is not None and (whole / "f0.pt").exists():
    done = int((whole / "f0.pt").read_text().split()[0])
(out / "args.json").write_text(json.dumps(way))

def save(epoch):
    folder = out if way["in_place"] else out / f"checkpoint-{epoch}"
    folder.mkdir(exist_ok=True)
    for number in range(way["files"]):
        if number:
            time.sleep(way["gap"])
        (folder / f"f{number}.pt").write_text(f"{epoch} " * 3000)

for epoch in range(done + 1, way["epochs"] + 1):
    time.sleep(way["seconds"])
    if way["before"]:
        save(epoch)
    print(f"epoch {epoch} value {epoch}", flush=True)
    if way["beside"]:
        with open("plot.csv", "a") as file:
            print(epoch, pathlib.Path("data.txt").read_text(), file=file)
    if not way["before"]:
        save(epoch)
    if way["goes_on"] and epoch < way["epochs"]:
        print("the next epoch begins", flush=True)
"""


@dataclass(frozen=True)
class Way:
    """How a script saves: `gap` seconds between its files, in epochs of some `seconds`."""

    files: int
    gap: float
    seconds: float
    before: bool
    in_place: bool
    epochs: int = 6
    resumes: bool = True
    pause: int = 0
    """The epoch at which it is paused for a while."""
    beside: bool = False
    """Whether it saves beside itself, where its data is and where it also writes a table."""
    goes_on: bool = False
    """Whether the next epoch's first line comes right after a save or a report."""
    kill: float = 0.0
    """The second at which it is ended, and begun again from its last checkpoint; 0: never."""


@dataclass
class Kept:
    """What was kept of a script: the epochs that its checkpoints have, by the epoch of each."""

    way: Way
    reported: list[int] = field(default_factory=list)
    found: dict[int, list[str]] = field(default_factory=dict)

    @property
    def torn(self) -> list[int]:
        """The epochs whose checkpoint isn't all files of its save."""
        return [epoch for epoch, found in self.found.items() if found != self._whole(epoch)]

    def _whole(self, epoch: int) -> list[str]:
        return [str(epoch)] * self.way.files

    @property
    def lost(self) -> list[int]:
        """The epochs without a checkpoint whose save was there two reports later.

        One that is overwritten in place never is.
        """
        if self.way.in_place:
            return []
        last = max(self.reported, default=0)
        return [e for e in sorted(set(self.reported)) if e <= last - 2 and e not in self.found]


def draw_way(seed: int) -> Way:
    luck = Random(seed)
    files = luck.randint(1, 8)
    gap = 10 ** luck.uniform(-2, 0.3)
    gap = min(gap, 8.0 / files)  # so that a save takes no longer than eight seconds
    return Way(
        files=files,
        gap=round(gap, 3),
        seconds=round(luck.uniform(0.4, 2.0), 2),
        before=luck.random() < 0.5,
        in_place=luck.random() < 0.5,
        epochs=luck.randint(4, 6),
        pause=luck.choice([0, 0, 2, 3]),
        kill=luck.choice([0.0, 0.0, round(luck.uniform(2.0, 12.0), 1)]),
        beside=luck.random() < 0.3,
        goes_on=luck.random() < 0.5,
    )


def play(way: Way, folder: Path) -> Kept:
    """Run a script with this way to save, and return what was kept of it."""
    kept = Kept(way)
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "main.py").write_text(SCRIPT)
    (code / "data.txt").write_text("data")
    restore = None
    start = 0
    ends = [way.kill, 0.0] if way.kill else [0.0]
    for number, end in enumerate(ends):
        session = _Session(kept, folder, number, restore, start)
        session.run(end)
        restore, start = session.checkpoint or restore, session.saved or start
    return kept


class _Session:
    def __init__(
        self, kept: Kept, folder: Path, number: int, restore: str | None, start: int
    ) -> None:
        self._kept = kept
        self._folder = folder
        self._log = folder / f"t.{number}.log"
        self._log.touch()
        self._number = number
        self._start = start
        self.checkpoint: str | None = None
        self.saved = 0
        way = kept.way
        own = {"trial_id": "t", "metric_name": "value", "max_epoch": way.epochs}
        place = make_place(**own, restore=restore, start_epoch=start)
        text = json.dumps(asdict(way)).replace("{", "{{").replace("}", "}}")
        command = f"""sh -c 'exec "$@" >>"$0"' {self._log} python main.py '{text}'"""
        program = Program(
            command,
            split_words(command),
            way.epochs,
            printed="value {value}",
            folder="." if way.beside else "out",
        )
        name = f"{folder.name}-{number}"
        storage = str(folder / "store")
        code = folder / "code"
        post = Post(place, storage, 0.0, Progress(), {}, {}, name, code, self._log, False)
        self._run = command_run(program, post, self._note)
        self._over = threading.Event()

    def run(self, end: float) -> None:
        way = self._kept.way
        self._run.grant(way.pause if way.pause > self._start else way.epochs)
        thread = threading.Thread(target=self._run.run)
        thread.start()
        if end:
            self._over.wait(end)
            self._run.stop()
        thread.join(120.0)
        assert not thread.is_alive(), self._log.read_text()

    def _note(self, report: EpochReport) -> None:
        kept = self._kept
        kept.reported.append(report.epoch)
        if report.checkpoint is not None:
            copy = self._folder / f"{self._number}-{report.epoch}"
            load(report.checkpoint, copy)
            kept.found[report.epoch] = _read_epochs(copy, kept.way)
            self.checkpoint = report.checkpoint
            self.saved = report.epoch
        if report.epoch == kept.way.pause:
            threading.Timer(1.0, self._run.grant, [kept.way.epochs]).start()
        if report.epoch == kept.way.epochs:
            self._over.set()
            self._run.stop()


def _read_epochs(copy: Path, way: Way) -> list[str]:
    """Return which epoch each file of the newest save in a checkpoint is of."""
    folder = copy
    if not way.in_place:
        folders = sorted(copy.glob("checkpoint-*"), key=lambda it: int(it.name.split("-")[1]))
        folder = folders[-1] if folders else copy
    texts = [
        (folder / f"f{n}.pt").read_text()
        for n in range(way.files)
        if (folder / f"f{n}.pt").exists()
    ]
    return [text.split()[0] if text else "" for text in texts]

"""A fault campaign on the real loop: whole runs on the emulated EC2, with Ray, killed and robbed.

Each run has a home of its own, a small real training job, tight limits, and mischief drawn from the
seed: the controller, its head, nodes, workers and EC2's answers. What is counted comes from the
emulator's own records, not from ours, and must be zero:

    left      instances that bill, and processes that live, when the run has ended
    bought    instances per launch intent, at most (1)
    $ over    budget, of the bill by launch and end of each instance
    s past    deadline, of the last instance's end
    lost      epochs in the storage that the ledger never heard of, and sessions without an end
    differ    runs that were done with another winner or other rungs than the undisturbed one

    python -m benchmarks.fault_runs [--runs 24] [--first 0] [--seed 0]

A minute a run. The home of a run that isn't clean is kept, and named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fault_runs_mischief import Case, case, offer_on, play
from benchmarks.fault_runs_stage import Stage
from cloudtune.engine.ledger import read_header
from cloudtune.infra.provider import INTENT_TAG
from cloudtune.model.commands import EndRun, StartTrial, StopTrial
from cloudtune.model.events import EpochDone, RunResumed, TrialFailed, TrialLost, TrialStopped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.engine.ledger import Entry

_ENDS = {0, 4, 5, 6}
_OPTIONS = ("--no-pace", "--force", "--objective", "time")
_SETTLE_SECONDS = 1.0
_QUIET_SECONDS = 20.0


@dataclass
class Row:
    """What became of one run; `differs` is None where it wasn't done, and can't be compared."""

    name: str
    mischief: str
    code: int | None = None
    resumed: int = 0
    left: int = 0
    processes: int = 0
    instances: int = 0
    bought: int = 0
    over: float = 0.0
    past: float = 0.0
    lost: int = 0
    differs: bool | None = None
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Return the row of the table."""
        same = {None: "-", True: "no", False: "yes"}[self.differs]
        return [
            self.name,
            self.mischief,
            "hung" if self.code is None else str(self.code),
            *map(str, (self.resumed, self.instances, self.left, self.processes, self.bought)),
            f"{self.over:.3f}",
            f"{self.past:.1f}",
            str(self.lost),
            same,
            f"{self.seconds:.0f}",
        ]


_HEADS = (
    *("kind", "mischief", "exit", "resumed", "instances", "left", "processes", "bought"),
    *("$ over", "s past", "lost", "same", "s"),
)


def one_run(
    folder: Path, chosen: Case, undisturbed: Mapping[str, Any] | None
) -> tuple[Row, dict[str, Any]]:
    """Carry out a run with its mischief; return its row and its report.

    `undisturbed` is the report of one to which nothing was done.
    """
    began = time.monotonic()
    stage = Stage(folder, chosen.deadline, chosen.budget, chosen.market)
    row = Row(chosen.name, str(chosen))
    try:
        stage.control.add(*chosen.faults)
        stage.start("run", "experiment.yaml", *_OPTIONS)
        play(stage, chosen)
        row.code = stage.finish()
        if row.code not in _ENDS:
            _look_after(stage)
        told = _judge(row, stage, chosen, undisturbed)
    finally:
        stage.close()
    row.seconds = time.monotonic() - began
    return row, told


def _look_after(stage: Stage) -> None:
    """Wait for the leases of a run that nobody drives, and then do what its user would do."""
    give_up = time.monotonic() + stage.deadline + 300.0
    while stage.alive() and time.monotonic() < give_up:
        time.sleep(0.5)
    stage.start("gc")
    stage.finish()


# ---- judging -------------------------------------------------------------------------------------


def _judge(
    row: Row, stage: Stage, chosen: Case, undisturbed: Mapping[str, Any] | None
) -> dict[str, Any]:
    _judge_instances(row, stage, chosen)
    entries = stage.entries()
    row.resumed = sum(isinstance(entry.event, RunResumed) for entry in entries)
    row.lost = len(unheard(stage, entries)) + len(endless(entries))
    told = stage.report()
    if undisturbed is not None and told.get("ended") == "done":
        row.differs = outcome(told) != outcome(undisturbed)
    row.processes = _still_there(stage)
    abandoned = any(step.lasts == float("inf") for step in chosen.steps if "contr" in step.what)
    if "Traceback" in stage.out.read_text(errors="replace"):
        row.wrong.append("a traceback was printed")
    if row.code not in _ENDS and not abandoned:
        row.wrong.append(f"exit code {row.code}")
    counts = {"left": row.left, "processes": row.processes, "over": row.over, "past": row.past}
    counts |= {"lost": row.lost, "differs": bool(row.differs), "bought twice": row.bought > 1}
    row.wrong += [name for name, count in counts.items() if count]
    return told


def _judge_instances(row: Row, stage: Stage, chosen: Case) -> None:
    """Count and charge what the emulator says that there was."""
    machines, folder = stage.machines(), stage.run_folder
    row.instances, row.left = len(machines), len(stage.alive())
    bought = Counter(machine["tags"][INTENT_TAG] for machine in machines)
    row.bought = max(bought.values(), default=0)
    ends = [machine["shutting_down_at"] or time.time() for machine in machines]
    lasted = [end - each["launched_at"] for each, end in zip(machines, ends, strict=True)]
    row.over = max(0.0, sum(map(offer_on(chosen.market).charge, lasted)) - chosen.budget)
    if folder is not None:
        began = read_header(folder / "ledger.jsonl")["began"]
        row.past = max(0.0, max(ends, default=began) - began - chosen.deadline)


def unheard(stage: Stage, entries: Sequence[Entry]) -> list[str]:
    """Return checkpoints of epochs that the ledger hasn't heard of, though the run went on.

    What a session saves when it has been told to stop, or when the run is over, nobody awaits.
    """
    folder = stage.run_folder
    if folder is None:
        return []
    began = read_header(folder / "ledger.jsonl")["began"]
    told = {
        (entry.event.session.rpartition(".")[0], entry.event.epoch)
        for entry in entries
        if isinstance(entry.event, EpochDone)
    }
    stopped = _stopped(entries)
    found = []
    for path in stage.home.glob(f"storage/{folder.name}/*/epoch-*/manifest.json"):
        manifest = json.loads(path.read_text())
        trial, saved = manifest["trial"], manifest["saved_at"] - began
        heard = (trial, manifest["epoch"]) in told
        if not heard and saved < stopped.get(trial, 0.0) - _SETTLE_SECONDS:
            found.append(f"{trial} epoch {manifest['epoch']}")
    return found


def _stopped(entries: Sequence[Entry]) -> dict[str, float]:
    """Return when the last session of each trial was told to stop, or ended, in run seconds."""
    stopped: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry.event, TrialStopped | TrialFailed):
            stopped.setdefault(entry.event.session.rpartition(".")[0], entry.event.at)
        for command in entry.commands:
            if isinstance(command, StartTrial):
                stopped.pop(command.trial, None)
            elif isinstance(command, StopTrial):
                stopped[command.session.rpartition(".")[0]] = entry.event.at
    return stopped


def endless(entries: Sequence[Entry]) -> set[str]:
    """Return the sessions of a run that is over whose end was never told."""
    begun, ended, over = set(), set(), False
    for entry in entries:
        if isinstance(entry.event, TrialStopped | TrialFailed | TrialLost):
            ended.add(entry.event.session)
        for command in entry.commands:
            if isinstance(command, StartTrial):
                begun.add(command.session)
            over = over or isinstance(command, EndRun)
    return begun - ended if over else set()


def outcome(told: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the winner and the rungs of a report."""
    best = told["best"]
    fates = sorted((each["trial"], each["status"], each["epoch"]) for each in told["trials"])
    return best and (best["trial"], best["epoch"], best["value"]), fates


def _still_there(stage: Stage) -> int:
    """Return how many processes of the run are left, a moment given to those that are ending."""
    give_up = time.monotonic() + _QUIET_SECONDS
    while (found := stage.processes()) and time.monotonic() < give_up:
        time.sleep(0.2)
    return len(found)


# ---- the campaign --------------------------------------------------------------------------------


def main() -> None:
    """Play the campaign, and print what it found."""
    parser = argparse.ArgumentParser(description="a fault campaign on the real loop")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    _print_row(_HEADS)
    _print_row(["---"] * len(_HEADS))
    row, undisturbed = _undisturbed()
    numbers = range(given.first, given.first + given.runs)
    rows = [row, *(_in_a_home(each, case(each, given.seed), undisturbed) for each in numbers)]
    _print_total(rows)


def _undisturbed() -> tuple[Row, Mapping[str, Any]]:
    """Return the row and the report of a run to which nothing is done."""
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        row, told = one_run(Path(folder), Case("undisturbed", 180.0, 1.0), None)
    _print_row(row.cells())
    return row, told


def _in_a_home(number: int, chosen: Case, undisturbed: Mapping[str, Any]) -> Row:
    folder = Path(tempfile.mkdtemp(prefix=f"fr{number}-"))
    row, _ = one_run(folder, chosen, undisturbed)
    row.name = f"{number} {row.name}"
    _print_row(row.cells())
    if row.wrong:
        print(f"<!-- {number}: {', '.join(row.wrong)}; {folder} -->", flush=True)
    else:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    return row


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _print_total(rows: Sequence[Row]) -> None:
    ends = Counter("hung" if row.code is None else str(row.code) for row in rows)
    compared = sum(row.differs is not None for row in rows)
    print(
        f"\n{len(rows)} runs, {sum(row.resumed for row in rows)} resumed; exit codes {dict(ends)}; "
        f"{sum(row.instances for row in rows)} instances; left {sum(row.left for row in rows)}, "
        f"processes {sum(row.processes for row in rows)}, "
        f"bought per intent {max(row.bought for row in rows)}, "
        f"${sum(row.over for row in rows):.3f} over, {sum(row.past for row in rows):.1f} s past, "
        f"lost {sum(row.lost for row in rows)}, "
        f"differ {sum(bool(row.differs) for row in rows)} of {compared} compared; "
        f"not clean {sum(bool(row.wrong) for row in rows)}"
    )


if __name__ == "__main__":
    main()

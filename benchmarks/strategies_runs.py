"""The runs of the comparison: in several processes, each kept as soon as it is done."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.compare.case import Case, record
from benchmarks.runner import in_processes
from benchmarks.strategies_cells import GROUNDS, HEEDING, OFFER, PROFILES, Cell, Variant, scale_of
from benchmarks.strategies_reading import track_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.compare.benchmark import Benchmark
    from benchmarks.strategies_cells import Choices, Ground, Scale
    from cloudtune.model.plans import Limits

# The profile of what trains on one GPU alone.
ANY = ""


@dataclass(frozen=True)
class Job:
    """The runs of one variant with one seed, in each of the cells."""

    seed: int
    ground: str
    profile: str
    variant: Variant
    cells: tuple[Cell, ...]

    @property
    def key(self) -> str:
        return f"{self.ground}|{self.profile}|{self.variant.label}|{self.seed}"


class Row(NamedTuple):
    """What a run came to in a cell; `read` from a longer one, or played."""

    ground: str
    profile: str
    method: str
    variant: str
    seed: int
    deadline: float
    budget: float
    metric: float | None
    regret: float
    seconds: float
    dollars: float
    read: bool


@dataclass(frozen=True)
class Done:
    """The rows of a job; it played so many runs, of which these passed a limit."""

    key: str
    rows: tuple[Row, ...]
    plays: int
    violations: tuple[str, ...] = ()


# ---- playing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a job is played."""

    ground: Ground
    benchmark: Benchmark
    scale: Scale

    def done(self, job: Job) -> Done:
        return self._read(job) if job.variant.read else self._played(job)

    def _played(self, job: Job) -> Done:
        played = [self._play(job, cell) for cell in job.cells]
        rows = tuple(row for row, _ in played)
        return Done(job.key, rows, len(rows), tuple(v for _, of in played for v in of))

    def _play(self, job: Job, cell: Cell) -> tuple[Row, tuple[str, ...]]:
        limits = self.ground.limits(cell)
        result = record(self.benchmark, wanted(job, limits)).result
        spent = (result.seconds, result.dollars)
        row = self._row(job, cell, result.metric, spent, read=False)
        where = f"{job.key} at {cell.deadline:g}, {cell.budget:g}: "
        return row, tuple(where + violation for violation in result.violations)

    def _read(self, job: Job) -> Done:
        widest = Cell(max(c.deadline for c in job.cells), max(c.budget for c in job.cells))
        played = record(self.benchmark, wanted(job, self.ground.limits(widest)))
        track = track_of(played, OFFER, self.benchmark.brakes)
        rows, plays = [], 1
        violations = [f"{job.key}: {violation}" for violation in played.result.violations]
        for cell in job.cells:
            reading = track.read(self.ground.limits(cell))
            if reading is None:
                row, more = self._play(job, cell)
                violations += more
                plays += 1
            else:
                metric = reading.point and reading.point.metric
                spent = (min(reading.at, played.result.seconds), reading.dollars)
                row = self._row(job, cell, metric, spent, read=True)
            rows.append(row)
        return Done(job.key, tuple(rows), plays, tuple(violations))

    def _row(
        self, job: Job, cell: Cell, metric: float | None, spent: tuple[float, float], *, read: bool
    ) -> Row:
        regret = self.scale.regret(self.ground.curves.regret(metric))
        variant = job.variant
        named = (job.ground, job.profile, variant.method, variant.label, job.seed)
        return Row(*named, *cell, metric, regret, *spent, read)


def wanted(job: Job, limits: Limits) -> Case:
    """Return what is to be tried."""
    variant = job.variant
    return Case(
        variant.strategy,
        limits,
        fleet=variant.fleet,
        eta=variant.eta,
        seed=job.seed,
        max_trials=variant.trials,
        sampler=variant.sampler,
    )


def place(ground: Ground, profile: str) -> Place:
    """Return where jobs on these curves and this profile are played."""
    used = ground.benchmark(next(iter(PROFILES)) if profile == ANY else profile)
    return Place(ground, used, scale_of(ground.curves))


# ---- all of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """All that is to be run."""

    grounds: Sequence[Ground]
    profiles: Sequence[str]
    methods: Sequence[str]
    choices: Choices
    cells: tuple[Cell, ...]
    seeds: int

    def jobs(self) -> Iterator[Job]:
        """Yield all jobs, seed by seed: however early one stops, whole seeds are there."""
        for seed in range(self.seeds):
            for ground in self.grounds:
                for variant, profile in self._variants(ground):
                    yield Job(seed, ground.name, profile, variant, self.cells)

    def _variants(self, ground: Ground) -> Iterator[tuple[Variant, str]]:
        for method in self.methods:
            for variant in self.choices.of(method, len(ground.curves.curves)):
                for profile in self.profiles if variant.strategy in HEEDING else (ANY,):
                    yield variant, profile


class Kept:
    """The jobs that have been done, in a file: a comparison that was interrupted goes on."""

    def __init__(self, path: Path, again: Sequence[str] = ()) -> None:
        self._path = path
        self.done: dict[str, Done] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            entry = json.loads(line)
            rows = tuple(Row(*row) for row in entry["rows"])
            if rows[0].method not in again:
                self._add(Done(entry["key"], rows, entry["plays"], tuple(entry["violations"])))

    def left(self, job: Job) -> Job | None:
        done = self.done.get(job.key)
        there = {_cell(row) for row in done.rows} if done else set()
        cells = tuple(cell for cell in job.cells if cell not in there)
        return replace(job, cells=cells) if cells else None

    def keep(self, done: Done) -> None:
        self._add(done)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(done)) + "\n")

    def _add(self, done: Done) -> None:
        """Add to what is known of a job; cells that were run again count with their last run."""
        before, again = self.done.get(done.key), {_cell(row) for row in done.rows}
        if before is None or again >= {_cell(row) for row in before.rows}:
            self.done[done.key] = done
            return
        rows = [row for row in before.rows if _cell(row) not in again]
        violations = (*before.violations, *done.violations)
        plays = before.plays + done.plays
        self.done[done.key] = Done(done.key, (*rows, *done.rows), plays, violations)


def _cell(row: Row) -> Cell:
    return Cell(row.deadline, row.budget)


_where: tuple[Path, float]


def _begin(folder: Path, epoch_seconds: float) -> None:
    global _where  # noqa: PLW0603  what a process plays on, from its start
    _where = (folder, epoch_seconds)


@cache
def _ground(name: str) -> Ground:
    return GROUNDS[name](*_where)


@cache
def _place(ground: str, profile: str) -> Place:
    return place(_ground(ground), profile)


def _do(job: Job) -> Done:
    return _place(job.ground, job.profile).done(job)


def do_all(
    todo: Sequence[Job], folder: Path, epoch_seconds: float, processes: int
) -> Iterator[Done]:
    """Yield what the jobs come to, as they are done."""
    given = (folder, epoch_seconds)
    return in_processes(_do, todo, processes, begin=_begin, given=given, in_order=False)

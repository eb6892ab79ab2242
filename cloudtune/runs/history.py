"""The records of earlier runs, and which of them a new run can use.

Each run has a record beside its ledger, made from it: what was tried, with which results and times.
A record that is missing, or older than its ledger, is made again.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cloudtune.engine.ledger import DAMAGED
from cloudtune.engine.record.actuals import crowded_places, delay_times, epoch_times
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.experiment.validation import Mistake
from cloudtune.infra.processes import write_atomically
from cloudtune.infra.provider import find_provider
from cloudtune.model.serialization import decode, encode
from cloudtune.profiles import store
from cloudtune.profiles.observed_timings import DelayTimes, EpochTimes, RunTimes
from cloudtune.runs import control, home
from cloudtune.runs.identity import identify
from cloudtune.strategies.samplers.axes import allows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cloudtune.experiment import Experiment
    from cloudtune.experiment.search_space import Domain
    from cloudtune.model.scaling import Identity
    from cloudtune.model.trial import Mode
    from cloudtune.runs.report import Report

# The version of a run's record; one of another version is made again from its ledger.
VERSION = 3
RECORD = "record.json"
# The maximum number of earlier runs whose times are used, latest first.
MOST_TIMED = 8
# The number of latest runs that are looked at: `plan` reads a file of each.
_LOOKED_AT = 100


@dataclass(frozen=True)
class TrialRecord:
    """A trial that trained an epoch or failed; `took` are the times of its epochs.

    `crowded` are the instance types and shares of a GPU at which it ran out of memory.
    """

    config: Mapping[str, object]
    took: tuple[EpochTimes, ...] = ()
    crowded: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """What later runs read about a run.

    `began` is Unix time. `script` is the path of its training script, `script_hash` the hash of
    that file then ("" if unknown). `ended` is its end reason; None if the run isn't over or its
    controller died. `cloud` is the name of its provider. `paced`: its epochs followed a table.
    `in_gpu_hours`: its dollars stand for GPU-hours. `delays` are those of instances and trials.
    `ledger_bytes` is the length of the ledger from which the record was made. `identity` is what it
    trained; None in runs before 0.3.
    """

    run: str
    began: float
    script: str
    function: str
    script_hash: str
    strategy: str
    metric: str
    mode: Mode
    best: float | None
    seconds: float
    dollars: float
    ended: str | None
    emulated: bool
    ledger_bytes: int
    trials: tuple[TrialRecord, ...] = field(default=())
    cloud: str = ""
    paced: bool = False
    in_gpu_hours: bool = False
    delays: tuple[DelayTimes, ...] = ()
    identity: Identity | None = None

    def times(self, space: Mapping[str, Domain]) -> RunTimes:
        """Return the run's times, with epochs of only those trials that a space allows."""
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began))
        allowed = [trial for trial in self.trials if allows(space, trial.config)]
        crowded = frozenset(place for trial in allowed for place in trial.crowded)
        took = tuple(trial.took for trial in allowed if trial.took)
        return RunTimes(self.run, began, took, self.delays, crowded)


@dataclass(frozen=True)
class Listed:
    """A run of this machine; `record` is None if it can't be read.

    `state` says, for a run that hasn't ended, whether it runs or its controller died. `why` says
    why later runs don't use its times; "" if they may.
    """

    run: str
    record: RunRecord | None
    state: str
    why: str


def remember(folder: Path, report: Report) -> RunRecord:
    """Write the record of a run beside its ledger, if possible, and return it."""
    job = report.job
    policy = report.policy
    experiment = job.experiment
    best = policy.best
    hashes = {profile.script_hash for profile in job.profiles} - {""}
    took = epoch_times(report.timeline)
    crowded = crowded_places(report.timeline)
    record = RunRecord(
        run=job.run,
        began=job.began,
        script=str(experiment.train_file),
        function=experiment.train_function,
        script_hash=job.script_hash or min(hashes, default=""),
        strategy=job.plan.strategy,
        metric=experiment.metric.name,
        mode=experiment.metric.mode,
        best=None if best is None else best.metric,
        seconds=report.seconds,
        dollars=report.dollars,
        ended=report.ended and report.ended.value,
        emulated=report.basis.emulated,
        ledger_bytes=(folder / home.LEDGER).stat().st_size,
        trials=tuple(
            TrialRecord(dict(trial.trial.config), took.get(trial.id, ()), crowded.get(trial.id, ()))
            for trial in policy.trials.values()
            if trial.history or trial.status in {"failed", "diverged"} or trial.id in crowded
        ),
        cloud=experiment.cloud.provider,
        paced=job.paced,
        in_gpu_hours=job.plan.in_gpu_hours,
        delays=delay_times(report.timeline),
        identity=job.identity,
    )
    data = {"cloudtune_record": VERSION, **encode(record)}
    with contextlib.suppress(OSError, ValueError):
        write_atomically(folder / RECORD, json.dumps(data, allow_nan=False) + "\n")
    return record


def load_record(folder: Path, kept: Mapping[str, Any] | None = None) -> RunRecord:
    """Return the record of a run's folder, made from its ledger if it is missing or old.

    `kept` is the record on disk, if the caller has read it.

    Raises:
        CloudtuneError: the ledger can't be read.
    """
    from cloudtune.runs.report import load  # noqa: PLC0415  it needs all of a run's world

    kept = kept or _read_record(folder)

    if kept is not None:
        with contextlib.suppress(*DAMAGED):
            return decode(RunRecord, kept)
    return remember(folder, load(folder))


def _read_record(folder: Path) -> Mapping[str, Any] | None:
    """Return the record on disk; None if it is missing, old or damaged."""
    with contextlib.suppress(*DAMAGED, OSError):
        data = json.loads((folder / RECORD).read_bytes())
        current = data["ledger_bytes"] == (folder / home.LEDGER).stat().st_size
        if data.pop("cloudtune_record") == VERSION and current:
            return dict(data)
    return None


def list_runs(experiment: Experiment | None = None) -> Iterator[Listed]:
    """Yield the runs of this machine, latest first; `experiment` decides which times are usable."""
    for folder in home.run_folders()[::-1]:
        try:
            record = load_record(folder)
        except (CloudtuneError, OSError) as error:
            yield Listed(folder.name, None, "unreadable", f"unreadable: {error}")
            continue
        state = record.ended or ("runs" if control.is_driven(folder) else "died")
        yield Listed(folder.name, record, state, why_no_times(record, experiment))


def to_json(listed: Listed) -> dict[str, Any]:
    """Return a line of the list as JSON, without the trials."""
    record = listed.record
    data = (
        {}
        if record is None
        else {**encode(replace(record, trials=())), "trials": len(record.trials)}
    )
    for name in ("ledger_bytes", "delays", "identity"):
        data.pop(name, None)
    times = {"usable": not listed.why, "why_not": listed.why or None}
    return {**data, "run": listed.run, "state": listed.state, "times": times}


def load_times(experiment: Experiment) -> tuple[tuple[RunTimes, ...], tuple[str, ...]]:
    """Return the times of earlier runs of the same script at the same provider, and notes.

    They are the latest ended runs, unless the experiment names some. Another version of the script
    is another program: its latest run is noted and not used.

    Raises:
        UsageError: a run that the experiment names doesn't exist, or has no usable times.
    """
    asked = experiment.history
    if asked == "off":
        return (), ()
    if asked != "auto":
        mistakes = tuple(mistakes_in(experiment))
        if mistakes:
            raise UsageError("\n".join(map(str, mistakes)))
        named = [load_record(home.find_run(name)) for name in asked]
        fitting = [record for record in named if not why_no_times(record, experiment, ended=False)]
        return tuple(record.times(experiment.space) for record in fitting), ()
    timed: list[RunRecord] = []
    other: list[RunRecord] = []

    def of_use(kept: Mapping[str, Any]) -> bool:  # most runs are of other scripts: don't read them
        fits = kept.get("script_hash") == wanted or (not other and kept.get("script") == path)
        return fits and kept.get("ended") is not None

    path = str(experiment.train_file)
    wanted = ""
    with contextlib.suppress(OSError):
        wanted = store.script_hash(experiment.train_file)
    for record in _latest(of_use):
        if not why_no_times(record, experiment):
            timed.append(record)
        elif (record.script, record.function) == (path, experiment.train_function) or (
            wanted and record.script_hash == wanted
        ):  # another version of the script, or the same for other machines
            other.append(record)
        if len(timed) == MOST_TIMED:
            break
    notes = (
        f"{record.run} isn't used for how long things take: {why_no_times(record, experiment)}"
        for record in (() if timed else other[:1])
    )
    return tuple(record.times(experiment.space) for record in timed), tuple(notes)


def why_no_times(record: RunRecord, experiment: Experiment | None, *, ended: bool = True) -> str:
    """Return why a run's times can't be used in an experiment (or in any); "" if they can.

    `ended`: whether the run must have ended.
    """
    return next(_timing_gaps(record, experiment, ended=ended), "")


def _timing_gaps(record: RunRecord, experiment: Experiment | None, *, ended: bool) -> Iterator[str]:
    if ended and record.ended is None:
        yield "it has not ended"
    if not any(trial.took for trial in record.trials):
        yield "none of its trials trained an epoch"
    if experiment is None:
        return
    where = experiment.cloud.provider
    function = experiment.train_function
    if record.cloud != where:
        yield f"it ran on {record.cloud}, not on {where}"
    if record.paced != find_provider(where).paced:
        yield "its training was not paced"
    if record.function != function:
        yield f"it trained {record.function}, not {function}"
    changed: list[str] = []
    with contextlib.suppress(OSError):
        if record.identity is not None:
            changed = list(record.identity.changes(identify(experiment)))
        if record.script_hash == store.script_hash(experiment.train_file) and not changed:
            return
    version = "another version" if record.script_hash else "an unknown version"
    what = f" ({'; '.join(changed)})" if changed else ""
    yield f"it trained {version} of the script{what}"


def mistakes_in(experiment: Experiment) -> Iterator[Mistake]:
    """Yield the runs that an experiment names and that don't exist or can't be used."""
    named = () if isinstance(experiment.history, str) else experiment.history
    for index, name in enumerate(named):
        try:
            why = why_no_times(load_record(home.find_run(name)), experiment, ended=False)
        except (CloudtuneError, OSError) as error:
            why = f"{error}" if isinstance(error, UsageError) else f"can't be read ({error})"
        else:
            why = why and f"run {name} has nothing to tell of this experiment: {why}"
        if why:
            yield Mistake(("history", index), why)


def _latest(of_use: Callable[[Mapping[str, Any]], bool]) -> Iterator[RunRecord]:
    """Yield the records of runs that no process drives any more, latest first.

    `of_use` can rule out a record by its raw contents, before it is decoded.
    """
    for folder in home.run_folders()[: -_LOOKED_AT - 1 : -1]:
        kept = _read_record(folder)
        if control.is_driven(folder) or (kept is not None and not of_use(kept)):
            continue
        with contextlib.suppress(CloudtuneError, OSError):
            yield load_record(folder, kept)

"""Warm knowledge: what past runs of the same script tell of a configuration that is new.

Kept as JSON lines, a file for each version of the script. A prediction is the weighted mean of the
nearest configurations that were seen, with an interval from how wrong that was for each of those
themselves, when it was left out.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cloudtune.engine.timeline import prices
from cloudtune.strategies.samplers.axes import Places, axes_by_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from cloudtune.engine.timeline import Timeline
    from cloudtune.experiment.search_space import Domain
    from cloudtune.jobs.report import Report
    from cloudtune.plan import Rentable
    from cloudtune.strategies.samplers.axes import Config

VERSION = 1
MOST = 2000
"""So many of the latest trials are looked at."""

LEVEL = 0.9
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)
"""Student's t at 95 % by degrees of freedom: for so few that no quantile can be read off them."""
_NEIGHBOURS = (1, 3, 5, 8, 13)


@dataclass(frozen=True)
class Seen:
    """A trial of a past run: how long its epochs took and what they gave.

    `pace` is the seconds of its epochs, relative to what the run's profile says that they take.
    """

    run: str
    trial: str
    config: Mapping[str, object]
    pace: float | None
    metric: str
    history: Mapping[int, float]
    failed: bool = False


@dataclass(frozen=True)
class Prediction:
    """A figure that nine in ten times lies between low and high; of `n` that were seen.

    `sd` and the interval are infinite where nothing says how wrong it may be.
    """

    mean: float
    sd: float
    low: float
    high: float
    n: int


# ---- what is kept ----------------------------------------------------------------------------


def path_of(folder: Path, script_hash: str) -> Path:
    """Return the file of a script's runs."""
    return folder / f"{script_hash[:16]}.jsonl"


def rows(report: Report) -> list[Seen]:
    """Return a row for each trial of a run that trained an epoch or failed."""
    paces = _paces(report.timeline, (*report.job.rentables, *report.job.standins))
    trials = report.policy.trials.values()
    return [
        Seen(
            report.job.run,
            trial.id,
            dict(trial.trial.config),
            paces.get(trial.id),
            report.job.experiment.metric.name,
            {epoch: value for epoch, value in trial.history.items() if math.isfinite(value)},
            trial.status == "failed",
        )
        for trial in trials
        if trial.id in paces or trial.status == "failed"
    ]


def _paces(timeline: Timeline, rentables: Sequence[Rentable]) -> dict[str, float]:
    """Return by trial what its epochs took, relative to the profile of where it ran."""
    profiles = {each.offer: each for each in rentables}
    priced = prices(timeline, profiles)
    offers = {it.instance: priced[it.intent] for it in timeline.instances.values()}
    sums: dict[str, tuple[float, float]] = {}
    for epoch in timeline.epochs:
        rentable = profiles[offers[epoch.session.start.placement[0].instance]]
        took, said = sums.get(epoch.trial, (0.0, 0.0))
        expected = rentable.epoch_seconds(epoch.width)
        sums[epoch.trial] = (took + epoch.told.seconds, said + expected)
    return {trial: took / said for trial, (took, said) in sums.items() if took > 0 and said > 0}


def append(path: Path, seen: Iterable[Seen]) -> None:
    """Add trials to a file, all in one write, so that runs that end together don't mix."""
    lines = [json.dumps(_to_json(each), allow_nan=False) + "\n" for each in seen]
    if not lines:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    before = "" if _ends_whole(path) else "\n"  # the last write was cut short: leave its line to it
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, (before + "".join(lines)).encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def _ends_whole(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _to_json(seen: Seen) -> dict[str, Any]:
    data = {"cloudtune_knowledge": VERSION, **vars(seen)}
    return data | {"history": {str(epoch): value for epoch, value in seen.history.items()}}


def _from_json(line: str) -> Seen:
    """Return the trial of a line.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or data.pop("cloudtune_knowledge", None) != VERSION:
        raise ValueError("not of this version")
    try:
        history = {int(epoch): float(value) for epoch, value in data["history"].items()}
        pace = None if data["pace"] is None else float(data["pace"])
        seen = Seen(**{**data, "history": history, "pace": pace})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"damaged: {error}") from None
    if not isinstance(seen.config, dict) or not all(map(math.isfinite, history.values())):
        raise ValueError("damaged: no configuration, or a metric that is no number")
    if pace is not None and not 0 < pace < math.inf:
        raise ValueError(f"damaged: a pace of {pace}")
    return seen


# ---- what it tells ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Knowledge:
    """What past runs tell of the configurations of a search space.

    `notices` say what of it couldn't be used.
    """

    space: Mapping[str, Domain]
    seen: tuple[Seen, ...] = ()
    metric: str = ""
    notices: tuple[str, ...] = ()
    _made: dict[int, _Neighbours | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, space: Mapping[str, Domain], metric: str) -> Knowledge:
        """Return what a file holds of a search space and a metric; nothing if there is none."""
        if not path.exists():
            return cls(space, metric=metric)
        found: list[Seen] = []
        damaged: list[int] = []
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if line.strip():
                try:
                    found.append(_from_json(line.decode()))
                except ValueError:
                    damaged.append(number)
        fitting = [each for each in found if _fits(space, each.config)]
        notices = []
        if damaged:
            notices.append(f"{path}:{damaged[0]}: {len(damaged)} damaged lines are left out")
        if len(fitting) < len(found):
            notices.append(
                f"{path}: {len(found) - len(fitting)} trials of another search space are left out"
            )
        return cls(space, tuple(fitting[-MOST:]), metric, tuple(notices))

    def predict_pace(self, config: Config) -> Prediction | None:
        """Return how many times as long as profiled a config's epochs take; None if unknown."""
        found = self._of(0, lambda seen: None if seen.pace is None else math.log(seen.pace))
        if found is None:
            return None
        logs = found.predict(config)
        mean = math.exp(logs.mean)
        return Prediction(mean, mean * logs.sd, _exp(logs.low), _exp(logs.high), logs.n)

    def predict_metric(self, config: Config, epoch: int) -> Prediction | None:
        """Return the metric of a configuration at an epoch; None if no known trial came so far.

        Only trials that reached the epoch count. Where bad trials were cut before it, the figure is
        too good.
        """
        found = self._of(
            epoch, lambda seen: seen.history.get(epoch) if seen.metric == self.metric else None
        )
        return None if found is None else found.predict(config)

    def _of(self, key: int, value: Callable[[Seen], float | None]) -> _Neighbours | None:
        if key not in self._made:
            known = [(seen.config, v) for seen in self.seen if (v := value(seen)) is not None]
            self._made[key] = _Neighbours(self.space, known) if known else None
        return self._made[key]


def _fits(space: Mapping[str, Domain], config: Config) -> bool:
    try:
        Places(axes_by_size(space), [config])
    except (AssertionError, TypeError, ValueError):
        return False
    return True


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


class _Neighbours:
    """Values of configurations, and what they say of others.

    A prediction is the mean of the k nearest by weights of 1 / (gap + half the usual gap); k is the
    one that predicts each by the rest best. How wrong it may be is relative to how far away they
    are: a quantile of those errors over their gaps (conformal prediction by leaving one out, with
    the difficulty of Papadopoulos et al., "Regression Conformal Prediction with Nearest
    Neighbours", JAIR 2011).
    """

    def __init__(self, space: Mapping[str, Domain], known: Sequence[tuple[Config, float]]) -> None:
        self._places = Places(axes_by_size(space), [config for config, _ in known])
        self._values = np.array([value for _, value in known])
        self._count = len(known)
        self._usual, self._k, self._errors = 1.0, 1, np.array([])
        if self._count > 1:
            self._fit()

    def _fit(self) -> None:
        gaps = np.sqrt(self._places.all_gaps())
        np.fill_diagonal(gaps, np.inf)
        self._usual = max(1e-6, float(np.median(gaps.min(axis=1))))
        counts = [k for k in _NEIGHBOURS if k < self._count]
        found = [self._means(gaps, k) for k in counts]
        misses = np.abs(self._values - np.array([means for means, _ in found]))
        errors = misses / np.array([self._scale(away) for _, away in found])
        squares = (misses**2).sum(axis=1, keepdims=True)
        self._k = counts[int(squares.argmin())]
        chosen = (squares - misses**2).argmin(axis=0)  # by the others: its own would flatter it
        self._errors = errors[chosen, np.arange(self._count)]

    def _means(self, gaps: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted means of the k nearest, and how far away these are."""
        nearest = np.argsort(gaps, axis=1, kind="stable")[:, :k]
        near = np.take_along_axis(gaps, nearest, axis=1)
        weights = 1.0 / (near + self._usual / 2)
        weights /= weights.sum(axis=1, keepdims=True)
        return (weights * self._values[nearest]).sum(axis=1), (weights * near).sum(axis=1)

    def _scale(self, away: np.ndarray) -> np.ndarray:
        return away + self._usual

    def predict(self, config: Config) -> Prediction:
        """Return the value of a configuration."""
        gaps = np.sqrt(self._places.gaps(config))[np.newaxis, :]
        means, away = self._means(gaps, min(self._k, self._count))
        mean, scale = float(means[0]), float(self._scale(away)[0])
        sd, half = (scale * each for each in self._spread())
        return Prediction(mean, sd, mean - half, mean + half, self._count)

    def _spread(self) -> tuple[float, float]:
        """Return the deviation and half of the interval, for a scale of 1."""
        n = self._count
        if n < 2:
            return math.inf, math.inf
        sd = math.sqrt(float((self._errors**2).sum()) / (n - 1))
        if n - 1 <= len(_STUDENT):
            return sd, sd * _STUDENT[n - 2] * math.sqrt(1 + 1 / n)
        rank = min(n, math.ceil((n + 1) * LEVEL))
        return sd, float(np.sort(self._errors)[rank - 1])

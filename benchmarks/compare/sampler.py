"""The rows of a table as configurations to try, each once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cloudtune.errors import UsageError
from cloudtune.strategies.samplers.axes import (
    ListedValues,
    different,
    fit_line,
    perturb,
    read_value,
)
from cloudtune.strategies.samplers.learner import Learner
from cloudtune.strategies.samplers.optuna_models import RandomDraws
from cloudtune.strategies.samplers.sampler import ADAPTIVE, MODEL_BASED, sampler_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.experiment.search_space import Value
    from cloudtune.model.trial import Mode, Trial
    from cloudtune.strategies.samplers.axes import Axes, Axis, Config


def axes_of_rows(configs: Sequence[Config]) -> dict[str, Axis]:
    """Return the axes of a table's configurations, in the order of their names' first appearance.

    A column of numbers is a line, logarithmic where they are positive and span more than two
    decades. Any other, or one with gaps (a missing value, None or nan), has labels.
    """
    axes: dict[str, Axis] = {}
    for name in dict.fromkeys(name for config in configs for name in config):
        values = different([read_value(config, name) for config in configs])
        if len(values) > 1:
            axes[name] = fit_line(values) or ListedValues(values)
    return axes


class Places:
    """Where configurations stand on each axis, in columns: to find the nearest of many at once.

    An axis is 1 long; different labels are 1 apart.
    """

    def __init__(self, axes: Axes, configs: Sequence[Config]) -> None:
        self._axes = axes
        self._columns = np.array([self._of(config) for config in configs], dtype=float).T
        self._labels = np.array(
            [isinstance(axis, ListedValues) for axis in axes.values()], dtype=bool
        )

    def gaps(self, wanted: Config) -> np.ndarray:
        """Return the squared distance of each configuration from the given one."""
        away = self._columns - np.array(self._of(wanted), dtype=float)[:, None]
        away[self._labels] = away[self._labels] != 0.0
        return np.asarray((away**2).sum(axis=0))

    def _of(self, config: Config) -> list[float]:
        return [_place(axis, read_value(config, name)) for name, axis in self._axes.items()]


def _place(axis: Axis, value: Value) -> float:
    return float(axis.index(value)) if isinstance(axis, ListedValues) else axis.place(value)


class TableSampler:
    """The rows of a table, each once: of curves that were recorded.

    "random" goes through them in an order drawn by the seed. Of the others each proposal becomes
    the nearest row that hasn't been tried: numbers by their place in the column's range,
    on a logarithmic scale where they are positive and span more than two decades, the rest by
    equality. What a model leaves to chance is the next in the random order.

    Raises:
        UsageError: no such kind, or it needs hyperparameters and the rows have none.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        kind: str = "random",
        seed: int = 0,
        most: int | None = None,
        *,
        mode: Mode = "max",
        random_fraction: float = 0.0,
    ) -> None:
        self._rows = tuple(trials)
        self._most = len(self._rows) if most is None else min(most, len(self._rows))
        # The model of "adaptive" is `Adaptive`'s.
        self._kind = "random" if sampler_kind(kind) == ADAPTIVE else kind
        self._seed = seed
        if self._kind != "random" and not self.axes and self._rows:
            raise UsageError(
                f"the sampler {kind} needs the hyperparameters of each configuration; give a table "
                "of them (--configs), or take the sampler random"
            )
        self._order = np.random.default_rng(seed).permutation(len(self._rows)).tolist()
        self._free = np.ones(len(self._rows), dtype=bool)
        self._given = 0
        self._draws: RandomDraws | None = None
        self._chance = np.random.default_rng((seed, 1))
        self._learner = None
        if kind in MODEL_BASED and self.axes:
            self._learner = Learner(
                self.axes, kind, mode=mode, seed=seed, random_fraction=random_fraction
            )

    @cached_property
    def axes(self) -> Axes:
        """The columns; the random order, in which most runs go through a table, needs none."""
        return axes_of_rows([trial.config for trial in self._rows])

    def candidates(self) -> Sequence[Config]:
        return [trial.config for trial in self._rows]

    def take(self, candidate: int) -> Trial | None:
        """Return a row by its number; None where it has been tried, or none may be any more."""
        if self._given >= self._most or not self._free[candidate]:
            return None
        return self._begun(candidate)

    @cached_property
    def _places(self) -> Places:
        return Places(self.axes, [trial.config for trial in self._rows])

    def ask(self) -> Trial | None:
        """Return a row that hasn't been tried; None after the last."""
        if self._given >= self._most:
            return None
        wanted: Config | None = self._learner.propose() if self._learner else None
        if self._kind == "qmc":
            wanted = self._drawn()
        return self._begun(self._next_random() if wanted is None else self._nearest(wanted))

    def more(self, trials: int) -> int:
        """Let `trials` more rows be tried; returns how many that brings."""
        before = self._most
        self._most = min(self._most + trials, len(self._rows))
        return self._most - before

    def _drawn(self) -> Config:
        if self._draws is None:
            self._draws = RandomDraws(self.axes, self._kind, self._seed)
        return self._draws.ask()

    def _next_random(self) -> int:
        while not self._free[self._order[-1]]:
            self._order.pop()
        return int(self._order[-1])

    def _nearest(self, wanted: Config) -> int:
        gaps = self._places.gaps(wanted)
        return int(np.argmin(np.where(self._free, gaps, np.inf)))

    def _begun(self, row: int) -> Trial:
        self._free[row] = False
        self._given += 1
        trial = self._rows[row]
        if self._learner is not None:
            self._learner.begin(trial)
        return trial

    def explore(self, parent: Trial, *, inherit: bool = False) -> Trial | None:  # noqa: ARG002
        """Return the untried row nearest to a parent's configuration, perturbed; None if none.

        Raises:
            UsageError: the rows have no hyperparameters.
        """
        if not self.axes:
            raise UsageError(
                "population based training perturbs hyperparameters, and these curves have none; "
                "give a table of them (--configs), or take another strategy"
            )
        if self._given >= self._most:
            return None
        return self._begun(self._nearest(perturb(self.axes, parent.config, self._chance)))

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a row after an epoch; None where it failed."""
        if self._learner is not None:
            self._learner.tell(trial, epoch, value)

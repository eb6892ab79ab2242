"""Samplers of configurations: from a search space or from a given list.

They are Optuna's, by ask-and-tell. "random" and "qmc" (quasi-Monte-Carlo) spread over the space;
"tpe", "gp" and "cma-es" learn from results. CMA-ES takes only numbers: it draws labels at random.
"adaptive" is random here, and `Adaptive` adds its model. All are deterministic given their seed:
the same results lead to the same configurations.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cloudtune.errors import UsageError, nearest, quote
from cloudtune.experiment.search_space import Constant, Domain, Grid
from cloudtune.experiment.spaces import Space, sample
from cloudtune.model.trial import Trial
from cloudtune.plugins import Registry
from cloudtune.strategies.samplers.axes import axes_by_size, list_axes, perturb, pick_value
from cloudtune.strategies.samplers.learner import Learner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.model.trial import Mode
    from cloudtune.strategies.base import Sampler
    from cloudtune.strategies.samplers.axes import Axes, Config
    from cloudtune.strategies.samplers.optuna_models import RandomDraws

ADAPTIVE = "adaptive"
SAMPLERS = ("random", "qmc", "tpe", "gp", "cma-es", ADAPTIVE)
# The maximum number of configurations drawn for earlier runs to choose from.
POOL = 2048
# Candidates that a model ranks for each trial.
_POOL_EACH = 16
# So that the candidates aren't the very configurations that random search draws.
_OTHER_SEED = 2**32
MODEL_BASED = ("tpe", "gp", "cma-es")


class SamplerEntry(Protocol):
    """Builds a sampler that another package adds: of a search space, at most `most` trials."""

    def __call__(
        self, space: Mapping[str, Domain], *, mode: Mode, seed: int, most: int | None
    ) -> Sampler: ...


ADDED: Registry[SamplerEntry] = Registry("cloudtune.samplers", {})


def sampler_names() -> tuple[str, ...]:
    """Return the names of all samplers."""
    return (*SAMPLERS, *ADDED)


def sampler_kind(name: str) -> str:
    """Return the name of a sampler if there is one.

    Raises:
        UsageError: there isn't; the message suggests the nearest.
    """
    names = sampler_names()
    if name in names:
        return name
    raise UsageError(
        f"unknown sampler {quote(name)}; choose one of {', '.join(names)}.{nearest(name, names)}"
    )


class SpaceSampler:
    """New configurations of a search space, as trials t00, t01 and so on.

    As in `search_space.sample`, the grids are crossed and cycled through in order, the first one
    fastest, while the rest is sampled. A space of grids and constants alone ends after one cycle;
    any other ends only at `most` trials, and may repeat a configuration. `random_fraction` of the
    asks of a model-based sampler are random. The `first` configurations come before all others.

    Raises:
        UsageError: there is no sampler of that kind.
    """

    def __init__(
        self,
        space: Mapping[str, Domain],
        kind: str = "random",
        *,
        mode: Mode = "max",
        seed: int = 0,
        most: int | None = None,
        random_fraction: float = 0.0,
        first: Sequence[Config] = (),
    ) -> None:
        self._space = Space.of(space)
        self._first = first
        # The model of "adaptive" is `Adaptive`'s.
        self._kind = "random" if sampler_kind(kind) == ADAPTIVE else kind
        self._seed = seed
        self._axes = list_axes(self._space)
        self._digits = 2 if most is None else max(2, len(str(most - 1)))
        if self._space.is_listed:
            crossed = self._space.crossings
            most = crossed if most is None else min(most, crossed)
        self._most = math.inf if most is None else most
        self._given = self._from_grid = 0
        self._pool: Sequence[Config] | None = None
        self._draws: RandomDraws | None = None
        self._chance = np.random.default_rng((seed, 1))
        self._learner = None
        if kind in MODEL_BASED and self._axes:
            self._learner = Learner(
                self._axes,
                kind,
                mode=mode,
                seed=seed,
                random_fraction=random_fraction,
                space=self._space,
            )

    def ask(self) -> Trial | None:
        """Return a new configuration; None after the last."""
        if self._given >= self._most:
            return None
        if self._given < len(self._first):
            return self._begin_trial(self._first[self._given])
        crossing = self._crossing()
        sampled: Config | None = self._learner.propose(crossing) if self._learner else None
        if sampled is None:
            sampled = self._draw_config()
        values = {
            name: self._value(name, domain, sampled)
            for name, domain in self._space.items()
            if name in sampled or name not in self._axes
        }
        return self._begin_trial(self._space.config(values | crossing))

    def more(self, trials: int) -> int:
        """Add trials; return how many were added: grids end with their last crossing."""
        most = self._most + trials
        if self._space.is_listed:
            most = min(most, self._space.crossings)
        before = self._most
        self._most = max(self._most, most)
        return trials if math.isinf(before) else int(self._most - before)

    def _draw_config(self) -> Config:
        if all(isinstance(self._space[name], Grid) for name in self._axes):
            return {}
        if self._draws is None:
            from cloudtune.strategies.samplers.optuna_models import (  # noqa: PLC0415  Optuna takes long to load
                RandomDraws,
            )

            kind = self._kind if self._learner is None else "random"
            self._draws = RandomDraws(self._axes, kind, self._seed)
        return self._draws.ask()

    @staticmethod
    def _value(name: str, domain: Domain, sampled: Config) -> object:
        match domain:
            case Constant(value):
                return value
            case Grid(values):
                return values[0]  # its turn is the crossing's
            case _:
                return sampled[name] if name in sampled else _only(domain)

    def _crossing(self) -> dict[str, object]:
        self._from_grid += 1
        return {**self._space.crossing(self._from_grid - 1)}

    @property
    def has_grids(self) -> bool:
        """Whether some values are cycled through, so that none may be left out."""
        return any(isinstance(domain, Grid) for domain in self._space.values())

    @property
    def axes(self) -> Axes:
        """The axes of the search space, listed numbers by their size."""
        return axes_by_size(self._space)

    def candidates(self) -> Sequence[Config]:
        """Return many random configurations for a model to choose from; none with grids."""
        if self.has_grids:
            return ()
        if self._pool is None:
            count = int(min(POOL, _POOL_EACH * self._most))
            self._pool = sample(self._space, count, self._seed + _OTHER_SEED)
        return self._pool

    def take(self, candidate: int) -> Trial | None:
        """Return a candidate as a trial; None if there may be no more trials."""
        if self._given >= self._most:
            return None
        return self._begin_trial(self.candidates()[candidate])

    def explore(self, parent: Trial, *, inherit: bool = False) -> Trial | None:
        """Return a trial whose configuration is a parent's, perturbed; None after the last.

        The parent's branches and choices of mutators stay, because its checkpoint belongs to them.
        With `inherit` the choices of mutators change like other parameters, even to other branches,
        whose parameters are then drawn.
        """
        if self._given >= self._most:
            return None
        values = self._space.active_values(parent.config)
        axes = {
            name: axis
            for name, axis in self._axes.items()
            if self._space.active(name, values) and self._changes(name, inherit=inherit)
        }
        changed = perturb(axes, values, self._chance)
        config = self._fill_branches(changed) if inherit else changed
        return self._begin_trial(self._space.config(config))

    def _changes(self, name: str, *, inherit: bool) -> bool:
        if name in self._space.of_models:
            return inherit
        return not self._space.is_branching(name)

    def _fill_branches(self, values: Config) -> Config:
        """Return values with those of branches just taken."""
        filled = dict(values)
        for name, domain in self._space.items():
            if name not in filled and self._space.active(name, filled):
                axis = self._axes.get(name)
                new = {} if axis is None else {name: pick_value(axis, self._chance.random())}
                filled[name] = self._value(name, domain, new)
        return filled

    def _begin_trial(self, config: Mapping[str, object]) -> Trial:
        trial = Trial(f"t{self._given:0{self._digits}d}", config)
        self._given += 1
        if self._learner is not None:
            self._learner.begin(self._by_axes(trial))
        return trial

    def _by_axes(self, trial: Trial) -> Trial:
        """Return a trial as the model sees it: with the branches that it takes."""
        return replace(trial, config=self._space.active_values(trial.config))

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        if self._learner is not None:
            self._learner.tell(self._by_axes(trial), epoch, value)


def _only(domain: Domain) -> object:
    return domain.low if hasattr(domain, "low") else domain.values[0]  # type: ignore[union-attr]

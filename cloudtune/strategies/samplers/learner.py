"""What a model-based sampler learns from: the results at the highest epoch that has enough."""

from __future__ import annotations

import math
import random
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.experiment.spaces import Space
    from cloudtune.model.trial import Mode, Trial, TrialId
    from cloudtune.strategies.samplers.axes import Axes, Config
    from cloudtune.strategies.samplers.optuna_models import OptunaModel

_SEEDS = 2**32
NONE: Mapping[str, object] = MappingProxyType({})


class Learner:
    """A model of the results at the highest epoch at which enough trials have reported.

    Enough means two more than there are hyperparameters. A failed trial counts as worse than the
    worst at every epoch that it didn't reach, but doesn't count towards enough. A share of
    `random_fraction` of the asks is answered without the model.
    Source: Falkner et al., "BOHB" (ICML 2018), section 3.2 and Algorithm 2.

    Unlike there, a trial that hasn't reached the epoch counts too: otherwise the model would never
    learn that it was bad, and keep proposing what is always cut earlier. For TPE it is a running
    trial, which counts as bad; for a GP, which would expect an average result, it is as bad as the
    worst.
    """

    def __init__(
        self,
        axes: Axes,
        kind: str,
        *,
        mode: Mode,
        seed: int,
        random_fraction: float,
        space: Space | None = None,
    ) -> None:
        self._space = space
        self._axes = axes
        self._kind = kind
        self._mode = mode
        self._seed = seed
        self._chance = random.Random(f"{seed}/random fraction")  # noqa: S311  not for secrets
        self._random_fraction = random_fraction
        self._enough = len(axes) + 2
        self._level = 0
        self._model: OptunaModel | None = None
        self._values: dict[int, dict[TrialId, float]] = {}  # by epoch, from the level on
        self._configs: dict[TrialId, Config] = {}
        self._heard: dict[TrialId, None] = {}
        self._failed: dict[TrialId, None] = {}

    def propose(self, given: Mapping[str, object] = NONE) -> dict[str, object] | None:
        """Return the model's proposal, with the values in `given`; None if chance decides."""
        if self._random_fraction and self._chance.random() < self._random_fraction:
            return None
        self._climb()
        return None if self._model is None else self._model.ask(given)

    def begin(self, trial: Trial) -> None:
        self._configs[trial.id] = trial.config
        if self._model is not None:
            self._model.begin(trial.id, trial.config)

    def tell(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Learn the metric of a trial after an epoch; it failed if that isn't finite."""
        self._configs.setdefault(trial.id, trial.config)
        self._heard[trial.id] = None
        if value is None or not math.isfinite(value):
            self._fail(trial.id)
        elif epoch >= self._level and trial.id not in self._values.setdefault(epoch, {}):
            self._values[epoch][trial.id] = value
            if epoch == self._level and self._model is not None:
                self._model.learn(trial.id, trial.config, value)

    def _fail(self, trial: TrialId) -> None:
        if trial in self._failed:
            return
        self._failed[trial] = None
        if self._model is not None:
            values = self._values[self._level]
            if trial not in values:
                self._model.learn(trial, self._configs[trial], self._worse(values))

    def _worse(self, values: Mapping[TrialId, float]) -> float:
        """Return a value as far below the worst as that is below the best."""
        low = min(values.values())
        high = max(values.values())
        gap = high - low if 0 < high - low < math.inf else 1.0
        return low - gap if self._mode == "max" else high + gap

    def _climb(self) -> None:
        """Fit the model to a higher epoch, once that has enough results."""
        levels = [e for e, values in self._values.items() if len(values) >= self._enough]
        level = max(levels, default=0)
        if level == 0 or (level <= self._level and self._kind != "gp"):
            return  # a GP is fitted again each time; and what counts as the worst may have changed
        self._level = level = max(level, self._level)
        self._values = {epoch: values for epoch, values in self._values.items() if epoch >= level}
        self._model = self._make_model(self._values[level])

    def _make_model(self, values: Mapping[TrialId, float]) -> OptunaModel:
        from cloudtune.strategies.samplers.optuna_models import (  # noqa: PLC0415  Optuna takes long to load
            OptunaModel,
        )

        seed = (self._seed * 1_000_003 + self._level) % _SEEDS
        before = self._model if self._kind == "gp" else None
        model = OptunaModel(self._axes, self._kind, self._mode, seed, before, space=self._space)
        for trial, value in values.items():
            model.learn(trial, self._configs[trial], value)
        for trial in self._failed:
            if trial not in values:
                model.learn(trial, self._configs[trial], self._worse(values))
        worst = min(values.values()) if self._mode == "max" else max(values.values())
        for trial, config in self._configs.items():
            if trial in values or trial in self._failed:
                continue
            if self._kind == "gp" and trial in self._heard:
                model.learn(trial, config, worst)
            else:
                model.begin(trial, config)
        return model

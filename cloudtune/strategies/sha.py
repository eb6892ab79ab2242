"""Synchronous successive halving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.plan import Stage
from cloudtune.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.trial import Mode, TrialId


@dataclass(frozen=True)
class SuccessiveHalving:
    """Train all trials to the first rung, keep the best 1/eta, and so on to `max_epochs`.

    Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
    Optimization" (AISTATS 2016). Rungs stand at min_epochs * eta**k and at max_epochs; at least
    one trial always goes on.
    """

    trials: int
    min_epochs: int
    max_epochs: int
    eta: int
    mode: Mode

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage per rung."""
        found: list[Stage] = []
        trials, begin, end = self.trials, 0, self.min_epochs
        while begin < self.max_epochs:
            end = min(end, self.max_epochs)
            found.append(Stage(trials, begin, end))
            trials, begin, end = max(1, trials // self.eta), end, end * self.eta
        return tuple(found)

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the best of the rung, as many as the next stage takes; ties go by trial id."""
        stages = self.stages()
        if stage + 1 >= len(stages):
            return ()
        ranked = sorted(results, key=lambda trial: (rank_key(self.mode, results[trial]), trial))
        return tuple(ranked[: stages[stage + 1].trials])

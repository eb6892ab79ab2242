"""SEER's schedule, reconstructed with barriers: all trials wait for each other at every rung."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtune.model.plans import Stage
from cloudtune.model.trial import rank_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.model.trial import Mode, TrialId


@dataclass(frozen=True)
class SeerBarrier:
    """Sequential elimination: the forecast keeps 1/eta (rounded up) at each rung, to `max_epochs`.

    A reconstruction, not the paper's algorithm: only the abstract of SEER (SoCC 2021) is public.
    Rungs stand at min_epochs * eta**k and at max_epochs. How many really go on from a rung is
    decided there, by a plan for the rest (`ReplanningPolicy`); `promote` is for a run without.
    """

    trials: int
    min_epochs: int
    max_epochs: int
    eta: int
    mode: Mode

    def stages(self) -> tuple[Stage, ...]:
        return self.rest(self.trials, 0, self.max_epochs)

    def rest(self, trials: int, begin: int, end: int) -> tuple[Stage, ...]:
        """Return the stages that take `trials` trials, all at epoch `begin`, to epoch `end`."""
        stages: list[Stage] = []
        rung = self.min_epochs
        while begin < end:
            while rung <= begin:
                rung *= self.eta
            stages.append(Stage(trials, begin, min(rung, end)))
            trials = math.ceil(trials / self.eta)
            begin = min(rung, end)
        return tuple(stages)

    def ranked(self, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return all trials of a rung, the best first; ties go by trial id."""
        return tuple(sorted(results, key=lambda name: (rank_key(self.mode, results[name]), name)))

    def promote(self, stage: int, results: Mapping[TrialId, float | None]) -> tuple[TrialId, ...]:
        """Return the best of the rung, as many as the next stage of the forecast takes."""
        stages = self.stages()
        return self.ranked(results)[: stages[stage + 1].trials] if stage + 1 < len(stages) else ()

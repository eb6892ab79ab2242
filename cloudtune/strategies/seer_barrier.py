"""SEER's schedule, reconstructed with barriers: all trials wait for each other at every rung."""

import math
from dataclasses import dataclass

from cloudtune.model.plans import Stage
from cloudtune.strategies.successive_halving import SuccessiveHalving


@dataclass(frozen=True)
class SeerBarrier(SuccessiveHalving):
    """Sequential elimination: the forecast keeps 1/eta (rounded up) at each rung, to `max_epochs`.

    A reconstruction, not the paper's algorithm: only the abstract of SEER (SoCC 2021) is public.
    Rungs are at min_epochs * eta**k and at max_epochs. How many trials really continue from a rung
    is decided there, by a plan for the rest (`SeerSchedule`); `promote` is for runs without a plan.
    """

    def stages(self) -> tuple[Stage, ...]:
        return self.rest(self.trials, 0, self.max_epochs)

    def rest(self, trials: int, begin: int, end: int) -> tuple[Stage, ...]:
        """Return the stages that train `trials` trials from epoch `begin` to epoch `end`."""
        stages: list[Stage] = []
        rung = self.min_epochs
        while begin < end:
            while rung <= begin:
                rung *= self.eta
            stages.append(Stage(trials, begin, min(rung, end)))
            trials = math.ceil(trials / self.eta)
            begin = min(rung, end)
        return tuple(stages)

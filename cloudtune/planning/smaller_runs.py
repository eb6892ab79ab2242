"""A smaller run that is played in place of a large one for its forecast.

A run of $100 has some 40,000 events, and a forecast plays many runs. A search does much the same
with a part of the money on a part of the instances: it begins a part of the trials.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from cloudtune.experiment import Experiment
from cloudtune.model.plans import Forecast, Limits, Rentable
from cloudtune.planning.stages import Question
from cloudtune.policy.registry import SEARCHES
from cloudtune.strategies.hyperband import bracket_shapes
from cloudtune.strategies.offers import by_worth, means_within
from cloudtune.strategies.rungs import rung_epochs
from cloudtune.strategies.seer_rules import APART

# About how many events a played run should have.
_EVENTS = 500
# A smaller run has at least so many instances of the best offer.
_INSTANCES = 2
# Trials report at least so often in a whole training.
_REPORTS = 8
# Strategies that begin trials as long as there are GPUs, and so begin a part of them on a part.
_DIVISIBLE = frozenset({*SEARCHES, "asha", "asha-stopping", "random"})
# Strategies that may stop or change a trial at any epoch.
_EVERY_EPOCH = frozenset({"median", "pbt", "hypersched", "hypersched-patient"})


@dataclass(frozen=True)
class SmallerRun:
    """How much smaller a run is than the one that it stands for.

    It has the `parts`-th part of the instances, dollars and trials. Between rungs its trials report
    every `step` epochs. At 1 it is the whole run.
    """

    parts: int = 1
    step: int = 1

    @classmethod
    def of(cls, question: Question, rentables: Sequence[Rentable]) -> Self:
        """Return the run to play for a question, with about `_EVENTS` events if it can be."""
        experiment = question.problem.experiment
        strategy = experiment.strategy_name
        limits = question.limits
        last = experiment.span.max
        left = None if limits.deadline is None else limits.deadline - question.first_request
        most = question.problem.max_instances
        means = means_within(Limits(left, limits.budget), most, last)
        if strategy in _EVERY_EPOCH or (left is None and limits.budget is None):
            return cls()
        best = by_worth(rentables, means)[0]
        instances = best.most
        epochs = math.inf
        if left is not None:
            instances = means.buy(best).instances
            epochs = instances * left / best.epoch_instance_seconds  # however far each trial gets
        elif best.epoch_dollars > 0:
            assert limits.budget is not None
            epochs = limits.budget / best.epoch_dollars
        if experiment.trials is not None:
            epochs = min(epochs, experiment.trials * last)
        if math.isinf(epochs):
            return cls()
        step = max(1, min(round(epochs / _EVENTS), last // _REPORTS))
        times = epochs / step / _EVENTS
        if strategy not in _DIVISIBLE or times <= 1:
            return cls(step=step)
        # A power of two divides most bounds of a fleet.
        parts = 1 << max(1, min(round(times), instances // _INSTANCES)).bit_length() - 1
        return cls(parts, step)

    def question(self, question: Question) -> Question:
        """Return the question of the smaller run; no trial counts as stalled in it."""
        problem = question.problem
        experiment = problem.experiment
        cloud = experiment.cloud
        charges = experiment.charges
        trial = experiment.trial
        budget = question.limits.budget
        trials = experiment.trials
        concurrent = experiment.strategy.max_concurrent
        quotas = {name: self._part(vcpus) for name, vcpus in cloud.vcpu_quotas.items()}
        hourly = {
            name: None if value is None else value / self.parts
            for name, value in (("per_hour", charges.per_hour), ("head", charges.head))
        }
        changes: dict[str, object] = {
            "trials": None if trials is None else max(1, round(trials / self.parts)),
            "cloud": cloud.model_copy(
                update={"max_instances": self._part(problem.max_instances), "vcpu_quotas": quotas}
            ),
            "charges": charges.model_copy(update=hourly),
            "trial": trial.model_copy(
                update={"stall": trial.stall.model_copy(update={"factor": math.inf})}
            ),
        }
        if concurrent is not None:
            changes["strategy"] = experiment.strategy.model_copy(
                update={"max_concurrent": self._part(concurrent)}
            )
        smaller = replace(problem, experiment=experiment.model_copy(update=changes))
        limits = replace(question.limits, budget=None if budget is None else budget / self.parts)
        return replace(question, problem=smaller, limits=limits)

    def rentable(self, rentable: Rentable) -> Rentable:
        """Return a rentable as the smaller run may rent it."""
        return replace(rentable, most=self._part(rentable.most))

    def whole(self, forecast: Forecast) -> Forecast:
        """Return the forecast of the whole run from that of the smaller one."""
        return replace(
            forecast,
            dollars=forecast.dollars.scaled(self.parts),
            trials=forecast.trials.scaled(self.parts),
            gpu_hours=forecast.gpu_hours.scaled(self.parts),
            instances=forecast.instances.scaled(self.parts),
        )

    def reports(self, experiment: Experiment) -> tuple[int, ...]:
        """Return the epochs at which trials report: every `step`, and all possible rungs.

        The other reports change nothing, and most events would be theirs.
        """
        first = experiment.span.min
        last = experiment.span.max
        if self.step == 1:
            return ()
        factor = APART if experiment.strategy_name in SEARCHES else experiment.eta
        epochs = {1, *range(last, 0, -self.step), *rung_epochs(first, last, factor)}
        for _, rungs in bracket_shapes(first, last, factor):
            epochs.update(rungs)
        return tuple(sorted(epochs))

    def _part(self, count: int) -> int:
        return max(1, count // self.parts)

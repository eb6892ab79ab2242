"""A job as a run begins it: everything that the policy is made from, so that it can be remade.

The header of a ledger is a job. A fresh policy made from it and fed the ledger's events decides
as the recorded one did: that is how a run is reported, checked and one day resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.codec import decode, encode
from cloudtune.experiment import Experiment
from cloudtune.plan import Limits, Plan, Rentable
from cloudtune.policy import Brakes, Metric, RunPolicy
from cloudtune.search import sample
from cloudtune.strategies.sha import SuccessiveHalving
from cloudtune.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.scaling import ScalingProfile
    from cloudtune.strategies.base import StagedStrategy


@dataclass(frozen=True)
class Job:
    """What to run, by which plan, within which limits; `began` is its time zero (Unix time).

    `rentables` are those of the plan's offers.
    """

    run: str
    experiment: Experiment
    plan: Plan
    rentables: tuple[Rentable, ...]
    limits: Limits
    began: float
    paced: bool
    price_source: str

    def policy(self) -> RunPolicy:
        """Return a fresh policy for the job; equal jobs give policies that decide equally."""
        metric = self.experiment.metric
        return RunPolicy(
            trials=trials(self.experiment),
            strategy=strategy(self.experiment),
            plan=self.plan,
            metric=Metric(metric.name, metric.mode),
            limits=self.limits,
            brakes=Brakes(drain=drain_seconds(*(each.profile for each in self.rentables))),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the job as JSON."""
        return {
            "run": self.run,
            "experiment": self.experiment.to_json(),
            "plan": encode(self.plan),
            "rentables": encode(self.rentables),
            "limits": encode(self.limits),
            "began": self.began,
            "paced": self.paced,
            "price_source": self.price_source,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Return the job that `to_json` was given."""
        return cls(
            run=data["run"],
            experiment=Experiment.from_json(data["experiment"]),
            plan=decode(Plan, data["plan"]),
            rentables=tuple(decode(Rentable, each) for each in data["rentables"]),
            limits=decode(Limits, data["limits"]),
            began=data["began"],
            paced=data["paced"],
            price_source=data["price_source"],
        )


def trials(experiment: Experiment) -> tuple[Trial, ...]:
    """Return the trials of an experiment: as many configurations as it asks for, by its seed."""
    configs = sample(experiment.space, experiment.trials, experiment.seed)
    digits = max(2, len(str(len(configs) - 1)))
    return tuple(Trial(f"t{n:0{digits}d}", config) for n, config in enumerate(configs))


def strategy(experiment: Experiment) -> StagedStrategy:
    """Return the strategy that an experiment names."""
    return SuccessiveHalving(
        trials=len(trials(experiment)),
        min_epochs=experiment.epochs.min,
        max_epochs=experiment.epochs.max,
        eta=experiment.eta,
        mode=experiment.metric.mode,
    )


def drain_seconds(*profiles: ScalingProfile) -> float:
    """Return what giving everything back may take: the longest release, with room to spare."""
    return 3.0 + 2.0 * max(profile.release.high for profile in profiles)

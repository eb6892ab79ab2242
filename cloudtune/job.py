"""A job as a run begins it: everything that the policy is made from, so that it can be remade.

The header of a ledger is a job. A fresh policy made from it and fed the ledger's events decides
as the recorded one did: that is how a run is reported, checked and one day resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cloudtune.codec import decode, encode
from cloudtune.elastic import ElasticPolicy
from cloudtune.elastic_plan import ElasticPlan
from cloudtune.experiment import STAGED, Experiment
from cloudtune.plan import Charges, Limits, Plan, Rentable
from cloudtune.planners.exact import ExactPlanner
from cloudtune.planners.greedy import GreedyPlanner
from cloudtune.planners.naive import NaivePlanner
from cloudtune.planners.seer import Reserve
from cloudtune.planners.static import StaticPlanner
from cloudtune.policy import Brakes, Metric, RunPolicy
from cloudtune.resolving import ResolvingPolicy
from cloudtune.samplers import SAMPLERS, SpaceSampler
from cloudtune.search import sample
from cloudtune.strategies.sha import SuccessiveHalving
from cloudtune.tactics import (
    ALLOCATORS,
    FLEETS,
    STRATEGIES,
    Setup,
    Tactic,
    elastic_policy,
    sampler_for,
    tactic,
)
from cloudtune.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudtune.catalog import Offer
    from cloudtune.plan import Planner
    from cloudtune.scaling import ScalingProfile
    from cloudtune.strategies.base import Sampler, StagedStrategy

_PLANNERS: Mapping[str, Planner] = {
    planner.name: planner
    for planner in (ExactPlanner(), GreedyPlanner(), NaivePlanner(), StaticPlanner())
}
JobPolicy: TypeAlias = RunPolicy | ElasticPolicy
"""What carries a job out: by a plan of stages, or deciding as results come in."""


@dataclass(frozen=True)
class Job:
    """What to run, by which plan, within which limits; `began` is its time zero (Unix time).

    `rentables` are those of the plan's offers, `standins` what else may be rented where the cloud
    refuses these. `zones` are those in which an offer without one can be asked for.
    """

    run: str
    experiment: Experiment
    plan: Plan | ElasticPlan
    rentables: tuple[Rentable, ...]
    limits: Limits
    began: float
    paced: bool
    price_source: str
    standins: tuple[Rentable, ...] = ()
    zones: tuple[str, ...] = ()

    def policy(self) -> JobPolicy:
        """Return a fresh policy for the job; equal jobs give policies that decide equally."""
        if isinstance(self.plan, ElasticPlan):
            return elastic(self.experiment, self.rentables, self.limits, zones=self.zones)
        metric, rentables = self.experiment.metric, (*self.rentables, *self.standins)
        own = brakes(self.experiment, rentables)
        return ResolvingPolicy(
            trials=trials(self.experiment),
            strategy=strategy(self.experiment),
            plan=self.plan,
            metric=Metric(metric.name, metric.mode),
            limits=self.limits,
            brakes=own,
            zones=self.zones,
            rentables=rentables,
            reserve=Reserve(own.tick + own.drain),
            planner=_PLANNERS.get(self.plan.planner, ExactPlanner()),
        )

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer that may be asked for."""
        known = (each.offer for each in (*self.rentables, *self.standins))
        return tuple(dict.fromkeys((*self.plan.offers, *known)))

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
            "standins": encode(self.standins),
            "zones": list(self.zones),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Return the job that `to_json` was given."""
        experiment = Experiment.from_json(data["experiment"])
        staged, plan = experiment.strategy.staged, data["plan"]
        return cls(
            run=data["run"],
            experiment=experiment,
            plan=decode(Plan, plan) if staged else decode(ElasticPlan, plan),
            rentables=tuple(decode(Rentable, each) for each in data["rentables"]),
            limits=decode(Limits, data["limits"]),
            began=data["began"],
            paced=data["paced"],
            price_source=data["price_source"],
            standins=tuple(decode(Rentable, each) for each in data.get("standins", ())),
            zones=tuple(data.get("zones", ())),
        )


def choices() -> dict[str, tuple[str, ...]]:
    """Return the names that the fields of an experiment's strategy may have."""
    return {
        "name": tuple(dict.fromkeys((*sorted(STAGED), *STRATEGIES))),
        "sampler": tuple(SAMPLERS),
        "allocator": tuple(ALLOCATORS),
        "fleet": tuple(FLEETS),
    }


def trials(experiment: Experiment) -> tuple[Trial, ...]:
    """Return the trials of an experiment: as many configurations as it asks for, by its seed."""
    configs = sample(experiment.space, experiment.trials, experiment.seed)
    digits = max(2, len(str(len(configs) - 1)))
    return tuple(Trial(f"t{n:0{digits}d}", config) for n, config in enumerate(configs))


# ---- planned beforehand --------------------------------------------------------------------------


def strategy(experiment: Experiment) -> StagedStrategy:
    """Return the strategy that an experiment names, whose stages are planned beforehand."""
    return SuccessiveHalving(
        trials=len(trials(experiment)),
        min_epochs=experiment.epochs.min,
        max_epochs=experiment.epochs.max,
        eta=experiment.eta,
        mode=experiment.metric.mode,
    )


# ---- decided as results come in ------------------------------------------------------------------


def elastic(
    experiment: Experiment,
    rentables: Sequence[Rentable],
    limits: Limits,
    *,
    zones: Sequence[str] = (),
    heartbeat: bool = True,
    checked: bool = True,
) -> ElasticPolicy:
    """Return a fresh policy for an experiment whose strategy decides as results come in.

    Raises:
        UsageError: no strategy, sampler, allocator or fleet rule of such a name.
    """
    setup, metric = setup_of(experiment, rentables, limits), experiment.metric
    chosen = experiment.strategy
    return elastic_policy(
        setup,
        tactic_of(experiment, setup),
        Metric(metric.name, metric.mode),
        brakes(experiment, rentables),
        charges=charges_of(experiment),
        vcpu_quotas=experiment.cloud.vcpu_quotas,
        most_concurrent=chosen.max_concurrent,
        target=chosen.target,
        zones=zones,
        heartbeat=heartbeat,
        checked=checked,
    )


def setup_of(experiment: Experiment, rentables: Sequence[Rentable], limits: Limits) -> Setup:
    """Return what the strategy, the allocator and the fleet rule of an experiment are made from."""
    return Setup(
        rentables=tuple(rentables),
        max_instances=experiment.cloud.max_instances,
        limits=limits,
        mode=experiment.metric.mode,
        min_epochs=experiment.epochs.min,
        max_epochs=experiment.epochs.max,
        eta=experiment.eta,
        trials=experiment.trials,
        seed=experiment.seed,
    )


def tactic_of(experiment: Experiment, setup: Setup) -> Tactic:
    """Return the three choices of an experiment, made anew.

    Raises:
        UsageError: there is no choice of such a name.
    """
    chosen = experiment.strategy
    sampler = sampler_of(experiment)
    return tactic(setup, sampler, chosen.name, chosen.allocator or "", chosen.fleet or "")


def sampler_of(experiment: Experiment) -> Sampler:
    """Return what gives an experiment's trials, one after the other; at most as many as it says.

    Raises:
        UsageError: there is none of such a name, or its strategy can do nothing with it.
    """
    kind, random_fraction = _sampler(experiment)
    if kind == "random":
        return Drawn(experiment)
    return SpaceSampler(
        experiment.space,
        kind,
        mode=experiment.metric.mode,
        seed=experiment.seed,
        most=experiment.trials,
        random_fraction=random_fraction,
    )


def sampler_name(experiment: Experiment) -> str:
    """Return the name of the sampler that an experiment asks for, or that suits its strategy.

    Raises:
        UsageError: there is none of such a name, or its strategy can do nothing with it.
    """
    return _sampler(experiment)[0]


def _sampler(experiment: Experiment) -> tuple[str, float]:
    return sampler_for(experiment.strategy.name, experiment.strategy.sampler or "")


class Drawn(SpaceSampler):
    """The configurations that a run planned beforehand would try as well: the random sampler."""

    def __init__(self, experiment: Experiment) -> None:
        space, most, seed = experiment.space, experiment.trials, experiment.seed
        super().__init__(space, "random", mode=experiment.metric.mode, seed=seed, most=most)
        self._drawn_before = iter(sample(space, most, seed))

    def ask(self) -> Trial | None:
        """Return the next one; None after the last."""
        config = None if self._given >= self._most else next(self._drawn_before, None)
        return None if config is None else self._begun(config)


def charges_of(experiment: Experiment) -> Charges:
    """Return what an experiment's run costs besides its instances."""
    charges = experiment.charges
    return Charges(charges.per_launch or 0.0, (charges.per_hour or 0.0) / 3600.0)


def brakes(experiment: Experiment, rentables: Sequence[Rentable]) -> Brakes:
    """Return how a job on these keeps its limits, and how long it leaves a dry pool alone."""
    drain, avoid = drain_seconds(*(each.profile for each in rentables)), experiment.cloud.avoid
    return Brakes(drain=drain) if avoid is None else Brakes(drain=drain, avoid=avoid)


def drain_seconds(*profiles: ScalingProfile) -> float:
    """Return what giving everything back may take: the longest release, with room to spare."""
    return 3.0 + 2.0 * max(profile.release.high for profile in profiles)

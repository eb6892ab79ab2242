"""A job: everything that a run's policy is built from, so that it can be rebuilt.

The header of a ledger is a job. A fresh policy built from it and fed the ledger's events decides as
the recorded one did. That is how a run is reported, checked and resumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cloudtune.clock import utc_date
from cloudtune.engine.ledger import DAMAGED, read_header
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.spaces import sample
from cloudtune.infra.provider import find_provider
from cloudtune.model.catalog import Offer
from cloudtune.model.plans import BY_PLAN, Charges, Limits, Plan, Rentable, RunPlan
from cloudtune.model.scaling import Identity, ScalingProfile
from cloudtune.model.serialization import decode, encode
from cloudtune.model.trial import Trial
from cloudtune.policy import registry
from cloudtune.policy.base import Brakes, Metric, TrialRules, drain_seconds
from cloudtune.policy.context import BuildContext
from cloudtune.policy.run import RunPolicy
from cloudtune.profiles.provenance import Basis, basis
from cloudtune.strategies.base import Sampler
from cloudtune.strategies.samplers.adaptive import Adaptive
from cloudtune.strategies.samplers.sampler import (
    ADAPTIVE,
    ADDED,
    MODEL_BASED,
    POOL,
    SpaceSampler,
    sampler_names,
)

# The maximum number of trials in a search for what the limits allow.
MAX_TRIALS = 4096
# Configurations drawn at once if the number of trials isn't set.
_FIRST_DRAWS = 64
# An instance that takes this many times as long to join as measured is returned.
_SLOW_BOOT = 2.0


@dataclass(frozen=True)
class Job:
    """What to run, by which plan, within which limits; `began` is its time zero (Unix time).

    `rentables` are those of the plan's offers, `standins` what else may be rented if the cloud
    refuses them. `zones` are where to request an offer that names no zone. `measuring` are the
    dollars spent on measuring the script before, which the limits don't include. `script_hash` is
    the SHA-256 of the training script, "" if unknown; `identity` covers all that is trained, and is
    None in jobs of versions before 0.3.
    """

    run: str
    experiment: Experiment
    plan: RunPlan
    rentables: tuple[Rentable, ...]
    limits: Limits
    began: float
    paced: bool
    price_source: str
    standins: tuple[Rentable, ...] = ()
    zones: tuple[str, ...] = ()
    measuring: float = 0.0
    script_hash: str = ""
    identity: Identity | None = None

    def policy(self, *, heartbeat: bool = True, checked: bool = True) -> RunPolicy:
        """Return a fresh policy for the job; policies of equal jobs decide equally.

        `heartbeat` and `checked` are `RunPolicy`'s.
        """
        return make_policy(
            self.experiment,
            (*self.rentables, *self.standins),
            self.limits,
            self.plan.staged,
            zones=self.zones,
            heartbeat=heartbeat,
            checked=checked,
        )

    @property
    def offers(self) -> tuple[Offer, ...]:
        others = (rentable.offer for rentable in (*self.rentables, *self.standins))
        return tuple(dict.fromkeys((*self.plan.offers, *others)))

    @property
    def profiles(self) -> tuple[ScalingProfile, ...]:
        """The profiles of the script on all rentables, those of the plan first."""
        return tuple(rentable.profile for rentable in (*self.rentables, *self.standins))

    def to_json(self) -> dict[str, Any]:
        return encode(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Job":
        """Return the job that `to_json` encoded; `data` may have other fields too."""
        return decode(
            cls, {field.name: data[field.name] for field in fields(cls) if field.name in data}
        )


def job_of_ledger(path: Path) -> Job:
    """Return the job in the header of a ledger.

    Raises:
        CloudtuneError: not a ledger of a version that this program reads, or a damaged one.
    """
    header = read_header(path)
    try:
        job = Job.from_json(header)
        job.policy()
    except (*DAMAGED, CloudtuneError) as error:
        what = (str(error) or type(error).__name__).splitlines()[0]
        raise CloudtuneError(f"{path}:1: a damaged header, of no job ({what})") from None
    return job


def choices() -> dict[str, tuple[str, ...]]:
    """Return the names that the fields of an experiment's strategy may have."""
    return {
        "name": tuple(registry.STRATEGIES),
        "sampler": sampler_names(),
        "allocator": (*registry.ALLOCATORS, BY_PLAN, registry.SEER),
        "fleet": (*registry.FLEETS, BY_PLAN, registry.SEER),
    }


def max_trials(experiment: Experiment) -> int | None:
    """Return how many trials a run may begin; None if only its limits end it.

    Strategies with planned stages, and populations, need a number: that of one bracket if the
    experiment has none, or as many as possible if the plan searches for the number.
    """
    name = experiment.strategy_name
    if experiment.trials is not None or not (registry.has_stages(name) or name == "pbt"):
        return experiment.trials
    return MAX_TRIALS if registry.explores(name) else experiment.fixed_trials


def trials(experiment: Experiment) -> tuple[Trial, ...]:
    """Return the trials of an experiment: its number of configurations, by its seed."""
    count = max_trials(experiment) or experiment.fixed_trials
    configs = _configs(experiment, count)
    digits = max(2, len(str(len(configs) - 1)))
    return tuple(Trial(f"t{n:0{digits}d}", config) for n, config in enumerate(configs))


def _configs(experiment: Experiment, count: int) -> Sequence[Mapping[str, object]]:
    """Return `count` configurations, the first ones first; grids may have fewer."""
    first = experiment.first_configs
    drawn = sample(experiment.space, count, experiment.seed)
    return [*first, *(config for config in drawn if config not in first)][:count]


def make_basis(
    experiment: Experiment, rentables: Sequence[Rentable], day: str | None = None
) -> Basis:
    """Return the origin of the times and prices of an experiment's runs, as of a day (today)."""
    profiles = (rentable.profile for rentable in rentables)
    paced = find_provider(experiment.cloud.provider).paced
    return basis(profiles, day or utc_date(), paced=paced)


def read_choice(experiment: Experiment) -> registry.Choice:
    """Return the names of an experiment's strategy, allocator and fleet rule.

    Raises:
        UsageError: a name is unknown, or they can't be combined.
    """
    asked = experiment.strategy
    choice = registry.chosen(experiment.strategy_name, asked.allocator or "", asked.fleet or "")
    if asked.rules.model_fields_set and not choice.has_rules:
        raise UsageError(
            f"strategy.rules are HyperSched's, and {choice.strategy} with the {choice.allocator} "
            "allocator has none of it; leave them out"
        )
    return choice


def make_policy(
    experiment: Experiment,
    rentables: Sequence[Rentable],
    limits: Limits,
    plan: Plan | None = None,
    *,
    zones: Sequence[str] = (),
    heartbeat: bool = True,
    checked: bool = True,
    learns: bool = True,
    stands_for: float = 1.0,
) -> RunPolicy:
    """Return a fresh policy for an experiment; `plan` is set if its choices follow one.

    `learns`: whether a model-based sampler uses its model; otherwise it draws at random. The run is
    played in place of one `stands_for` times as large.

    Raises:
        UsageError: a strategy, sampler, allocator or fleet rule is unknown.
    """
    context = replace(make_context(experiment, rentables, limits), stands_for=stands_for)
    metric = experiment.metric
    own = brakes(experiment, rentables)
    return registry.run_policy(
        context,
        registry.components(
            context, make_sampler(experiment, learns=learns), read_choice(experiment), own, plan
        ),
        Metric(metric.name, metric.mode),
        own,
        charges=read_charges(experiment),
        vcpu_quotas=experiment.cloud.vcpu_quotas,
        zones=zones,
        shares_gpus=may_share_gpus(experiment),
        max_concurrent=experiment.strategy.max_concurrent,
        target=experiment.strategy.target,
        rules=read_rules(experiment),
        heartbeat=heartbeat,
        checked=checked,
    )


def may_share_gpus(experiment: Experiment) -> bool:
    """Whether the run finds out by itself how many trials to train on a GPU.

    A plan of stages goes by what was measured, and some allocators give each trial whole GPUs.
    """
    choice = read_choice(experiment)
    return not (choice.planned or choice.whole_gpus or experiment.trial.gpus.min)


def make_context(
    experiment: Experiment, rentables: Sequence[Rentable], limits: Limits
) -> BuildContext:
    """Return the context from which an experiment's strategy, allocator and fleet are built."""
    return BuildContext(
        rentables=tuple(rentables),
        max_instances=max_instances(experiment, rentables),
        limits=limits,
        mode=experiment.metric.mode,
        min_epochs=experiment.span.min,
        max_epochs=experiment.span.max,
        eta=experiment.eta,
        trials=max_trials(experiment),
        max_concurrent=experiment.strategy.max_concurrent,
        seed=experiment.seed,
        rules=experiment.strategy.rules.model_dump(exclude_unset=True),
        inherit=experiment.strategy.inherit,
    )


def max_instances(experiment: Experiment, rentables: Sequence[Rentable]) -> int:
    """Return how many instances may be alive at once: as planned, or else as each offer allows."""
    named = experiment.cloud.max_instances
    return max((it.most for it in rentables), default=1) if named is None else named


def make_sampler(experiment: Experiment, *, learns: bool = True) -> Sampler:
    """Return the sampler of an experiment, limited to its number of trials.

    `learns`: whether a model-based sampler uses its model; otherwise it draws at random.

    Raises:
        UsageError: its name is unknown, or the strategy can't use it.
    """
    kind, random_fraction = named_sampler(experiment)
    mode = experiment.metric.mode
    if kind in ADDED and learns:
        most = max_trials(experiment)
        return ADDED[kind](experiment.space, mode=mode, seed=experiment.seed, most=most)
    if kind == ADAPTIVE and learns:
        first = len(experiment.initial)
        aside = range(first, len(experiment.first_configs))
        drawn = Drawn(experiment, aside)
        like = map(drawn.begin, aside)
        last = experiment.span.max
        return Adaptive(drawn, mode, last, seed=experiment.seed, initial=first, like=like)
    if kind in {"random", ADAPTIVE} or not (learns or kind == "qmc"):
        return Drawn(experiment)
    return SpaceSampler(
        experiment.space,
        kind,
        mode=mode,
        seed=experiment.seed,
        most=max_trials(experiment),
        random_fraction=random_fraction,
        first=experiment.first_configs,
    )


def named_sampler(experiment: Experiment) -> tuple[str, float]:
    """Return the sampler that an experiment names or its strategy needs, with its random share.

    Raises:
        UsageError: its name is unknown, or the strategy can't use it.
    """
    asked = experiment.strategy.sampler or ""
    if read_choice(experiment).planned and asked in {*MODEL_BASED, ADAPTIVE}:
        raise UsageError(
            f"sampler {asked}: a plan of stages asks for all its trials before there is a result "
            "to learn from; take another sampler, or a strategy that decides as results come in"
        )
    return registry.choose_sampler(experiment.strategy_name, asked)


class Drawn(SpaceSampler):
    """The random sampler, with the configurations that a planned run would also try.

    Those `aside`, by their numbers, are only tried by `begin`.
    """

    def __init__(self, experiment: Experiment, aside: Sequence[int] = ()) -> None:
        space = experiment.space
        most = max_trials(experiment)
        seed = experiment.seed
        super().__init__(space, "random", mode=experiment.metric.mode, seed=seed, most=most)
        self._drawn_before: Sequence[Mapping[str, object]] = ()
        self._experiment = experiment
        self._next = 0
        self._aside = len(aside)
        self._taken = set(aside)

    def _draw(self, count: int) -> None:
        """Draw at least `count` configurations, if there are that many.

        More draws don't change the first ones, so drawing twice as many each time costs little if
        the number of trials isn't set.
        """
        drawn = len(self._drawn_before)
        most = self._most + self._aside
        if drawn < count <= most:
            wanted = int(min(most, max(count, 2 * drawn, _FIRST_DRAWS)))
            self._drawn_before = _configs(self._experiment, wanted)

    def ask(self) -> Trial | None:
        """Return the next trial; None after the last."""
        while self._next in self._taken:
            self._next += 1
        self._draw(self._next + 1)
        if self._given >= self._most or self._next >= len(self._drawn_before):
            return None
        self._next += 1
        return self.begin(self._next - 1)

    def begin(self, number: int) -> Trial | None:
        """Return the configuration of that number as a trial; None if there may be no more."""
        self._draw(number + 1)
        return None if self._given >= self._most else self._begin_trial(self._drawn_before[number])

    def candidates(self) -> Sequence[Mapping[str, object]]:
        """Return the candidates: with grids, which are tried in full, only these draws."""
        if not self.has_grids:
            return super().candidates()
        self._draw(int(min(self._most, POOL)))
        return self._drawn_before[:POOL]

    def take(self, candidate: int) -> Trial | None:
        """Return a candidate as a trial; None if it was tried, or there may be no more trials."""
        if not self.has_grids:
            return super().take(candidate)
        if candidate < self._next or candidate in self._taken or self._given >= self._most:
            return None
        self._taken.add(candidate)
        return self.begin(candidate)


def read_charges(experiment: Experiment) -> Charges:
    """Return what an experiment's run costs on top of its instances."""
    charges = experiment.charges
    per_launch = charges.per_launch or 0.0
    if charges.data is not None and charges.data.region != experiment.cloud.region:
        per_launch += charges.data.gb * (charges.data.usd_per_gb or 0.0)
    per_hour = (charges.per_hour or 0.0) + (charges.head or 0.0)
    return Charges(per_launch, per_hour / 3600.0)


def brakes(experiment: Experiment, rentables: Sequence[Rentable]) -> Brakes:
    """Return how a job on these rentables keeps its limits, including `avoid` for dry pools."""
    profiles = [rentable.profile for rentable in rentables]
    joining = max((profile.launch.high + profile.boot.high for profile in profiles), default=0.0)
    defaults = Brakes(drain=drain_seconds(*profiles))
    avoid = defaults.avoid if experiment.cloud.avoid is None else experiment.cloud.avoid
    return replace(defaults, avoid=avoid, join=max(defaults.join, _SLOW_BOOT * joining))


def read_rules(experiment: Experiment) -> TrialRules:
    """Return the trial rules of an experiment."""
    asked = experiment.trial
    least = asked.stall.least or 0.0
    return TrialRules(
        stall_factor=asked.stall.factor,
        stall_least=least,
        sync_required=asked.sync == "required",
        max_failures=asked.max_failures,
        keep_failed=asked.keep_failed or 0.0,
    )

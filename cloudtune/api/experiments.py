"""An experiment as it is given: a file, its fields as a mapping, or an `Experiment`."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cloudtune.api.functions import written
from cloudtune.api.scripts import parse_metric, parse_search
from cloudtune.errors import UsageError, allowed_names
from cloudtune.experiment import Experiment
from cloudtune.experiment.validation import Mistake
from cloudtune.infra.environments import spec as requirements
from cloudtune.infra.provider import provider_named
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.planning import make
from cloudtune.planning.problem import no_profile, problem_of, stored_profiles
from cloudtune.runs import history, home
from cloudtune.runs.job import choices, sampler_name
from cloudtune.train.user_script import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from cloudtune.infra.provider import HeadOffer
    from cloudtune.planning.make import Planned
    from cloudtune.planning.stages import PlanOptions, Problem

Source: TypeAlias = str | Path | Mapping[str, Any] | Experiment
"""A YAML file, the same fields as a mapping, or an experiment."""

OVERRIDES = {
    "deadline": "limits.deadline",
    "budget": "limits.budget",
    "initial": "initial",
    "trials": "trials",
    "strategy": "strategy",
    "max_instances": "cloud.max_instances",
    "provider": "cloud.provider",
    "instances": "cloud.instances",
    "market": "cloud.market",
    "epochs": "epochs.max",
    "seed": "seed",
    "storage": "storage",
    "history": "history",
    "objective": "objective",
}
"""By option, the field of the experiment that it goes before."""


def known(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options as they were given.

    Raises:
        UsageError: there is no option of such a name.
    """
    for name in given:
        if name not in OVERRIDES:
            raise UsageError(f"no option {name!r}; {allowed_names(name, OVERRIDES)}")
    return given


def refuse_while_loading() -> None:
    """Pass unless this is called from the top level of a script that a worker or a check loads.

    Raises:
        UsageError: it is: each load would plan and rent again, for ever.
    """
    script = loading()
    if script is not None:
        raise UsageError(
            f"{script} plans or runs at its top level, which every worker runs too: put that under "
            'if __name__ == "__main__":'
        )


def with_named_function(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an experiment, its training function by file and name.

    One of a file's top level is found there by workers. Any other, as a notebook's, is written into
    a file of its own: in `directory`, or beside the file that defines it, or in the current folder.

    Raises:
        UsageError: it can't be sent to workers, or is in another folder than `directory`.
    """
    function = fields.get("train")
    if not callable(function):
        return fields
    name, file = getattr(function, "__qualname__", ""), _file_of(function)
    if file is None or not name.isidentifier():
        folder = Path(fields.get("directory") or (file or Path.cwd() / "-").parent).resolve()
        return {**fields, "train": written(function, folder), "directory": str(folder)}
    if Path(fields.get("directory", file.parent)).resolve() != file.parent:
        raise UsageError(f"train: {name} is in {file}, but directory is {fields['directory']}")
    return {**fields, "train": f"{file.name}:{name}", "directory": str(file.parent)}


def _file_of(function: Callable[..., object]) -> Path | None:
    """Return the Python file that defines a function; None where there is none."""
    try:
        file = Path(inspect.getfile(function)).resolve()
    except (OSError, TypeError):
        return None
    return file if file.suffix == ".py" and file.is_file() else None


def load_experiment(source: Source, given: Mapping[str, Any]) -> Experiment:
    """Return an experiment, with the options that were given over it; None stands for none.

    `given` is by the names of `OVERRIDES`: a number is seconds or dollars there, and instances and
    history may be text with commas in it. `search` are texts such as "lr=uniform(0, 1)", and
    `metric` is one such as "accuracy:max".

    Raises:
        ExperimentError: mistakes in either.
        UsageError: its strategy, allocator, fleet and sampler don't go together.
    """
    overrides = {
        field: given[option] for option, field in OVERRIDES.items() if given.get(option) is not None
    }
    deadline, budget = overrides.get("limits.deadline"), overrides.get("limits.budget")
    if isinstance(deadline, dt.timedelta):
        deadline = deadline.total_seconds()
    if isinstance(deadline, int | float):
        overrides["limits.deadline"] = f"{deadline}s"
    if isinstance(budget, int | float):
        overrides["limits.budget"] = f"${budget}"
    if isinstance(overrides.get("cloud.instances"), str):
        overrides["cloud.instances"] = _names(overrides["cloud.instances"])
    for name, space in parse_search(given.get("search") or ()).items():
        overrides[f"search.{name}"] = space
    if given.get("metric"):
        name, mode = parse_metric(given["metric"])
        overrides["metric.name"] = name
        if mode:
            overrides["metric.mode"] = mode
    if isinstance(overrides.get("history"), str) and overrides["history"] not in {"auto", "off"}:
        overrides["history"] = _names(overrides["history"])
    refuse_while_loading()
    fields = source.to_json() if isinstance(source, Experiment) else source
    if isinstance(fields, Mapping):
        fields = with_named_function(fields)
    experiment = Experiment.load(fields, overrides, _types_of, choices(), _mistakes_in)
    sampler_name(experiment)  # refuses what doesn't go together
    experiment.check_train()
    return experiment


def _mistakes_in(experiment: Experiment) -> Iterator[Mistake]:
    """Yield what is wrong with the runs and the files that an experiment names."""
    yield from history.mistakes_in(experiment)
    try:
        requirements.check(experiment)
    except UsageError as error:
        yield Mistake(("setup", "pip"), str(error))


def for_renting(source: Source, given: Mapping[str, Any]) -> Experiment:
    """Return an experiment (`load_experiment`) with what the account of its cloud has for it."""
    wanted = load_experiment(source, given)
    return provider_named(wanted.cloud.provider).completed(wanted)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _types_of(provider: str) -> Collection[str]:
    return provider_named(provider).known_types()


def head_for(wanted: Experiment) -> HeadOffer | None:
    """Return the instance that would carry a run of this experiment; None where this machine can.

    Raises:
        UsageError: nobody knows what that costs.
    """
    return provider_named(wanted.cloud.provider).head(wanted, home.home())


def with_head(wanted: Experiment, offer: HeadOffer | None) -> Experiment:
    """Return an experiment with an hour of its head among its charges: the budget pays for it."""
    if offer is None:
        return wanted
    charges = wanted.charges.model_copy(update={"head": offer.usd_per_hour})
    return wanted.model_copy(update={"charges": charges})


def limits_of(experiment: Experiment) -> Limits:
    """Return what an experiment may take."""
    return Limits(experiment.limits.deadline, experiment.limits.budget)


def load_problem(experiment: Experiment, profile: str | None) -> Problem:
    """Return what there is to choose from for an experiment.

    `profile` is a file or the name of published figures; None takes what was measured or seen.

    Raises:
        UsageError: nothing is known of the script's speed on any of its instance types.
    """
    profiles = stored_profiles(experiment, profile)
    problem = problem_of(experiment, profiles)
    if not profiles and not problem.rentables:  # nor has an earlier run seen it
        raise no_profile(experiment)
    return problem


def plan_or_forced(
    problem: Problem,
    limits: Limits,
    options: PlanOptions,
    elapsed: float = 0.0,
    *,
    force: bool,
    insists: Callable[[], None],
) -> Planned:
    """Return the plan of a run; with `force` also where none keeps the limits: `insists` is told.

    Raises:
        InfeasibleError: there is none, and nobody insists.
    """
    try:
        return make.make_plan(problem, limits, options, elapsed)
    except InfeasibleError:
        if not force:
            raise
    planned = make.make_plan(problem, limits, options, elapsed, force=True)
    insists()
    return planned

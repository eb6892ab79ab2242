"""Load experiments from a file, a mapping of fields, or an `Experiment`."""

import contextlib
import datetime as dt
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from cloudtune.api.functions import written
from cloudtune.api.scripts import parse_metric, parse_search
from cloudtune.engine.ledger import read_entries
from cloudtune.errors import CloudtuneError, UsageError, allowed_names
from cloudtune.experiment import Experiment
from cloudtune.experiment.validation import Mistake
from cloudtune.infra.environments import spec as requirements
from cloudtune.infra.provider import HeadOffer, provider_named
from cloudtune.model.plans import Limits
from cloudtune.planners.base import InfeasibleError
from cloudtune.planning import make
from cloudtune.planning.make import Planned
from cloudtune.planning.problem import no_profile, problem_of, stored_profiles
from cloudtune.planning.stages import PlanOptions, Problem
from cloudtune.runs import history, home
from cloudtune.runs.job import choices, job_of_ledger, named_sampler
from cloudtune.train.user_script import loading

# Until a head controls its run, where none has yet: it may build its environment first.
_HEAD_SECONDS = 480.0
# The last runs say how long a head takes to control one.
_RECENT_HEADS = 5

# A YAML file, the same fields as a mapping, or an experiment.
Source: TypeAlias = str | Path | Mapping[str, Any] | Experiment

# The field of the experiment that each option overrides.
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
    "try_first": "trial.try_first",
}


def checked_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options unchanged.

    Raises:
        UsageError: an option doesn't exist.
    """
    for name in given:
        if name not in OVERRIDES:
            raise UsageError(f"unknown option {name!r}; {allowed_names(name, OVERRIDES)}")
    return given


def given_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options that aren't None as words of a command line: "--deadline=2h"."""
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def refuse_while_loading() -> None:
    """Refuse calls from the top level of a script that a worker or a check is loading.

    Raises:
        UsageError: it is such a call; each load would plan and rent again, endlessly.
    """
    script = loading()
    if script is not None:
        raise UsageError(
            f"{script} plans or runs at its top level, which every worker executes too: move it "
            'under if __name__ == "__main__":'
        )


def with_named_function(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an experiment, with its training function by file and name.

    Workers import a top-level function from its file. Any other function, such as a notebook's, is
    written to a new file in `directory`, beside the file that defines it, or in the current folder.

    Raises:
        UsageError: the function can't be sent to workers, or isn't in `directory`.
    """
    function = fields.get("train")
    if not callable(function):
        return fields
    name = getattr(function, "__qualname__", "")
    file = file_of(function)
    if file is None or not name.isidentifier():
        folder = Path(fields.get("directory") or (file or Path.cwd() / "-").parent).resolve()
        return {**fields, "train": written(function, folder), "directory": str(folder)}
    if Path(fields.get("directory", file.parent)).resolve() != file.parent:
        raise UsageError(f"train: {name} is in {file}, not in directory {fields['directory']}")
    return {**fields, "train": f"{file.name}:{name}", "directory": str(file.parent)}


def file_of(function: Callable[..., object]) -> Path | None:
    """Return the Python file that defines a function, or None."""
    try:
        file = Path(inspect.getfile(function)).resolve()
    except (OSError, TypeError):
        return None
    return file if file.suffix == ".py" and file.is_file() else None


def load_experiment(source: Source, given: Mapping[str, Any]) -> Experiment:
    """Return an experiment with options applied; options that are None are ignored.

    `given` has the keys of `OVERRIDES`: numbers are seconds or dollars, and instances and history
    may be comma-separated. `search` is a list of texts such as "lr=uniform(0, 1)", and `metric` is
    a text such as "accuracy:max".

    Raises:
        ExperimentError: mistakes in the experiment or the options.
        UsageError: its strategy, allocator, fleet and sampler can't be combined.
    """
    overrides = {
        field: given[option] for option, field in OVERRIDES.items() if given.get(option) is not None
    }
    deadline = overrides.get("limits.deadline")
    budget = overrides.get("limits.budget")
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
    experiment = Experiment.load(
        fields,
        overrides,
        lambda provider: provider_named(provider).known_types(),
        choices(),
        _mistakes_in,
    )
    named_sampler(experiment)  # refuses combinations that don't work
    experiment.check_train()
    return experiment


def _mistakes_in(experiment: Experiment) -> Iterator[Mistake]:
    """Yield mistakes in the runs and files that an experiment names."""
    yield from history.mistakes_in(experiment)
    try:
        requirements.requirement_files(experiment)
    except UsageError as error:
        yield Mistake(("setup", "pip"), str(error))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def head_for(wanted: Experiment, *, force: bool = False) -> HeadOffer | None:
    """Return the instance that would control a run; None if this machine can, unless forced.

    Raises:
        UsageError: the price of that instance is unknown.
    """
    return provider_named(wanted.cloud.provider).head(wanted, home.home(), force=force)


def with_head(wanted: Experiment, offer: HeadOffer | None) -> Experiment:
    """Return an experiment whose charges include its head: what an hour costs, its start."""
    if offer is None:
        return wanted
    seconds = wanted.charges.head_seconds or _head_seconds()
    update = {"head": offer.usd_per_hour, "head_seconds": seconds}
    return wanted.model_copy(update={"charges": wanted.charges.model_copy(update=update)})


def _head_seconds() -> float:
    """Return how long heads took from `run` to the begin of the run: the median of the last ones.

    Runs that were measured first don't count, as that is in the same seconds.
    """
    from cloudtune.infra.heads.remote_runs import is_remote  # noqa: PLC0415  storage takes long

    seconds: list[float] = []
    for folder in reversed(home.run_folders()):
        with contextlib.suppress(CloudtuneError):  # of another version, or damaged
            if is_remote(folder) and not job_of_ledger(folder / home.LEDGER).measuring:
                entries = itertools.islice(read_entries(folder / home.LEDGER), 1)
                seconds += [entry.event.at for entry in entries]
        if len(seconds) == _RECENT_HEADS:
            break
    return median(seconds) if seconds else _HEAD_SECONDS


def limits_of(experiment: Experiment) -> Limits:
    """Return the limits of an experiment."""
    return Limits(experiment.limits.deadline, experiment.limits.budget)


def load_problem(experiment: Experiment, profile: str | None) -> Problem:
    """Return the planning problem of an experiment.

    `profile` is a file or the name of a published profile; None uses measured or observed timings.

    Raises:
        UsageError: the script's speed is unknown on all of its instance types.
    """
    profiles = stored_profiles(experiment, profile)
    problem = problem_of(experiment, profiles)
    if not profiles and not problem.rentables:  # not observed in earlier runs either
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
    """Return the plan of a run; with `force` also one beyond the limits, after calling `insists`.

    Raises:
        InfeasibleError: no plan meets the limits, without `force`.
    """
    try:
        return make.make_plan(problem, limits, options, elapsed)
    except InfeasibleError:
        if not force:
            raise
    planned = make.make_plan(problem, limits, options, elapsed, force=True)
    insists()
    return planned

"""Load experiments from a file, a mapping of fields, or an `Experiment`."""

import datetime as dt
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from cloudtune.api.functions import written
from cloudtune.api.scripts import experiment_beside, is_script, parse_metric, parse_search
from cloudtune.errors import UsageError, allowed_names
from cloudtune.experiment import Experiment
from cloudtune.experiment.sections import Checkpoints
from cloudtune.experiment.validation import Mistake
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.infra.environments import spec as requirements
from cloudtune.infra.provider import find_provider
from cloudtune.lifecycle.regions import rank_regions
from cloudtune.runs import history
from cloudtune.runs.control import to_stderr
from cloudtune.runs.job import choices, named_sampler
from cloudtune.runs.like import best_configs
from cloudtune.script.functions import names_checkpoints
from cloudtune.train.user_script import loading

# A YAML file, a training script, the fields of an experiment as a mapping, or an experiment.
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
    "log_to": "log_to",
    "keep_failed": "trial.keep_failed",
}
# All options of an experiment: search and metric override several fields, and `like` names a run.
OPTIONS = (*OVERRIDES, "search", "metric", "like")


def checked_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options unchanged.

    Raises:
        UsageError: an option doesn't exist.
    """
    for name in given:
        if name not in OPTIONS:
            raise UsageError(f"unknown option {name!r}; {allowed_names(name, OPTIONS)}")
    return given


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
    file = find_file(function)
    if file is None or not name.isidentifier():
        folder = Path(fields.get("directory") or (file or Path.cwd() / "-").parent).resolve()
        return {**fields, "train": written(function, folder), "directory": str(folder)}
    if Path(fields.get("directory", file.parent)).resolve() != file.parent:
        raise UsageError(f"train: {name} is in {file}, not in directory {fields['directory']}")
    return {**fields, "train": f"{file.name}:{name}", "directory": str(file.parent)}


def find_file(function: Callable[..., object]) -> Path | None:
    """Return the Python file that defines a function, or None."""
    try:
        file = Path(inspect.getfile(function)).resolve()
    except (OSError, TypeError):
        return None
    return file if file.suffix == ".py" and file.is_file() else None


def load_experiment(source: Source, given: Mapping[str, Any]) -> Experiment:
    """Return an experiment with options applied; options that are None are ignored.

    `given` has the keys of `OPTIONS`: numbers are seconds or dollars, and instances and history may
    be comma-separated. `search` has spaces by parameter, or texts such as "lr=uniform(0, 1)";
    `metric` is a text such as "accuracy:max"; `like` names a run to begin with the best
    configurations of. The experiment of a script is the file beside it, which is written if it is
    missing.

    Raises:
        ExperimentError: mistakes in the experiment or the options.
        UsageError: its strategy, allocator, fleet and sampler can't be combined; or script and
            options lack something.
    """
    refuse_while_loading()
    if isinstance(source, str | Path) and is_script(Path(source)):
        source = experiment_beside(Path(source), given, ask=None, show=to_stderr)
    fields = source.to_json() if isinstance(source, Experiment) else source
    if isinstance(fields, Mapping):
        fields = with_named_function(fields)
    overrides = _overrides(given)
    experiment = _load(fields, overrides)
    if given.get("like"):
        like = best_configs(given["like"], experiment)
        experiment = _load(fields, {**overrides, "like": like})
    named_sampler(experiment)  # refuses combinations that don't work
    experiment.check_train()
    return _about_resuming(experiment)


def _about_resuming(experiment: Experiment) -> Experiment:
    """Return an experiment that says that its trials don't resume, if its function never saves."""
    said = "resumes" in experiment.checkpoints.model_fields_set
    if experiment.runs_command or said or names_checkpoints(experiment.train_folder):
        return experiment
    return experiment.model_copy(update={"checkpoints": Checkpoints(resumes=False)})


def _load(fields: str | Path | Mapping[str, Any], overrides: Mapping[str, Any]) -> Experiment:
    return Experiment.load(
        fields,
        overrides,
        lambda provider: find_provider(provider).known_types(),
        choices(),
        _mistakes_in,
    )


def _overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an experiment that options override, by dotted name."""
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
    for field in ("cloud.instances", "log_to"):
        if isinstance(overrides.get(field), str):
            overrides[field] = _names(overrides[field])
    for name, space in parse_search(given.get("search") or ()).items():
        overrides[f"search.{name}"] = space
    if given.get("metric"):
        name, mode = parse_metric(given["metric"])
        overrides["metric.name"] = name
        if mode:
            overrides["metric.mode"] = mode
    if isinstance(overrides.get("history"), str) and overrides["history"] not in {"auto", "off"}:
        overrides["history"] = _names(overrides["history"])
    return overrides


def for_renting(
    source: Source,
    given: Mapping[str, Any],
    profile: str | None = None,
    options: PlanOptions | None = None,
) -> Experiment:
    """Return an experiment (`load_experiment`) in the region that is best for it."""
    return rank_regions(load_experiment(source, given), profile, options)[0]


def _mistakes_in(experiment: Experiment) -> Iterator[Mistake]:
    """Yield mistakes in the runs and files that an experiment names."""
    yield from history.mistakes_in(experiment)
    try:
        requirements.requirement_files(experiment)
    except UsageError as error:
        yield Mistake(("setup", "pip"), str(error))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]

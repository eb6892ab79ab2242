"""An experiment: what the user wants, from an experiment.yaml or from Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    Strict,
    ValidationError,
    model_serializer,
    model_validator,
)

from cloudtune.errors import ExperimentError, allowed_names, nearest, quote
from cloudtune.experiment import field_types, validation
from cloudtune.experiment.cloud import CloudSettings, find_line, read_provider
from cloudtune.experiment.command_fields import command_mistake, epochs_mistake
from cloudtune.experiment.data import Data, resolve_sources
from cloudtune.experiment.defaults import Chosen, Objective, bracket, choose
from cloudtune.experiment.overrides import of_provider, override, with_place
from cloudtune.experiment.search_space import contains, plain
from cloudtune.experiment.sections import (
    Checkpoints,
    ProgressSettings,
    Reports,
    RuleSettings,
    Section,
    Setup,
    TrialSettings,
)
from cloudtune.experiment.spaces import MUTATORS, PlaceError, Space, complete, parse_parameter
from cloudtune.experiment.variables import Env, Secrets, SecretSource
from cloudtune.experiment.yaml_file import YamlDocument, read_yaml
from cloudtune.model.providers import PROVIDERS
from cloudtune.model.text import Scale
from cloudtune.model.trial import flat
from cloudtune.script.command import is_command
from cloudtune.script.command_check import check_command, find_script
from cloudtune.script.functions import check_function, mentions
from cloudtune.script.mutators import choices_of_model
from cloudtune.script.names import check_names
from cloudtune.script.printed_lines import LinePattern

_SIZE = re.compile(r":\d+$")
# The maximum number of names listed in a message; beyond, only the nearest is given.
_LISTED_INSTANCES = 12


class MetricSettings(Section):
    """The number that tells good trials from bad ones, as the training reports it."""

    name: field_types.Text = Field(examples=["val_accuracy"])
    mode: Literal["min", "max"] = Field(examples=["max"])


class Epochs(Section):
    """How far a trial trains: at least `min` epochs, the best ones up to `max`."""

    min: field_types.Whole = Field(default=1, ge=1, le=10**9, examples=["1"])
    max: field_types.Whole = Field(ge=1, le=10**9, examples=["27"])

    @model_validator(mode="after")
    def _rising(self) -> Epochs:
        if self.max < self.min:
            raise validation.refuse(f"{self.max} is below the min, {self.min}; raise it", "max")
        return self


class LimitSettings(Section):
    """What the run may take: `deadline` in seconds, `budget` in US dollars; None is no limit.

    Where GPUs have no price, the budget may be `gpu_hours`, each of which counts as a dollar.
    """

    deadline: field_types.Seconds = Field(default=None, examples=["2h"])
    budget: field_types.Dollars = Field(default=None, examples=["$40"])
    gpu_hours: float | None = Field(default=None, gt=0.0, allow_inf_nan=False, examples=["40"])
    _idle_budget: float | None = PrivateAttr(default=None)

    @property
    def idle_budget(self) -> float | None:
        """The budget that was named where nothing has a price, so that it limits nothing."""
        return self._idle_budget

    def without_budget(self, *, is_shared: bool) -> LimitSettings:
        """Return the same limits with the budget as one that limits nothing.

        It is refused if no deadline is beside it, or if others wait for the same GPUs.
        """
        if is_shared or self.deadline is None:
            raise validation.refuse(
                "GPUs cost nothing here, so a budget limits nothing; leave it out and set a "
                "deadline or gpu_hours, or say what an hour costs: cloud.price",
                "limits",
                "budget",
            )
        changed = self.model_copy(update={"budget": None})
        changed._idle_budget = self.budget  # noqa: SLF001  a copy of its own
        return changed


# A library that trials are logged to as they train (api/live_logs.py).
LogName: TypeAlias = Literal["wandb", "mlflow", "tensorboard"]


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


LogNames: TypeAlias = Annotated[tuple[LogName, ...], BeforeValidator(_one_or_several)]


class DataSettings(Section):
    """What each instance loads from elsewhere: `gb` gigabytes that are in `region`."""

    region: field_types.Text = Field(examples=["us-east-1"])
    gb: float = Field(gt=0.0, allow_inf_nan=False, examples=["50"])
    # What AWS bills between most regions (awsnegotiations.com, May 2026); from some up to $0.147.
    usd_per_gb: field_types.Dollars = Field(default=0.02, examples=["$0.01"])


class ChargeSettings(Section):
    """What a run costs besides its instances, in US dollars.

    `per_launch` for each instance launched: the data that it loads. `data` adds to that what
    transfer costs where the run's region isn't the data's. `per_hour` of the whole run:
    the machine that cloudtune itself runs on, and the storage of checkpoints. `per_instance_hour`
    for each hour that an instance lives, billed like it: its disk, its public address. `head` is an
    hour of the instance that carries a run whose user's machine can't, `head_seconds` the time
    until it does: filled in by `plan` and `run`.
    """

    per_launch: field_types.Dollars = Field(default=None, examples=["$0.02"])
    data: DataSettings | None = Field(default=None, examples=["{region: us-east-1, gb: 50}"])
    per_hour: field_types.Dollars = Field(default=None, examples=["$0.10"])
    head: field_types.Dollars = Field(default=None, examples=["$0.1008"])
    head_seconds: field_types.Seconds = Field(default=None, examples=["3m"])

    @property
    def head_start(self) -> float:
        """The seconds of the deadline that pass until a head controls the run; 0 without one."""
        return 0.0 if self.head is None else self.head_seconds or 0.0

    per_instance_hour: field_types.Dollars = Field(default=None, examples=["$0.016"])

    @property
    def any(self) -> bool:
        return any(value is not None for value in self.__dict__.values())


class StrategySettings(Section):
    """Which configurations are tried, how far each trains, and on how many GPUs and instances.

    Without a `name` the limits decide (`Experiment.chosen`). `sampler` draws the configurations,
    `allocator` says how wide a trial is, `fleet` how many instances there are; None is what suits
    the strategy. At most `max_concurrent` trials run at
    once; a `target` metric ends the run. `rules` are HyperSched's. With `inherit` the clones of pbt
    may have other networks.
    Whether a name exists is checked where all are known (`Experiment.load`, `policy.registry`).
    """

    name: field_types.Text | None = Field(default=None, examples=["asha"])
    sampler: field_types.Text | None = Field(default=None, examples=["tpe"])
    allocator: field_types.Text | None = Field(default=None, examples=["same"])
    fleet: field_types.Text | None = Field(default=None, examples=["naive:4"])
    max_concurrent: field_types.Whole | None = Field(default=None, ge=1, examples=["8"])
    target: Annotated[float, Strict()] | None = Field(
        default=None, allow_inf_nan=False, examples=["0.95"]
    )
    rules: RuleSettings = Field(default=RuleSettings(), examples=["{no_speculation: true}"])
    inherit: Annotated[bool, Strict()] = Field(default=False, examples=["true"])

    @model_serializer
    def _briefly(self) -> str | dict[str, Any]:
        options = {name: getattr(self, name) for name in sorted(self.model_fields_set - {"name"})}
        if "rules" in options:
            options["rules"] = self.rules.model_dump(exclude_unset=True)
        if self.name is None:
            return options
        return {"name": self.name, **options} if options else self.name


def _named_strategy(value: object) -> object:
    if value is None:
        return {}
    return {"name": value} if isinstance(value, str) else value


Configs: TypeAlias = Annotated[tuple[dict[str, Any], ...], BeforeValidator(plain)]


class Experiment(Section):
    """What the user asks for; a valid one by construction.

    From Python each field takes what the file takes: `limits={"deadline": "2h", "budget": 40}`, or
    a `timedelta`, or the models and domains themselves. `directory` is the folder of the experiment
    file, to which `train` is relative; from Python the current folder unless given.

    Raises:
        ExperimentError: all the mistakes, one on each line.
    """

    name: field_types.Name = Field(examples=["digits"])
    train: field_types.Train = Field(examples=["train.py:train"])
    metric: MetricSettings = Field(examples=["{name: val_accuracy, mode: max}"])
    search: dict[field_types.ParameterName, field_types.Parameter] = Field(
        min_length=1, examples=["{lr: {loguniform: [1e-4, 1]}}"]
    )
    initial: Configs = Field(default=(), examples=["[{lr: 0.1}]"])
    like: Configs = Field(default=(), examples=["[{lr: 0.1}]"])
    trials: field_types.Whole | None = Field(default=None, ge=1, le=100_000, examples=["12"])
    epochs: Epochs = Field(examples=["{min: 1, max: 27}"])
    eta: field_types.Whole = Field(default=3, ge=2, le=1000, examples=["3"])
    strategy: Annotated[StrategySettings, BeforeValidator(_named_strategy)] = Field(
        default=StrategySettings(), examples=["asha"]
    )
    trial: TrialSettings = Field(default=TrialSettings(), examples=["{gpus: {max: 4}}"])
    progress: ProgressSettings = Field(
        default=ProgressSettings(), examples=["{unit: step, every: 500}"]
    )
    reports: Reports = Field(default=Reports(), examples=["{file: metrics.jsonl}"])
    checkpoints: Checkpoints = Field(default=Checkpoints(), examples=["{folder: out}"])
    limits: LimitSettings = Field(default=LimitSettings(), examples=["{deadline: 2h, budget: $40}"])
    objective: Objective | None = Field(default=None, examples=["best"])
    cloud: CloudSettings = Field(default=CloudSettings(), examples=["{provider: emulated}"])
    setup: Setup = Field(default=Setup(), examples=["{pip: requirements.txt}"])
    env: Env = Field(default={}, examples=["{HF_HOME: /data/hf}"])
    secrets: Secrets = Field(default={}, examples=["{HF_TOKEN: ssm:/team/hf-token}"])
    data: Data = Field(default={}, examples=["{train: s3://bucket/prefix}"])
    charges: ChargeSettings = Field(default=ChargeSettings(), examples=["{per_hour: $0.10}"])
    storage: field_types.Storage = Field(default="~/.cloudtune/storage", examples=["~/cloudtune"])
    log_to: LogNames = Field(default=(), examples=["[wandb]"])
    history: field_types.History = Field(default="auto", examples=["off"])
    seed: field_types.Whole = Field(default=0, ge=0, le=2**32 - 1, examples=["0"])
    directory: field_types.Directory = Field(
        default_factory=lambda: Path().absolute(), exclude=True
    )

    @model_validator(mode="after")
    def _gpu_hours_are_the_budget(self) -> Experiment:
        hours = self.limits.gpu_hours
        if hours is None:
            return self
        if self.limits.budget not in {None, hours}:
            raise validation.refuse(
                "is there, and gpu_hours too; keep one of the two", "limits", "budget"
            )
        if not self.cloud.count_gpu_hours():
            raise validation.refuse(
                "is for GPUs that have no price; set a budget in dollars", "limits", "gpu_hours"
            )
        object.__setattr__(self.limits, "budget", hours)
        return self

    @model_validator(mode="after")
    def _gpu_hours_count_where_others_wait(self) -> Experiment:
        shared = PROVIDERS[self.cloud.provider].shared
        if shared and self.limits.budget is None and not self.charges.any:
            self.cloud.count_gpu_hours()
        return self

    @model_validator(mode="after")
    def _a_budget_buys_something(self) -> Experiment:
        """Leave out a budget on a machine without a price, beside a deadline that ends the run."""
        in_dollars = self.limits.budget is not None and self.limits.gpu_hours is None
        if in_dollars and self.cloud.has_no_price and not self.charges.any:
            is_shared = PROVIDERS[self.cloud.provider].shared
            object.__setattr__(self, "limits", self.limits.without_budget(is_shared=is_shared))
        return self

    @model_validator(mode="after")
    def _commands_run_elsewhere(self) -> Experiment:
        if self.setup.commands and PROVIDERS[self.cloud.provider].here:
            why = (
                f"are for rented machines, and provider {self.cloud.provider} uses this machine; "
                "run them yourself, and leave them out"
            )
            raise validation.refuse(why, "setup", "commands")
        return self

    @model_validator(mode="after")
    def _variables_have_one_source(self) -> Experiment:
        for name in self.secrets:
            if name in self.env:
                raise validation.refuse("is in env too; keep one of the two", "secrets", name)
        return self

    @model_validator(mode="after")
    def _models_are_read(self) -> Experiment:
        """Replace the name of the script's mutators by their choices, and keep these."""
        for name, parameter in self.search.items():
            file, _, space = field_types.model_name(parameter).rpartition(":")
            if not space:
                continue
            try:
                choices = choices_of_model((self.directory / file).absolute(), space)
                parse_parameter({MUTATORS: choices})
                self.search[name] = {MUTATORS: choices}
            except PlaceError as error:
                raise validation.refuse(str(error), "search", name, *error.path) from None
            except ExperimentError as error:
                raise validation.refuse(str(error), "search", name, MUTATORS) from None
        return self

    @model_validator(mode="after")
    def _initial_is_of_the_space(self) -> Experiment:
        if self.trials is not None and len(self.initial) > self.trials:
            why = f"has {len(self.initial)} configurations, and trials is {self.trials}; raise it"
            raise validation.refuse(why, "initial")
        fields = ["initial"] * len(self.initial) + ["like"] * len(self.like)
        for number, field in enumerate(fields):
            try:
                self._complete(number)
            except PlaceError as error:
                place = (field, number - fields.index(field), *error.path)
                raise validation.refuse(str(error), *place) from None
        return self

    @model_validator(mode="after")
    def _who_inherits(self) -> Experiment:
        if self.strategy.inherit and self.strategy_name != "pbt":
            why = (
                "is only for pbt, whose clones continue from another trial's checkpoint; leave it "
                "out"
            )
            raise validation.refuse(why, "strategy", "inherit")
        if self.strategy.inherit and not self.space.of_models:
            why = (
                "changes the networks of clones, and the search has no mutators; add "
                "model: {mutators: train.py:MODEL}, or leave it out"
            )
            raise validation.refuse(why, "strategy", "inherit")
        return self

    @model_validator(mode="after")
    def _whole_reports(self) -> Experiment:
        for name, value in self.epochs:
            if mistake := epochs_mistake(name, value, self.progress):
                raise validation.refuse(mistake, "epochs", name)
        return self

    @model_validator(mode="after")
    def _fields_fit_what_trains(self) -> Experiment:
        if not self.runs_command:
            of_commands = {
                ("reports",): self.reports != Reports(),
                ("checkpoints", "folder"): self.checkpoints.folder is not None,
            }
            for path, is_named in of_commands.items():
                if is_named:
                    raise validation.refuse(
                        "is for commands, and train names a function, which calls "
                        "cloudtune.report(…); leave it out",
                        *path,
                    )
            return self
        if mistake := command_mistake(self.train, self.space, self.progress, self.checkpoints):
            raise validation.refuse(mistake, "train")
        if self.checkpoints.folder == "." and not self.reports.any:
            why = (
                "its script reports by cloudtune.report(), so that only a folder of checkpoints "
                "alone can be kept; name one"
            )
            raise validation.refuse(why, "checkpoints", "folder")
        printed = self.reports.printed
        names = () if printed is None else LinePattern(printed).names
        if printed is not None and self.metric.name not in names:
            why = (
                f"finds no {self.metric.name}, the experiment's metric; "
                f"{allowed_names(self.metric.name, names)}"
            )
            raise validation.refuse(why, "reports", "printed")
        return self

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise validation.ExperimentMistakesError(
                validation.mistakes_in(error, type(self))
            ) from None

    @property
    def space(self) -> Space:
        """The search space, in the order of the file, with flat names for nested parameters."""
        return Space({name: parse_parameter(value) for name, value in self.search.items()})

    @property
    def first_configs(self) -> tuple[dict[str, Any], ...]:
        """Those of `initial`, then of `like`, by flat names; values that they lack are drawn."""
        return tuple(map(self._complete, range(len(self.initial) + len(self.like))))

    def _complete(self, number: int) -> dict[str, Any]:
        config = flat([*self.initial, *self.like][number])
        return complete(self.space, config, f"{self.seed}/initial/{number}")

    @property
    def chosen(self) -> Chosen | None:
        """The strategy that the limits decide, and why; None if the experiment names one."""
        if self.strategy.name is not None:
            return None
        return choose(
            objective=self.objective,
            deadline=self.limits.deadline,
            budget=self.limits.budget,
            trials=self.trials,
            free=self.cloud.free and not self.charges.any,
            counts_gpu_hours=self.cloud.counts_gpu_hours,
            resumes=self.can_resume,
        )

    @property
    def keeps_models(self) -> bool:
        """Whether a trial's model may be kept: a command that is read names a folder."""
        is_read = self.runs_command and self.reports.any
        return not is_read or self.checkpoints.folder is not None

    @property
    def can_resume(self) -> bool:
        """Whether a trial may resume from a checkpoint."""
        return self.keeps_models and self.checkpoints.resumes

    @property
    def secret_sources(self) -> dict[str, SecretSource]:
        """Where each secret of the trials is, by the name of its variable."""
        return {name: SecretSource.parse(text) for name, text in self.secrets.items()}

    @property
    def data_sources(self) -> dict[str, str]:
        """Where each folder of the data is: an address in S3, or an absolute path."""
        return resolve_sources(self.data, self.directory)

    @property
    def strategy_name(self) -> str:
        """The strategy that the experiment names, or the one that its limits decide."""
        chosen = self.chosen
        return chosen.strategy if chosen is not None else str(self.strategy.name)

    @property
    def named(self) -> Experiment:
        """The same experiment with its strategy named, independent of a version's defaults."""
        strategy = self.strategy.model_copy(update={"name": self.strategy_name})
        return self.model_copy(update={"strategy": strategy})

    @property
    def fixed_trials(self) -> int:
        """The number of trials for strategies that need one: as given, or one bracket's."""
        if self.trials is not None:
            return self.trials
        return bracket(self.span.min, self.span.max, self.eta)

    @property
    def span(self) -> Epochs:
        """How far a trial trains, in reports, which are called epochs outside this file.

        A min of 1, as by default, is the first report.
        """
        every = self.progress.every
        first, last = (max(1, round(value / every)) for value in (self.epochs.min, self.epochs.max))
        return Epochs(min=1 if self.epochs.min == 1 else first, max=last)

    @property
    def scale(self) -> Scale:
        return Scale(self.progress.unit, self.progress.every)

    @property
    def runs_command(self) -> bool:
        return is_command(self.train)

    @property
    def train_file(self) -> Path:
        """The file of the training function, or the script of the command, as an absolute path.

        Raises:
            ExperimentError: the command has no file beside the experiment.
        """
        if self.runs_command:
            return find_script(self.train, self.directory)
        return self.directory / self.train.rpartition(":")[0]

    @property
    def train_folder(self) -> Path:
        """The folder that is copied to instances."""
        return self.directory if self.runs_command else self.train_file.parent

    @property
    def train_function(self) -> str:
        """The name of the training function in its file, or the command."""
        return self.train if self.runs_command else self.train.rpartition(":")[2]

    @property
    def _falses(self) -> set[str]:
        """The parameters that may be false, by flat names."""
        space = self.space
        return {space.flat_name(name) for name in space if contains(space[name], value=False)}

    def check_train(self) -> None:
        """Check that the training function or command exists, and its calls of cloudtune and Ray.

        None of the user's code is imported or run.

        Raises:
            ExperimentError: no such file or function, the file isn't valid Python, or it calls
                missing names; or the command's program is missing, or doesn't know an option.
        """
        if self.runs_command:
            here = PROVIDERS[self.cloud.provider].here
            check_command(
                self.train,
                self.directory,
                reads=self.reports.any,
                here=here,
                parameters=self.space.flat_names,
                falses=self._falses,
            )
            return
        check_function(self.train_file, self.train_function)
        check_names(self.train_file, self.train_function)
        if self.strategy.inherit and not mentions(self.train_folder, b"inherit("):
            raise ExperimentError(
                f"{self.train_file}: with strategy.inherit a clone begins from another network's "
                f"checkpoint, and nothing in {self.train_folder} calls cloudtune.inherit(); call "
                "it in place of load_state_dict()"
            )

    @classmethod
    def load(
        cls,
        source: str | Path | Mapping[str, object],
        overrides: Mapping[str, object] | None = None,
        known_instances: Callable[[str], Collection[str]] | None = None,
        known_choices: Mapping[str, Collection[str]] | None = None,
        check: Callable[[Experiment], Iterable[validation.Mistake]] = lambda _experiment: (),
    ) -> Experiment:
        """Return the experiment in a YAML file, or in a mapping with the same fields.

        `overrides` are options that override the file, by dotted field name, such as
        "limits.deadline": "5m"; None stands for an option that wasn't given. `known_instances`
        returns the types that a provider has, and `known_choices` are the names that each field of
        `strategy` may have, if the caller knows them. `check` yields mistakes in an otherwise valid
        experiment that only the caller can see.

        Raises:
            ExperimentError: all mistakes, each with its line or its option.
        """
        if isinstance(source, Mapping):
            document = YamlDocument("the experiment", source, {})
            directory: object = source.get("directory", Path().absolute())
        else:
            document = read_yaml(Path(source))
            directory = Path(source).absolute().parent
        options: dict[validation.FieldPath, object] = {
            tuple(name.split(".")): value
            for name, value in (overrides or {}).items()
            if value is not None
        }
        fields = of_provider(document.value, options)
        for field, value in options.items():
            fields = override(fields, field, value)
        if isinstance(source, Mapping):
            fields.pop("directory", None)
        fields.setdefault("name", _default_name(source, fields))
        mistakes = list(_file_mistakes(fields, known_instances))
        mistakes += _strategy_mistakes(fields.get("strategy"), known_choices or {})
        try:
            experiment = cls(**{**fields, "directory": directory})
        except validation.ExperimentMistakesError as error:
            mistakes += error.mistakes
        else:
            mistakes += check(experiment)
        if mistakes:
            mistakes.sort(key=lambda mistake: document.line(mistake.path))
            raise validation.ExperimentMistakesError(
                [with_place(mistake, document, options) for mistake in mistakes]
            )
        return experiment

    def to_json(self) -> dict[str, Any]:
        """Return JSON from which `from_json` makes an equal experiment, including its directory."""
        return {**self.model_dump(mode="json"), "directory": str(self.directory)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Experiment:
        """Return the experiment that `to_json` encoded.

        Raises:
            ExperimentError: it isn't one.
        """
        if not isinstance(data, Mapping) or not all(isinstance(name, str) for name in data):
            raise ExperimentError(f"{quote(data)} is not an experiment; give what to_json returned")
        return cls(**data)


def _default_name(source: str | Path | Mapping[str, object], fields: Mapping[str, object]) -> str:
    """Return the name of an experiment that has none: its file's, or else its script's.

    A file that is only called experiment has its folder's name.
    """
    if isinstance(source, Mapping):
        script, _, _ = str(fields.get("train", "")).partition(":")
        place = Path(script)
    else:
        place = Path(source).absolute()
        if place.stem == "experiment":
            place = place.parent
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", place.stem).strip("-._")
    return name[:63] or "experiment"


def _file_mistakes(
    fields: Mapping[str, object], known_instances: Callable[[str], Collection[str]] | None
) -> list[validation.Mistake]:
    """Return the mistakes that only a file or an option can have."""
    mistakes = []
    if "directory" in fields:
        mistakes.append(
            validation.Mistake(("directory",), validation.unknown_field("directory", Experiment))
        )
    cloud = fields.get("cloud", {})
    if known_instances is None or not isinstance(cloud, Mapping):
        return mistakes
    line = find_line(cloud)
    instances = {**line.defaults, **cloud}.get("instances", CloudSettings().instances)
    if "instances" in line.fixed or not isinstance(instances, list | tuple):
        return mistakes
    types = known_instances(read_provider(cloud))
    for index, instance in enumerate(instances):
        if types and isinstance(instance, str) and not _is_known(instance, types):
            message = f"{quote(instance)} is not an instance type known here; "
            message += _instances_near(instance, types)
            mistakes.append(validation.Mistake(("cloud", "instances", index), message))
    return mistakes


def _strategy_mistakes(
    value: object, choices: Mapping[str, Collection[str]]
) -> Iterator[validation.Mistake]:
    """Yield the choices that don't exist; a size may follow a name, as in naive:4."""
    section = _named_strategy(value)
    if not isinstance(section, Mapping):
        return
    for field, names in choices.items():
        name = section.get(field)
        if isinstance(name, str) and _SIZE.sub("", name) not in names:
            message = f"{quote(name)} is not known; {allowed_names(name, names)}"
            below = ("strategy",) if section is not value else ("strategy", field)
            yield validation.Mistake(below, message)


def _is_known(instance: str, types: Collection[str]) -> bool:
    return instance in types or any(fnmatchcase(name, instance) for name in types)


def _instances_near(instance: str, types: Collection[str]) -> str:
    names = sorted(types)
    if len(names) <= _LISTED_INSTANCES:
        return allowed_names(instance, names)
    return f"{len(names)} types are known.{nearest(instance, names)}"

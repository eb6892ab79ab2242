"""Sections of an experiment file about trials, and about what a script reports."""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    model_validator,
)

from cloudtune.errors import quote
from cloudtune.experiment.field_types import Every, Seconds, Text, Whole, text_that
from cloudtune.experiment.validation import refuse
from cloudtune.script.printed_lines import EXAMPLE, LinePattern


class Section(BaseModel):
    """A mapping of an experiment file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpus(Section):
    """How many whole GPUs a trial may have: at least `min`, at most `max`; None is no limit.

    With a `max` shares of a GPU may be had, with a `min` they may not.
    """

    min: Whole | None = Field(default=None, ge=1, examples=["1"])
    max: Whole | None = Field(default=None, ge=1, examples=["4"])

    @model_validator(mode="after")
    def _rising(self) -> Gpus:
        if self.min is not None and self.max is not None and self.max < self.min:
            raise refuse(f"{self.max} is below the min, {self.min}; raise it", "max")
        return self

    def allow(self, width: float) -> bool:
        return (self.min or 0) <= width <= (self.max or math.inf)


class Stall(Section):
    """When a trial that reports nothing is taken to hang, and ended.

    After `factor` times as long as its epoch should take, and not before `least` seconds.
    """

    factor: float = Field(default=10.0, ge=1.0, allow_inf_nan=False, examples=["10"])
    least: Seconds = Field(default=600.0, examples=["10m"])


class RuleSettings(Section):
    """Rules of HyperSched that can be changed one by one; left out they are as published.

    `use_pausing`: pause trials that aren't good enough, rather than end them. `atom`: GPUs that a
    trial starts with, and grows by. `allocation_grid`: above this many atoms only multiples of it
    are allowed. The others are its paper's ablations: `no_speculation`,
    `ignore_overhead`, `no_job_limit`, `fixed_exploration` (new trials until `exploration_ratio` of
    the deadline), `assume_linear`.
    """

    use_pausing: Annotated[bool, Strict()] = Field(default=True, examples=["false"])
    atom: Whole | None = Field(default=None, ge=1, examples=["2"])
    allocation_grid: Whole | None = Field(default=None, ge=1, examples=["4"])
    no_speculation: Annotated[bool, Strict()] = Field(default=False, examples=["true"])
    ignore_overhead: Annotated[bool, Strict()] = Field(default=False, examples=["true"])
    no_job_limit: Annotated[bool, Strict()] = Field(default=False, examples=["true"])
    fixed_exploration: Annotated[bool, Strict()] = Field(default=False, examples=["true"])
    exploration_ratio: float = Field(
        default=1.0, gt=0.0, le=1.0, allow_inf_nan=False, examples=["0.5"]
    )
    assume_linear: Annotated[bool, Strict()] = Field(default=False, examples=["true"])

    @model_validator(mode="after")
    def _together(self) -> RuleSettings:
        if "exploration_ratio" in self.model_fields_set and not self.fixed_exploration:
            raise refuse("needs fixed_exploration: true", "exploration_ratio")
        return self

    def __str__(self) -> str:
        changed = self.model_dump(exclude_defaults=True)
        return ", ".join(f"{name}: {_rule_text(value)}" for name, value in changed.items())


def _rule_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


class TrialSettings(Section):
    """What a trial may have and do.

    `sync`: workers of a trial that don't train one model are found in its first epoch. With
    "checked" the run then goes on with one GPU a trial, with "required" it ends; what is "trusted"
    isn't looked at. `max_failures`: where this many trials fail with the same error before any has
    finished an epoch, the run ends. `try_first`: whether one trial trains an epoch on this machine
    before anything is rented; left out, for AWS and a script without a profile. `keep_failed`: how
    many seconds an instance on which a trial failed is kept, for a person to look at it.
    """

    gpus: Gpus = Field(default=Gpus(), examples=["{max: 4}"])
    sync: Literal["checked", "required", "trusted"] = "checked"
    stall: Stall = Field(default=Stall(), examples=["{factor: 10, least: 10m}"])
    max_failures: Whole = Field(default=3, ge=1, examples=["1"])
    try_first: Annotated[bool, Strict()] | None = Field(default=None, examples=["false"])
    keep_failed: Seconds | None = Field(default=None, examples=["30m"])


def _below(value: str) -> str:
    """Return the path if it is in the folder in which a command runs."""
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or path == PurePosixPath():
        raise refuse(
            f"{quote(value)} is not below the folder that the command runs in; write a relative "
            "path, such as out/last"
        )
    return str(path)


def _pattern(value: str) -> str:
    try:
        pattern = LinePattern(value)
    except re.error as error:
        raise refuse(f"{quote(value)} is no regular expression: {error}") from None
    if not pattern.names:
        raise refuse(
            f"{quote(value)} names no number; write {{name}} where one is, as in '{EXAMPLE}'"
        )
    return value


# What a shell or a pattern would replace: a folder has its name as it stands.
_REPLACED: Final = re.compile(r"^~|[$*?{}]")
_FILES: Final = re.compile(r"\.(pt|pth|ckpt|bin|h5|keras|safetensors|pkl|py|json|csv)$")


def _within(value: str) -> str:
    """Return the path if it is the folder in which a command runs, or is in it."""
    if _REPLACED.search(value):
        raise refuse(
            f"{quote(value)} is taken as it stands, without ~, variables and patterns; write a "
            "folder below the one that the command runs in, such as out, and let it save there"
        )
    if _FILES.search(value):
        raise refuse(
            f"{quote(value)} is the name of a file; write the folder in which it is: "
            f"{PurePosixPath(value).parent}"
        )
    return "." if PurePosixPath(value) == PurePosixPath() else _below(value)


Below = Annotated[Text, AfterValidator(_below)]
Within = Annotated[Text, AfterValidator(_within)]


class Reports(Section):
    """Where the reports of a command are read that doesn't call `cloudtune.report`.

    `file`: a file, or a pattern of files, of JSON lines, JSON (`trainer_state.json`), CSV,
    TensorBoard's events or W&B's offline runs, as its name says. `printed`: the text before a
    number that the command prints, and the number's name in braces; or a regular expression with
    named groups. A line without the metric of the experiment is no report.
    """

    file: Below | None = Field(default=None, examples=["logs/**/*.csv"])
    printed: Annotated[Text, AfterValidator(_pattern)] | None = Field(
        default=None, examples=[f"'{EXAMPLE}'"]
    )

    @property
    def any(self) -> bool:
        """Whether reports are read; otherwise the command calls `cloudtune.report`."""
        return self.file is not None or self.printed is not None

    @model_validator(mode="after")
    def _one_of_them(self) -> Reports:
        if self.file is not None and self.printed is not None:
            raise refuse("say file or printed, not both", "printed")
        return self


class Checkpoints(Section):
    """Where a command keeps what it needs to go on: put back there when it is started again.

    A function gives its checkpoints to `cloudtune.report`. `folder` is relative to where the
    command runs; "." for one that saves there itself, of which only files of models are kept, by
    their suffix. `resumes`: whether trials go on from there; otherwise models are kept, and the
    default strategy never pauses a trial. A function that names no Checkpoint doesn't.
    """

    folder: Within | None = Field(default=None, examples=["out"])
    resumes: Annotated[bool, Strict()] = Field(default=True, examples=["false"])


class ProgressSettings(Section):
    """What is counted, and how much of it makes a report: {unit: step, every: 500}.

    A part of an epoch is {every: 1/4}, which `reports_each` epoch: 4.
    `field` is the number of a report that says where it is, where the script doesn't say so by
    `cloudtune.report(…, step=1500)`; without both, reports are counted.
    """

    unit: Literal["epoch", "step"] = "epoch"
    every: Every = Field(default=1, examples=["500"])
    field: Text | None = Field(default=None, examples=["global_step"])

    @model_validator(mode="after")
    def _whole_steps(self) -> ProgressSettings:
        if self.unit == "step" and self.every < 1:
            raise refuse("steps have no parts; write a whole number", "every")
        return self

    @property
    def reports_each(self) -> int:
        """How many reports an epoch has; 1 where there is at most one."""
        return max(1, round(1 / self.every))


_PYTHON = re.compile(r"3\.(\d{1,2})(\.\d{1,2})?")
_OLDEST_PYTHON = 11  # cloudtune's own, of 3.x


def _python(value: object) -> object:
    if isinstance(value, float):  # 3.10 would be 3.1
        raise refuse(f"{value} is a number; write it in quotes")
    if isinstance(value, str):
        match = _PYTHON.fullmatch(value)
        if match is None:
            raise refuse(f'{quote(value)} is no version of Python; write one such as "3.12"')
        if int(match[1]) < _OLDEST_PYTHON:
            raise refuse(f"{value} is too old: cloudtune needs 3.{_OLDEST_PYTHON} or later")
    return value


def _requirements(value: object) -> object:
    """Return a file's name, or the listed requirements, each of which must be valid."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        raise refuse(f"{quote(value)} is neither a file nor a list; write requirements.txt")
    for index, requirement in enumerate(value):
        if not isinstance(requirement, str):
            raise refuse(
                f"{quote(requirement)} is no requirement; write one such as tqdm>=4", index
            )
        try:
            Requirement(requirement)
        except InvalidRequirement as error:
            why = str(error).splitlines()[0]
            raise refuse(f"{quote(requirement)} is no requirement: {why}", index) from None
    return tuple(value)


_Absolute = Annotated[
    Text,
    text_that(
        lambda value: PurePosixPath(value).is_absolute(),
        "is no path from /; write one such as /opt/pytorch/bin/python",
    ),
]


class Setup(Section):
    """What the script needs on each instance: packages, commands, or a Python of the image's.

    With `python` or `pip` an environment is built once, with cloudtune in it, and instances fetch
    it. `pip` is requirements.txt, pyproject.toml or a list; [] is cloudtune alone. `commands` run
    as root on each instance before it joins. `python_path` is a Python of the image that has
    cloudtune, where no environment is built.
    """

    python: Annotated[Text | None, BeforeValidator(_python)] = Field(
        default=None, examples=['"3.12"']
    )
    pip: Annotated[str | tuple[str, ...] | None, BeforeValidator(_requirements)] = Field(
        default=None, examples=["requirements.txt"]
    )
    commands: tuple[Text, ...] = Field(default=(), examples=["[apt-get install -y libsndfile1]"])
    python_path: _Absolute | None = Field(default=None, examples=["/opt/pytorch/bin/python"])

    @model_validator(mode="after")
    def _one_python(self) -> Setup:
        if self.python_path is not None and self.builds:
            raise refuse(
                "is for an image that has everything; leave it out, or python and pip",
                "python_path",
            )
        return self

    @property
    def builds(self) -> bool:
        return self.python is not None or self.pip is not None

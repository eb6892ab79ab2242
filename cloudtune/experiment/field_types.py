"""The types of an experiment's fields: what each accepts, and its error otherwise."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, PlainValidator, Strict

from cloudtune.errors import UsageError, quote
from cloudtune.experiment.search_space import plain
from cloudtune.experiment.spaces import (
    MUTATORS,
    PlaceError,
    check_name,
    parameter_jsonable,
    parse_parameter,
)
from cloudtune.experiment.validation import refuse
from cloudtune.model.units import parse_dollars, parse_seconds
from cloudtune.script.command import is_command

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TRAIN = re.compile(r"([^:]+\.py):([^\W\d]\w*)")
_QUOTIENT = re.compile(r"1\s*/\s*(\d{1,6})")
# The most units from report to report, the smallest part of one, and how exactly that is written.
_MOST = 10**9
_LEAST_PART = 1e-4
_PART_ERROR = 0.02
_STORAGE = re.compile(r"s3://[^/]+(/.*)?|(?!s3:)(?![A-Za-z0-9+.-]+://).+")


def text_that(passes: Callable[[str], object], otherwise: str) -> AfterValidator:
    """Return a validator of texts that pass a test; `otherwise` is the error."""

    def check(value: str) -> str:
        if not passes(value):
            raise refuse(f"{quote(value)} {otherwise}")
        return value

    return AfterValidator(check)


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = f"{value.total_seconds()!r}s"
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = quote(value)
    if not isinstance(value, str):
        raise refuse(f"{quote(value)} is not a duration; write one such as 30m or 2h")
    try:
        return parse_seconds(value)
    except UsageError as error:
        raise refuse(str(error)) from None


def _dollars(value: Any) -> float | None:
    try:
        return None if value is None else parse_dollars(value)
    except UsageError as error:
        raise refuse(str(error)) from None


def _parameter_name(value: str) -> str:
    try:
        check_name(value)
    except PlaceError as error:
        raise refuse(str(error)) from None
    return value


def model_name(parameter: object) -> str:
    """Return the `train.py:MODEL` that a parameter names as mutators; otherwise ""."""
    if not isinstance(parameter, Mapping) or set(parameter) != {MUTATORS}:
        return ""
    named = parameter[MUTATORS]
    return named if isinstance(named, str) and _TRAIN.fullmatch(named) else ""


def _parameter(value: object) -> object:
    """Return the parameter in its normal JSON form.

    The name of a script's space over networks stays until the experiment reads the script.
    """
    if model_name(value):
        return value
    try:
        return parameter_jsonable(parse_parameter(plain(value)))
    except PlaceError as error:
        raise refuse(str(error), *error.path) from None


def _history(value: object) -> str | tuple[str, ...]:
    """Return "auto", "off" or the names of runs, each once.

    Ledgers of versions before 0.3 have a mapping.
    """
    if isinstance(value, Mapping):
        if value.get("configurations", "off") not in {False, "off"}:
            message = "configurations of earlier runs are no longer taken over; leave them out"
            raise refuse(message, "configurations")
        value = value.get("times", "auto")
    if value is False:  # many YAML readers parse off as false
        return "off"
    if isinstance(value, str) and value in {"auto", "off"}:
        return value
    if not isinstance(value, list | tuple):
        raise refuse(f"{quote(value)} is not known; write auto, off or a list of runs")
    if not value:
        raise refuse("the list is empty; write auto, off or a list of runs")
    for index, run in enumerate(value):
        if not isinstance(run, str) or not _NAME.fullmatch(run):
            raise refuse(f"{quote(run)} is no name of a run; `cloudtune runs` lists them", index)
        if run in value[:index]:
            raise refuse(f"{quote(run)} is listed twice; keep one", index)
    return tuple(value)


def _directory(value: object) -> Path:
    if not isinstance(value, str | Path):
        raise refuse(f"{quote(value)} is not a folder; write its path")
    return Path(value).absolute()


Text = Annotated[
    str,
    Strict(),
    text_that(
        lambda value: value.strip() and value.isprintable(),
        "is empty or can't be printed; write plain text",
    ),
]


def _every(value: object) -> float:
    """Return a whole number, or 1/n for a part: 0.25, or 1/4, which isn't a number in YAML."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST:
        return value
    part = _QUOTIENT.fullmatch(value) if isinstance(value, str) else None
    count = int(part[1]) if part is not None else 0
    if isinstance(value, float) and _LEAST_PART <= value < 1:
        count = round(1 / value)
        if abs(1 / value - count) > _PART_ERROR * count:
            refused = f"an epoch has no whole number of parts of {value:g}"
            raise refuse(f"{refused}; write 1/{count}")
    if not 2 <= count <= 1 / _LEAST_PART:
        raise refuse(
            f"{quote(value)} is neither a whole number from 1 to {_MOST:,} nor a part such as 1/4"
        )
    return 1 / count


Whole = Annotated[int, Strict()]
Every = Annotated[int | float, PlainValidator(_every)]
Seconds = Annotated[
    float | None,
    PlainValidator(_seconds),
    # JSON has the same form as the file, where a duration has a unit.
    PlainSerializer(lambda seconds: f"{seconds!r}s", when_used="json-unless-none"),
]
Dollars = Annotated[float | None, PlainValidator(_dollars)]
Name = Annotated[
    Text,
    text_that(
        _NAME.fullmatch,
        "can't name folders and cloud tags; write up to 63 letters, digits, . _ or -, beginning "
        "with a letter or digit",
    ),
]
Train = Annotated[
    Text,
    text_that(
        lambda value: _TRAIN.fullmatch(value) or is_command(value),
        "is not file.py:function; write the file and the function in it, such as train.py:train, "
        "or a command, such as python train.py --lr {lr}",
    ),
]
Storage = Annotated[
    Text,
    text_that(_STORAGE.fullmatch, "is no folder and no s3://bucket/prefix; write one of them"),
]
ParameterName = Annotated[Text, AfterValidator(_parameter_name)]
Parameter = Annotated[Any, PlainValidator(_parameter)]
History = Annotated[str | tuple[str, ...], PlainValidator(_history)]
Directory = Annotated[Path, PlainValidator(_directory)]

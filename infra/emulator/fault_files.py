"""Parsing faults from JSON: into `Fault`s, or one clear message."""

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from cloudtune.errors import UsageError, allowed_names, nearest, quote
from cloudtune.infra.aws.pricing import instance_types
from cloudtune.infra.emulator.faults import ANY, KINDS, CallFault, Fault, Market

_PATTERN = frozenset("*?[")


def read_faults(path: Path) -> list[Fault]:
    """Return the faults of a file, a JSON list of objects.

    Raises:
        UsageError: the file can't be read, or isn't such a list; the message says where.
    """
    try:
        return parse_faults(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_faults(data: object) -> list[Fault]:
    """Return the faults that a JSON document lists.

    Raises:
        UsageError: an item isn't a fault; the message says which, and why.
    """
    if not isinstance(data, list):
        raise UsageError(f"faults are a list of objects, not {quote(data)}")
    faults = []
    for number, item in enumerate(data, 1):
        try:
            faults.append(parse_fault(item))
        except UsageError as error:
            raise UsageError(f"fault {number}: {error}") from None
    return faults


def parse_fault(data: object) -> Fault:
    """Return the fault of a JSON object; without a kind it is an error of a call.

    An error or a lost answer strikes once, unless `times` or `rate` say otherwise.

    Raises:
        UsageError: it isn't a fault.
    """
    if not isinstance(data, dict):
        raise UsageError(f"a fault is an object with a kind, not {quote(data)}")
    values = {**data}
    name = values.pop("kind", "error")
    if not isinstance(name, str) or name not in KINDS:
        raise UsageError(f"kind: no fault is called {quote(name)}; {allowed_names(name, KINDS)}")
    kind = KINDS[name]
    if issubclass(kind, CallFault) and not {"times", "rate"} & values.keys():
        values["times"] = 1
    try:
        fault: Fault = TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        detail = min(errors, key=lambda detail: detail["type"] == "missing")
        raise UsageError(_message(name, kind, detail)) from None
    _check_name("action", values, _actions)
    _check_name("type", values, instance_types)
    _check_name("market", values, lambda: get_args(Market))
    return fault


def _message(name: str, kind: type[Fault], detail: ErrorDetails) -> str:
    field = str(detail["loc"][0])
    if detail["type"] == "unexpected_keyword_argument":
        names = [field_of_kind.name for field_of_kind in fields(kind)]
        return f"{name} has no field {quote(field)}; {allowed_names(field, names)}"
    if detail["type"] == "missing":
        return f"{name} needs {quote(field)}"
    return f"{field}: {quote(detail['input'])}: {detail['msg']}"


def _check_name(field: str, values: dict[str, Any], names: Callable[[], Iterable[str]]) -> None:
    name = values.get(field, ANY)
    if name == ANY or any(fnmatchcase(possible, name) for possible in names()):
        return
    if _PATTERN & set(name):
        raise UsageError(f"{field}: nothing that EC2 has fits the pattern {quote(name)}")
    raise UsageError(f"{field}: EC2 has no {quote(name)}.{nearest(name, names())}")


@cache
def _actions() -> frozenset[str]:
    import botocore.session  # noqa: PLC0415  loading EC2's model takes 0.3 s

    model = botocore.session.get_session().get_service_model("ec2")
    return frozenset(model.operation_names)

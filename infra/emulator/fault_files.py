"""Reading faults as people and programs write them: JSON in, `Fault`s or one clear message out."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError, allowed_names, nearest, shown
from cloudtune.infra.aws.pricing import instance_types
from cloudtune.infra.emulator.faults import ANY, KINDS, CallFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cloudtune.infra.emulator.faults import Fault

_MARKETS = ("on-demand", "spot")
_ANSWERS = ("reset", "InternalError")
_PATTERN = frozenset("*?[")


def read_faults(path: Path) -> list[Fault]:
    """Return the faults of a file, a JSON list of objects.

    Raises:
        UsageError: there is no such file, or it is not what it should be; the message says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {error}") from None
    try:
        return parse_faults(given)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_faults(given: object) -> list[Fault]:
    """Return the faults that a JSON document lists.

    Raises:
        UsageError: something listed is no fault; the message says which, and what it lacks.
    """
    if not isinstance(given, list):
        raise UsageError(f"faults are a list of objects, not {shown(given)}")
    found = []
    for number, one in enumerate(given, 1):
        try:
            found.append(parse_fault(one))
        except UsageError as error:
            raise UsageError(f"fault {number}: {error}") from None
    return found


def parse_fault(given: object) -> Fault:
    """Return the fault that a JSON object describes; without a kind it is an error of a call.

    Raises:
        UsageError: it describes none.
    """
    if not isinstance(given, dict):
        raise UsageError(f"a fault is an object with a kind, not {shown(given)}")
    rest = dict(given)
    name = rest.pop("kind", "error")
    if not isinstance(name, str) or name not in KINDS:
        raise UsageError(f"kind: no fault is called {shown(name)}; {allowed_names(name, KINDS)}")
    kind = KINDS[name]
    known = {each.name: each.default for each in fields(kind)}
    for field, value in rest.items():
        if field not in known:
            raise UsageError(f"{name} has no field {shown(field)}; {allowed_names(field, known)}")
        _check(field, value)
    needed = [each.name for each in fields(kind) if _is_needed(each)]
    if missing := [field for field in needed if field not in rest]:
        raise UsageError(f"{name} needs {' and '.join(map(repr, missing))}")
    return _build(kind, rest)


def _is_needed(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _build(kind: type[Fault], given: Mapping[str, Any]) -> Fault:
    """Make a fault; an error or a lost answer strikes once if nothing says how often."""
    usual: dict[str, Any] = {}
    if issubclass(kind, CallFault) and not {"times", "rate"} & given.keys():
        usual["times"] = 1
    return kind(**{**usual, **given})


def _check(field: str, value: object) -> None:
    """Pass if a field may have this value.

    Raises:
        UsageError: it may not.
    """
    is_right, wanted = _VALUES[field]
    if not is_right(value):
        raise UsageError(f"{field}: {shown(value)} is not {wanted}")
    if field == "action":
        _check_name(field, str(value), _actions)
    if field == "type":
        _check_name(field, str(value), instance_types)
    if field == "market" and not any(fnmatchcase(each, str(value)) for each in _MARKETS):
        raise UsageError(f"market: there is no {shown(value)}; {allowed_names(value, _MARKETS)}")


def _check_name(field: str, name: str, known: Callable[[], Any]) -> None:
    if name == ANY or any(fnmatchcase(each, name) for each in known()):
        return
    if _PATTERN & set(name):
        raise UsageError(f"{field}: nothing that EC2 has fits the pattern {shown(name)}")
    raise UsageError(f"{field}: EC2 has no {shown(name)}.{nearest(name, known())}")


@cache
def _actions() -> frozenset[str]:
    import botocore.session  # noqa: PLC0415 - 0.3 s with EC2's model, and only for this

    model = botocore.session.get_session().get_service_model("ec2")
    return frozenset(model.operation_names)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count_or_null(value: object) -> bool:
    return value is None or _is_count(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_number_or_null(value: object) -> bool:
    return value is None or _is_number(value)


def _is_share(value: object) -> bool:
    return _is_number(value) and float(str(value)) <= 1


def _is_answer(value: object) -> bool:
    return value in _ANSWERS


_Rule = tuple["Callable[[object], bool]", str]
_NAME: _Rule = (_is_text, "a name")
_COUNT_OR_NULL: _Rule = (_is_count_or_null, "a whole number from 0 up, or null for no limit")
_SECONDS: _Rule = (_is_number, "a number of seconds from 0 up")
_RATE: _Rule = (_is_number_or_null, "a number from 0 up, or null for AWS's own")
_VALUES: dict[str, _Rule] = {
    "action": _NAME,
    "code": _NAME,
    "type": _NAME,
    "market": _NAME,
    "zone": _NAME,
    "message": (lambda value: isinstance(value, str), "a text"),
    "match": (_is_texts, "an object of parameters and their values, both texts"),
    "times": _COUNT_OR_NULL,
    "instances": _COUNT_OR_NULL,
    "vcpus": _COUNT_OR_NULL,
    "rate": (_is_share, "a share from 0 to 1"),
    "seed": (_is_whole, "a whole number"),
    "calls": (_is_count, "a whole number from 0 up"),
    "seconds": _SECONDS,
    "after": _SECONDS,
    "notice": _SECONDS,
    "burst": _RATE,
    "per_second": _RATE,
    "answer": (_is_answer, f"one of {', '.join(_ANSWERS)}"),
}

"""Whether policies allow a call: the part of IAM's evaluation that an account by itself has.

As the IAM user guide has it (Policy evaluation logic; JSON policy elements; read 2026-11): an
explicit deny wins, then an allow, and what nobody allows is denied. Not there: boundaries, policies
of organizations, of sessions and of resources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

Verdict = Literal["allowed", "denied", "not allowed"]
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """One action on one resource (an ARN, or "*"), and what is known of the call by condition key.

    Keys are compared without regard to case, values with it.
    """

    action: str
    resource: str
    context: Mapping[str, Sequence[str]] = field(default_factory=dict)


def verdict(policies: Iterable[Document], asked: Asked) -> Verdict:
    """Return what the policies of a caller say of it."""
    found: Verdict = "not allowed"
    for document in policies:
        for statement in _several(document.get("Statement", ())):
            if not _applies(statement, asked):
                continue
            if statement["Effect"] == "Deny":
                return "denied"
            found = "allowed"
    return found


def _applies(statement: Document, asked: Asked) -> bool:
    return (
        _named(statement, "Action", asked.action, ignore_case=True)
        and _named(statement, "Resource", asked.resource)
        and all(
            _holds(operator, key, _several(values), asked.context)
            for operator, tests in statement.get("Condition", {}).items()
            for key, values in tests.items()
        )
    )


def _named(statement: Document, element: str, name: str, *, ignore_case: bool = False) -> bool:
    if f"Not{element}" in statement:
        patterns = _several(statement[f"Not{element}"])
        return not any(_matches(each, name, ignore_case=ignore_case) for each in patterns)
    patterns = _several(statement.get(element, ()))
    return any(_matches(each, name, ignore_case=ignore_case) for each in patterns)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@cache
def _pattern(text: str, *, ignore_case: bool) -> re.Pattern[str]:
    escaped = re.escape(text).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def _matches(pattern: str, name: str, *, ignore_case: bool = False) -> bool:
    return _pattern(pattern, ignore_case=ignore_case).fullmatch(name) is not None


# ---- conditions ----------------------------------------------------------------------------


def _truth(value: str) -> str:
    return value.lower()


_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda given, wanted: given == wanted,
    "StringEqualsIgnoreCase": lambda given, wanted: given.lower() == wanted.lower(),
    "StringLike": lambda given, wanted: _matches(wanted, given),
    "ArnEquals": lambda given, wanted: _matches(wanted, given),
    "ArnLike": lambda given, wanted: _matches(wanted, given),
    "Bool": lambda given, wanted: _truth(given) == _truth(wanted),
    "NumericEquals": lambda given, wanted: float(given) == float(wanted),
    "NumericLessThan": lambda given, wanted: float(given) < float(wanted),
    "NumericLessThanEquals": lambda given, wanted: float(given) <= float(wanted),
    "NumericGreaterThan": lambda given, wanted: float(given) > float(wanted),
    "NumericGreaterThanEquals": lambda given, wanted: float(given) >= float(wanted),
}
_NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
}


def _holds(
    operator: str, key: str, wanted: Sequence[Any], context: Mapping[str, Sequence[str]]
) -> bool:
    """Whether one condition holds.

    Raises:
        ValueError: an operator that isn't known here; a guess would be a right or a refusal.
    """
    given = next((v for k, v in context.items() if k.lower() == key.lower()), None)
    if operator == "Null":
        return any((given is None) == (_truth(str(each)) == "true") for each in wanted)
    quantifier, _, name = operator.rpartition(":")
    optional = name.endswith("IfExists")
    name = name.removesuffix("IfExists")
    negated = name in _NEGATED
    test = _TESTS.get(_NEGATED.get(name, name))
    if test is None or quantifier not in {"", "ForAllValues", "ForAnyValue"}:
        raise ValueError(f"the emulator knows no condition {operator!r}")
    if given is None:  # an absent key fails a test, and passes what is negated
        return optional or negated or quantifier == "ForAllValues"

    def holds(value: str) -> bool:
        return any(test(value, str(each)) for each in wanted) != negated

    return all(map(holds, given)) if quantifier == "ForAllValues" else any(map(holds, given))

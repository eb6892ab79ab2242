"""Whether IAM policies let somebody do something: statements, wildcards, conditions.

By the IAM user guide (Policy evaluation logic; IAM JSON policy elements: Action, NotAction,
Resource, NotResource, Condition operators, Condition set operators), as known to us: what no
statement allows is denied, and an explicit deny wins. Not there: Principal (policies of resources),
permissions boundaries, session and organisation policies, dates and addresses in conditions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Test = Callable[[str, str], bool]

Verdict = Literal["allowed", "denied", "not allowed"]
"""`denied`: a statement says so; `not allowed`: none says that it may."""

_ARN_PARTS = 6
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True)
class Asked:
    """One thing that somebody wants to do: an action, the ARN of a resource, and the context.

    The resource is "*" where the action knows none. The context has the values of each condition
    key that the request has; its keys are compared without regard to case, as in IAM.
    """

    action: str
    resource: str = "*"
    context: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def values(self, key: str) -> Sequence[str] | None:
        """Return the values of a condition key; None where the request hasn't it."""
        lower = key.lower()
        return next((found for name, found in self.context.items() if name.lower() == lower), None)


def verdict(policies: Iterable[Mapping[str, Any]], asked: Asked) -> Verdict:
    """Return what policies say together.

    Raises:
        ValueError: a policy has an element that isn't known here.
    """
    effects = {
        str(statement["Effect"])
        for policy in policies
        for statement in _listed(policy["Statement"])
        if _fits(statement, asked)
    }
    if "Deny" in effects:
        return "denied"
    return "allowed" if "Allow" in effects else "not allowed"


def _fits(statement: Mapping[str, Any], asked: Asked) -> bool:
    return (
        _fits_action(statement, asked.action)
        and _fits_resource(statement, asked)
        and all(
            _holds(operator, key, [str(each) for each in _texts(wanted)], asked)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _fits_action(statement: Mapping[str, Any], action: str) -> bool:
    if "NotAction" in statement:
        return not any(like(action, each, fold=True) for each in _listed(statement["NotAction"]))
    return any(like(action, each, fold=True) for each in _listed(statement["Action"]))


def _fits_resource(statement: Mapping[str, Any], asked: Asked) -> bool:
    named = "NotResource" if "NotResource" in statement else "Resource"
    patterns = [_filled(each, asked) for each in _listed(statement[named])]
    found = any(_like_arn(asked.resource, each) for each in patterns)
    return found is (named == "Resource")


def _like_arn(arn: str, pattern: str) -> bool:
    """Whether an ARN fits a pattern, part by part: a wildcard stays within its colons."""
    if pattern == "*":
        return True
    ours, theirs = arn.split(":", _ARN_PARTS - 1), pattern.split(":", _ARN_PARTS - 1)
    return len(ours) == len(theirs) and all(map(like, ours, theirs))


def like(text: str, pattern: str, *, fold: bool = False) -> bool:
    """Whether a text fits a pattern with IAM's wildcards; with `fold` whatever the case."""
    return _compiled(pattern, fold).fullmatch(text) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str, fold: bool) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    written = "".join(wild.get(letter, re.escape(letter)) for letter in pattern)
    return re.compile(written, re.DOTALL | (re.IGNORECASE if fold else 0))


def _filled(text: str, asked: Asked) -> str:
    """Put the values of policy variables such as ${aws:username} into a text."""

    def value(found: re.Match[str]) -> str:
        name = found[1].partition(",")[0].strip()
        if name in ("*", "?", "$"):
            return name
        given = asked.values(name)
        return given[0] if given else found[0]

    return _VARIABLE.sub(value, text)


# ---- conditions ----------------------------------------------------------------------------


def _number(compare: Callable[[float, float], bool]) -> Test:
    def test(given: str, wanted: str) -> bool:
        try:
            return compare(float(given), float(wanted))
        except ValueError:
            return False

    return test


_TESTS: dict[str, Test] = {
    "StringEquals": lambda given, wanted: given == wanted,
    "StringEqualsIgnoreCase": lambda given, wanted: given.lower() == wanted.lower(),
    "StringLike": like,
    "ArnEquals": _like_arn,
    "ArnLike": _like_arn,
    "Bool": lambda given, wanted: given.lower() == wanted.lower(),
    "NumericEquals": _number(lambda given, wanted: given == wanted),
    "NumericLessThan": _number(lambda given, wanted: given < wanted),
    "NumericLessThanEquals": _number(lambda given, wanted: given <= wanted),
    "NumericGreaterThan": _number(lambda given, wanted: given > wanted),
    "NumericGreaterThanEquals": _number(lambda given, wanted: given >= wanted),
}
_NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
}


def _holds(operator: str, key: str, wanted: Sequence[str], asked: Asked) -> bool:
    given = asked.values(key)
    if operator == "Null":
        return any((given is None) is (each.lower() == "true") for each in wanted)
    of, _, name = operator.rpartition(":")
    if name.endswith("IfExists"):
        if given is None:
            return True
        name = name.removesuffix("IfExists")
    negated = name in _NEGATED
    test = _TESTS.get(_NEGATED.get(name, name))
    if test is None or of not in ("", "ForAllValues", "ForAnyValue"):
        raise ValueError(f"the emulator's IAM doesn't know the condition operator {operator!r}")
    if given is None:  # a negated operator holds for a key that isn't there
        return of == "ForAllValues" or (negated and of == "")
    filled = [_filled(each, asked) for each in wanted]
    fits = [any(test(each, pattern) for pattern in filled) is not negated for each in given]
    return all(fits) if of == "ForAllValues" else any(fits)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _texts(value: Any) -> list[str]:
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in _listed(value)]

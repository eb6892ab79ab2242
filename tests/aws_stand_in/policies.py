"""Whether IAM policies let somebody do something: statements, wildcards, conditions.

By the IAM user guide (Policy evaluation logic; IAM JSON policy elements: Action, Resource,
Condition operators), as known to us: what no statement allows is denied, and an explicit deny wins.
Only the elements and operators that cloudtune's policies and the tests use are here; any other one
is a ValueError, never a silent no.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

Verdict = Literal["allowed", "denied", "not allowed"]
"""`denied`: a statement says so; `not allowed`: none says that it may."""

_ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition"}
_ARN_PARTS = 6


@dataclass(frozen=True)
class Asked:
    """One thing that somebody wants to do: an action, the ARN of a resource, and the context.

    The resource is "*" if the action has no resources. The context has the values of each condition
    key of the request; keys are compared without regard to case, as in IAM.
    """

    action: str
    resource: str = "*"
    context: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def values(self, key: str) -> Sequence[str] | None:
        """Return the values of a condition key; None if the request doesn't have it."""
        lower = key.lower()
        values = (given for name, given in self.context.items() if name.lower() == lower)
        return next(values, None)


def verdict(policies: Iterable[Mapping[str, Any]], asked: Asked) -> Verdict:
    """Return what policies say together.

    Raises:
        ValueError: a policy has an element or an operator that isn't here.
    """
    effects = {
        str(statement["Effect"])
        for policy in policies
        for statement in _as_list(policy["Statement"])
        if _fits(statement, asked)
    }
    if "Deny" in effects:
        return "denied"
    return "allowed" if "Allow" in effects else "not allowed"


def _fits(statement: Mapping[str, Any], asked: Asked) -> bool:
    if strange := statement.keys() - _ELEMENTS:
        raise ValueError(f"the stand-in's IAM doesn't know {', '.join(sorted(strange))}")
    actions = _as_list(statement["Action"])
    resources = _as_list(statement["Resource"])
    return (
        any(_is_like(asked.action.lower(), pattern.lower()) for pattern in actions)
        and any(_is_like_arn(asked.resource, pattern) for pattern in resources)
        and all(
            _holds(operator, asked.values(key), [str(value) for value in _as_list(wanted)])
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _is_like_arn(arn: str, pattern: str) -> bool:
    """Whether an ARN fits a pattern, part by part: a wildcard stays within its colons."""
    if pattern == "*":
        return True
    parts = arn.split(":", _ARN_PARTS - 1)
    patterns = pattern.split(":", _ARN_PARTS - 1)
    return len(parts) == len(patterns) and all(map(_is_like, parts, patterns))


def _is_like(text: str, pattern: str) -> bool:
    return _compile(pattern).fullmatch(text) is not None


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(letter, re.escape(letter)) for letter in pattern), re.DOTALL)


_TESTS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda given, wanted: given == wanted,
    "StringLike": _is_like,
}


def _holds(operator: str, given: Sequence[str] | None, wanted: Sequence[str]) -> bool:
    if operator == "Null":
        return (given is None) is (wanted == ["true"])
    if operator == "Bool":
        return _holds("StringEquals", given, wanted)
    if operator == "StringNotEquals":
        return not _holds("StringEquals", given, wanted)
    test = _TESTS.get(operator)
    if test is None:
        raise ValueError(f"the stand-in's IAM doesn't know the condition operator {operator!r}")
    return any(test(value, pattern) for pattern in wanted for value in given or ())


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]

"""The domains of a search space: what a hyperparameter may be (`spaces` combines them).

The names and their meaning are Ray Tune's: uniform, loguniform, quniform, qloguniform, randint,
lograndint, choice, grid.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from random import Random
from typing import TypeAlias

from cloudtune.errors import ExperimentError, allowed_names, quote

# A list is one value, as it is in JSON.
Value: TypeAlias = "str | int | float | bool | list[Value] | None"

# Draws only use `Random.random`, whose sequence Python promises to keep.


@dataclass(frozen=True)
class Uniform:
    """A number between low and high, all equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_numbers(self.low, self.high)
        _check_rising(self.low, self.high)

    def draw(self, stream: Random) -> Value:
        return _between(self.low, self.high, stream)


@dataclass(frozen=True)
class LogUniform:
    """A number between low and high, each order of magnitude equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_numbers(self.low, self.high)
        _check_positive(self.low, "1e-4, or use uniform")
        _check_rising(self.low, self.high)

    def draw(self, stream: Random) -> Value:
        drawn = _between_logs(self.low, self.high, stream)
        return min(max(drawn, float(self.low)), float(self.high))


@dataclass(frozen=True)
class QUniform:
    """A multiple of q between low and high, both included.

    As in Ray a uniform draw is rounded, so the two ends are half as likely as the rest.
    """

    low: float
    high: float
    q: float

    def __post_init__(self) -> None:
        _check_numbers(self.low, self.high, self.q)
        if self.q <= 0:
            raise ExperimentError(f"the step q is {quote(self.q)}; write one above 0 such as 0.1")
        _check_rising(self.low, self.high)
        for name, bound in (("low", self.low), ("high", self.high)):
            if not _is_multiple(bound, self.q):
                raise ExperimentError(
                    f"{name} is {quote(bound)}, not a multiple of the step q = {quote(self.q)}; "
                    "move it onto a multiple"
                )

    def draw(self, stream: Random) -> Value:
        """Return one multiple, without the noise of binary floats: 0.3, not 0.30000000000000004."""
        return self._nearest(_between(self.low, self.high, stream))

    def _nearest(self, number: float) -> float:
        return multiple(self.q, round(number / self.q))


@dataclass(frozen=True)
class QLogUniform(QUniform):
    """A multiple of q between low and high, each order of magnitude equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self.low, f"{self.q:g}, or use quniform")

    def draw(self, stream: Random) -> Value:
        return self._nearest(_between_logs(self.low, self.high, stream))


@dataclass(frozen=True)
class RandInt:
    """A whole number from low up to, but without, high."""

    low: int
    high: int

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if type(bound) is not int:
                raise ExperimentError(f"{name} is {quote(bound)}; write a whole number such as 8")
            _scalar(bound)
        _check_rising(self.low, self.high)

    def draw(self, stream: Random) -> Value:
        return self.low + _index(self.high - self.low, stream)


@dataclass(frozen=True)
class LogRandInt(RandInt):
    """A whole number from low up to, but without, high; each order of magnitude equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self.low, "1, or use randint")

    def draw(self, stream: Random) -> Value:
        drawn = int(_between_logs(self.low, self.high, stream))
        return min(max(drawn, self.low), self.high - 1)


@dataclass(frozen=True)
class Categories:
    """A choice among values, all equally likely."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        _check_values(self.values)

    def draw(self, stream: Random) -> Value:
        return self.values[_index(len(self.values), stream)]


@dataclass(frozen=True)
class Grid:
    """The values in turn, crossed with the other grids."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        _check_values(self.values)


@dataclass(frozen=True)
class Constant:
    """The same value in every trial."""

    value: Value

    def __post_init__(self) -> None:
        if self.value is None:
            raise ExperimentError(
                "is empty; write a constant or a distribution such as {uniform: [0, 1]}"
            )
        _scalar(self.value)

    def draw(self, stream: Random) -> Value:  # noqa: ARG002
        return self.value


Domain: TypeAlias = Uniform | LogUniform | QUniform | RandInt | Categories | Grid | Constant
_Range: TypeAlias = Uniform | LogUniform | QUniform | RandInt

_RANGES: dict[str, type[_Range]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "quniform": QUniform,
    "qloguniform": QLogUniform,
    "randint": RandInt,
    "lograndint": LogRandInt,
}
_LISTS: dict[str, type[Categories | Grid]] = {"choice": Categories, "grid": Grid}
_NAMES = {kind: name for name, kind in (_RANGES | _LISTS).items()}
# The keys of mappings with one entry that are domains.
DISTRIBUTIONS = tuple(_RANGES | _LISTS)


def plain(value: object) -> object:
    """Return a value as JSON has it: NumPy's numbers and arrays, tuples and ranges turned."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(below) for name, below in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    return value


def parse_domain(value: object) -> Domain:
    """Return the domain of `{loguniform: [1e-4, 1]}`, `{choice: [16, 32]}` or a plain value.

    Raises:
        ExperimentError: says what is wrong, without the parameter's name.
    """
    if isinstance(value, Domain):
        return value
    if isinstance(value, list | tuple | set):
        raise ExperimentError(
            f"{quote(value)} is a list; to choose one of them write {{choice: [...]}}, "
            "to try each write {grid: [...]}, and for a value that is a list {choice: [[...]]}"
        )
    if not isinstance(value, Mapping):
        return Constant(None if value is None else _scalar(value))
    if len(value) != 1:
        raise ExperimentError(
            f"{quote(dict(value))} has {len(value)} entries; write one distribution "
            f"such as {{uniform: [0, 1]}}; {allowed_names(None, _RANGES | _LISTS)}"
        )
    ((name, arguments),) = value.items()
    return _distribution(name, arguments)


def _distribution(name: object, arguments: object) -> Domain:
    if not isinstance(name, str) or name not in _RANGES | _LISTS:
        allowed = allowed_names(name, _RANGES | _LISTS)
        raise ExperimentError(f"unknown distribution {quote(name)}; {allowed}")
    if not isinstance(arguments, list | tuple):
        raise ExperimentError(f"{quote(arguments)} is not a list; write {_usage(name)}")
    if name in _LISTS:
        return _LISTS[name](tuple(arguments))
    if len(arguments) != len(fields(_RANGES[name])):
        raise ExperimentError(
            f"{quote(list(arguments))} has the wrong length; write {_usage(name)}"
        )
    return _RANGES[name](*arguments)


def _usage(name: str) -> str:
    if name in _LISTS:
        return f"{name}: [first, second, ...]"
    return f"{name}: [{', '.join(field.name for field in fields(_RANGES[name]))}]"


def multiple(q: float, steps: int) -> float:
    """Return `steps` times q, without the noise of binary floats."""
    return float(Decimal(repr(float(q))) * steps)


def contains(domain: Domain, value: object) -> bool:
    """Whether a value is in a domain; true and false aren't numbers."""
    match domain:
        case Constant(only):
            return _same(value, only)
        case Categories(values) | Grid(values):
            return any(_same(value, option) for option in values)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    match domain:
        case RandInt(low, high):
            return isinstance(value, int) and low <= value < high
        case QUniform(low, high, q):
            return low <= value <= high and _is_multiple(value, q)
        case _:
            return domain.low <= value <= domain.high


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def to_jsonable(domain: Domain) -> object:
    """Return a value that `parse_domain` turns into an equal domain."""
    match domain:
        case Constant(value):
            return value
        case Categories(values) | Grid(values):
            return {_NAMES[type(domain)]: list(values)}
        case _:
            bounds = [getattr(domain, field.name) for field in fields(domain)]
            return {_NAMES[type(domain)]: bounds}


def _between(low: float, high: float, stream: Random) -> float:
    return low + (high - low) * stream.random()


def _between_logs(low: float, high: float, stream: Random) -> float:
    return math.exp(_between(math.log(low), math.log(high), stream))


def _index(count: int, stream: Random) -> int:
    return min(int(stream.random() * count), count - 1)


def _is_multiple(bound: float, q: float) -> bool:
    steps = bound / q
    return abs(steps) < 2**53 and math.isclose(steps, round(steps), abs_tol=1e-9)


def _check_rising(low: float, high: float) -> None:
    if not low < high:
        raise ExperimentError(
            f"low is {quote(low)} and high is {quote(high)}; write a low that is below the high"
        )
    if not math.isfinite(high - low):
        raise ExperimentError(f"from {quote(low)} to {quote(high)} is too wide; narrow it")


def _check_positive(low: float, instead: str) -> None:
    if low <= 0:
        raise ExperimentError(
            f"low is {quote(low)}, and a logarithmic scale starts above 0; write a positive low "
            f"such as {instead}"
        )


def _check_values(values: tuple[Value, ...]) -> None:
    if not values:
        raise ExperimentError("the list is empty; write at least one value")
    for value in values:
        _scalar(value)


def _check_numbers(low: object, high: object, q: object = 1) -> None:
    for name, value in (("low", low), ("high", high), ("q", q)):
        if isinstance(value, str):
            raise ExperimentError(
                f"{name} is the text {quote(value)}; write a number such as 0.1, without quotes"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ExperimentError(f"{name} is {quote(value)}; write a number such as 0.1")
        _scalar(value)


def _scalar(value: object) -> Value:
    """Return the value if JSON can represent it: text, finite numbers, true, false, null, lists."""
    if isinstance(value, str):
        if not value.isprintable():
            raise ExperimentError(f"the text {quote(value)} has characters that can't be printed")
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ExperimentError(f"{quote(value)} does not fit into 64 bits; write a smaller one")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExperimentError(f"{quote(value)} is not a finite number; write one that is")
        return value
    if value is None:
        return None
    if isinstance(value, list):
        return [_scalar(item) for item in value]
    raise ExperimentError(
        f"{quote(value)} is no value here; write text, a number, true, false, null or a list"
    )

"""A search space as models and neighbours see it: each hyperparameter as an axis.

An axis is a line (a range of numbers), steps (numbers at equal distances) or labels (listed
values). A parameter with a single value has no axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, assert_never

from cloudtune.experiment.search_space import (
    Categories,
    Constant,
    Domain,
    Grid,
    LogRandInt,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
    multiple,
)
from cloudtune.experiment.spaces import Space

if TYPE_CHECKING:
    import numpy as np

    from cloudtune.experiment.search_space import Value

    Config: TypeAlias = Mapping[str, object]

# Positive numbers go on a log scale if the largest is more than this many times the smallest.
_WIDE = 100.0

# Population based training: the factor of a change, and how often a value is drawn again.
UP = 1.2
DOWN = 0.8
RESAMPLED = 0.25


@dataclass(frozen=True)
class NumberLine:
    """The numbers from low to high; with `log`, equal ratios are equally far apart."""

    low: float
    high: float
    log: bool = False

    def place(self, value: object) -> float:
        """Return the place of a number between low (0) and high (1)."""
        number = min(max(float(value), self.low), self.high)  # type: ignore[arg-type]
        low = self._scale(self.low)
        high = self._scale(self.high)
        return min(1.0, max(0.0, (self._scale(number) - low) / (high - low)))

    def value(self, place: float) -> float:
        low = self._scale(self.low)
        high = self._scale(self.high)
        number = low + (high - low) * place
        if self.log:
            number = math.exp(number)
        return min(max(number, self.low), self.high)

    def _scale(self, number: float) -> float:
        return math.log(number) if self.log else number


@dataclass(frozen=True)
class Steps:
    """`count` equidistant numbers from `first` on: whole ones, or multiples of `q`.

    With `log` their places are logarithmic: equal ratios are equally far apart.
    """

    first: int
    count: int
    q: float | None = None
    log: bool = False

    def place(self, value: object) -> float:
        """Return the place of a number between the first (0) and the last (1)."""
        index = self.index(value)
        return self._line.place(self.at(index)) if self.log else index / (self.count - 1)

    def index(self, value: object) -> int:
        """Return the index of the nearest step, from 0."""
        assert isinstance(value, int | float)
        step = round(value) if self.q is None else round(value / self.q)
        return min(max(step - self.first, 0), self.count - 1)

    def at(self, index: int) -> int | float:
        step = self.first + min(max(index, 0), self.count - 1)
        return step if self.q is None else multiple(self.q, step)

    def value(self, place: float) -> int | float:
        if self.log:
            return self.at(self.index(self._line.value(place)))
        return self.at(round(place * (self.count - 1)))

    @property
    def _line(self) -> NumberLine:
        return NumberLine(self.at(0), self.at(self.count - 1), log=True)


@dataclass(frozen=True)
class ListedValues:
    """Listed values; a value may be listed twice."""

    values: tuple[Value, ...]

    def index(self, value: object) -> int:
        """Return the index of a value in the list.

        Raises:
            ValueError: it isn't listed.
        """
        for number, listed in enumerate(self.values):
            if same(listed, value):
                return number
        raise ValueError(f"{value!r} is none of {self.values}")


Axis: TypeAlias = NumberLine | Steps | ListedValues
Axes: TypeAlias = Mapping[str, Axis]


def list_axes(space: Mapping[str, Domain]) -> dict[str, Axis]:
    """Return the axes of a search space, in its order."""
    axes = {name: _axis(domain) for name, domain in space.items()}
    return {name: axis for name, axis in axes.items() if axis is not None}


def _axis(domain: Domain) -> Axis | None:
    match domain:
        case Uniform(low, high):
            return NumberLine(low, high)
        case LogUniform(low, high):
            return NumberLine(low, high, log=True)
        case QUniform(low, high, q):
            first = round(low / q)
            count = round(high / q) - round(low / q) + 1
            return Steps(first, count, q, log=isinstance(domain, QLogUniform))
        case RandInt(low, high):
            log = isinstance(domain, LogRandInt)
            return Steps(low, high - low, log=log) if high - low > 1 else None
        case Categories(values) | Grid(values):
            return ListedValues(values) if len(values) > 1 else None
        case Constant():
            return None
        case _:
            assert_never(domain)


def read_value(config: Config, name: str) -> Value:
    """Return the value of a hyperparameter; None if it is missing or nan."""
    value = config.get(name)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value  # type: ignore[return-value]


def allows(space: Mapping[str, Domain], config: Config) -> bool:
    """Whether the values of a configuration are possible in a space."""
    space = Space.of(space)
    values = space.active_values(config)
    if any(space.is_branching(n) and space.active(n, values) and n not in values for n in space):
        return False
    axes = list_axes(space)
    return all(
        space.is_branching(name) or _allows(space[name], axes.get(name), read_value(values, name))
        for name in values
    )


def _allows(domain: Domain, axis: Axis | None, value: Value) -> bool:
    match axis:
        case None:
            return not isinstance(domain, Constant) or same(domain.value, value)
        case ListedValues(values):
            return any(same(listed, value) for listed in values)
        case _:
            low = axis.value(0.0)
            high = axis.value(1.0)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and low <= value <= high  # type: ignore[operator]


def axes_by_size(space: Mapping[str, Domain]) -> dict[str, Axis]:
    """Return the axes of a search space, with listed numbers placed by size too.

    For neighbours: to a model each listed value is a category. The names are those in
    configurations: a parameter of several branches is one axis with the values of all, and a
    parameter that a configuration may lack has None among its labels.
    """
    space = Space.of(space)
    branches: dict[str, list[Axis | tuple[Value, ...]]] = {}
    for name, domain in space.items():
        if not space.is_branching(name):
            axis = _axis(domain) or _single_value(domain)
            branches.setdefault(space.flat_name(name), []).append(axis)
    lacking = {space.flat_name(name) for name in space.conditions}
    axes = {name: _merge(parts, lacks=name in lacking) for name, parts in branches.items()}
    return {name: axis for name, axis in axes.items() if axis is not None}


def _single_value(domain: Domain) -> tuple[Value, ...]:
    """Return the single value of a domain without an axis."""
    match domain:
        case Constant(value):
            return (value,)
        case Categories(values) | Grid(values):
            return values[:1]
        case _:
            return (domain.low,)


def _merge(parts: Sequence[Axis | tuple[Value, ...]], *, lacks: bool) -> Axis | None:
    """Return the axis of a parameter for all branches that have it; None if it can't vary."""
    if len(parts) == 1 and not lacks:
        only = parts[0]
        if isinstance(only, tuple):
            return None
        return (fit_line(only.values) or only) if isinstance(only, ListedValues) else only
    values: list[Value] = []
    logs = []
    for part in parts:
        if isinstance(part, tuple | ListedValues):
            values += part.values if isinstance(part, ListedValues) else part
        else:
            values += [part.value(0.0), part.value(1.0)]
            logs.append(part.log)
    distinct = different(values)
    line = fit_line(distinct)
    if line is not None:
        return NumberLine(
            line.low, line.high, log=line.low > 0 and (all(logs) if logs else line.log)
        )
    if any(not isinstance(part, tuple | ListedValues) for part in parts):
        return None  # numbers in one branch and labels in another are no axis
    labels = different([*distinct, None]) if lacks else distinct
    return ListedValues(labels) if len(labels) > 1 else None


def perturb(axes: Axes, config: Config, chance: np.random.Generator) -> dict[str, object]:
    """Return a configuration near another: each hyperparameter changed a little, or drawn again.

    Numbers become 1.2 or 0.8 times as large, within their range, and move at least one step; listed
    numbers move to a neighbour; other labels stay, unless they are drawn again.
    Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), appendix A.1.
    """
    values = dict(config)
    for name, axis in axes.items():
        resampled = chance.random() < RESAMPLED
        factor = UP if chance.random() < 0.5 else DOWN
        place = chance.random()
        if resampled:
            values[name] = pick_value(axis, place)
        else:
            values[name] = _move(axis, read_value(config, name), factor)
    return values


def pick_value(axis: Axis, place: float) -> Value:
    """Return the value at a place of an axis, from 0 to 1."""
    if isinstance(axis, ListedValues):
        return axis.values[min(int(place * len(axis.values)), len(axis.values) - 1)]
    return axis.value(place)


def _move(axis: Axis, value: Value, factor: float) -> Value:
    if isinstance(axis, ListedValues):
        return _neighbour(axis, value, factor)
    assert isinstance(value, int | float)
    if isinstance(axis, NumberLine):
        return min(max(value * factor, axis.low), axis.high)
    old = axis.index(value)
    new = axis.index(value * factor)
    if old != new:
        return axis.at(new)
    grows = (factor > 1) == (value >= 0)
    step = 1 if grows else -1
    return axis.at(old + step)


def _neighbour(axis: ListedValues, value: Value, factor: float) -> Value:
    if not all(_number(listed) for listed in axis.values):
        return value
    ordered = sorted(different(axis.values))  # type: ignore[type-var]
    at = ordered.index(value) + (1 if factor > 1 else -1)
    return ordered[min(max(at, 0), len(ordered) - 1)]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(left: object, right: object) -> bool:
    """Whether two listed values are the same; True doesn't equal 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def different(values: Sequence[Value]) -> tuple[Value, ...]:
    """Return each value once; True doesn't equal 1."""
    return tuple({label(value): value for value in values}.values())


def label(value: object) -> tuple[bool, object]:
    """Return what is equal and hashes alike for the same values; True isn't 1."""
    hashable = repr(value) if isinstance(value, list) else value
    return isinstance(value, bool), hashable


def fit_line(values: Sequence[Value]) -> NumberLine | None:
    """Return the line of the values; None if they aren't numbers, or are all the same."""
    numbers = [float(value) for value in values if _number(value)]  # type: ignore[arg-type]
    if len(numbers) < len(values) or not all(math.isfinite(number) for number in numbers):
        return None
    low = min(numbers)
    high = max(numbers)
    if not 0 < high - low < math.inf:
        return None
    return NumberLine(low, high, log=low > 0 and high / low > _WIDE)

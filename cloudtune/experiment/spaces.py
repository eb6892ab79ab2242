"""Search spaces that nest and branch, and the configurations drawn from them.

    optimizer:                     # nested: optimizer/lr
      lr: {loguniform: [1e-4, 1]}
    schedule:                      # conditional: each branch brings its own parameters
      choice:
        - constant
        - {name: cosine, warmup: {uniform: [0, 0.1]}}
        - {name: step, gamma: {uniform: [0.1, 0.9]}, every: {randint: [1, 10]}}

Outside the script a configuration is flat, with names joined by a slash: `optimizer/lr`,
`schedule/name`, or `schedule` if the branch is a plain value. It has only the parameters of the
branches that it takes, which identify the branches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias, cast

from cloudtune.errors import ExperimentError, allowed_names, quote
from cloudtune.experiment.search_space import (
    DISTRIBUTIONS,
    Categories,
    Constant,
    Domain,
    Grid,
    Value,
    contains,
    parse_domain,
    to_jsonable,
)

Path: TypeAlias = tuple[str | int, ...]

# Separates the name of a choice from the number of a branch; no written name contains it.
_BRANCH = "\x1f"

# The key in a file for the choices of a network's mutators.
MUTATORS = "mutators"

# The number of the only branch.
ONLY_BRANCH = "0"


class PlaceError(ExperimentError):
    """A mistake in a parameter; `path` leads from the parameter to the mistake."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Nested:
    """Parameters under a common name."""

    parameters: Mapping[str, Parameter]


@dataclass(frozen=True)
class Model(Nested):
    """The choices of a network's mutators: a checkpoint belongs to the network that they make."""


@dataclass(frozen=True)
class Branches:
    """Plain values and sets of parameters, of which a trial has one: drawn, or `in_turn`."""

    options: tuple[Value | Nested, ...]
    in_turn: bool = False


Parameter: TypeAlias = Domain | Nested | Branches


def parse_parameter(value: object) -> Parameter:
    """Return a parsed parameter: a domain, parameters below it, or branches.

    Raises:
        PlaceError: says what is wrong, and where below the parameter.
    """
    return _parameter(value, (), drawn=False)


def _parameter(value: object, path: Path, *, drawn: bool) -> Parameter:
    """Return a parameter; with `drawn` it is part of a branch that is drawn."""
    if isinstance(value, Mapping) and set(value) == {MUTATORS}:
        return _model(value[MUTATORS], (*path, MUTATORS), drawn=drawn)
    if isinstance(value, Mapping) and not _means_a_domain(value):
        return _parse_nested(value, path, drawn=drawn)
    kind, options = _branches(value)
    if kind:
        branches = _options(options, (*path, kind), drawn=drawn or kind == "choice")
        return Branches(branches, in_turn=kind == "grid")
    try:
        domain = parse_domain(value)
    except ExperimentError as error:
        only = tuple(map(str, value)) if isinstance(value, Mapping) and len(value) == 1 else ()
        raise PlaceError(str(error), (*path, *only)) from None
    if drawn and isinstance(domain, Grid):
        raise PlaceError(
            "a grid can't be inside a choice, which is random; write grid for the outer one as "
            "well, or choice here",
            path,
        )
    return domain


def _means_a_domain(value: Mapping[object, object]) -> bool:
    """Whether a mapping is, or was meant as, a distribution rather than nested parameters."""
    if not value or any(name in DISTRIBUTIONS for name in value):
        return True
    if {"min", "max"} <= set(value) or {"low", "high"} <= set(value):
        return not any(isinstance(part, Mapping) for part in value.values())
    (first, *others) = value.items()
    return not others and isinstance(first[1], list | tuple)


def _parse_nested(value: Mapping[object, object], path: Path, *, drawn: bool) -> Nested:
    parameters = {}
    for name, below in value.items():
        check_name(name, path)
        parameters[str(name)] = _parameter(below, (*path, str(name)), drawn=drawn)
    return Nested(parameters)


def _model(value: object, path: Path, *, drawn: bool) -> Model:
    if not isinstance(value, Mapping) or not value or _means_a_domain(value):
        raise PlaceError(
            f"{quote(value)} names no mutators; write the space of the script, train.py:MODEL, "
            "or the choices of each: {width: {channels: {choice: [8, 16]}}}",
            path,
        )
    return Model(_parse_nested(value, path, drawn=drawn).parameters)


def check_name(name: object, path: Path = ()) -> None:
    """Check that a parameter can have that name.

    Raises:
        PlaceError: it can't.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or "/" in name:
        message = f"{quote(name)} can't name a parameter: write plain text without a slash"
        nest = "; to nest, write a mapping" if "/" in str(name) else ""
        raise PlaceError(message + nest, path)


def _branches(value: object) -> tuple[str, Sequence[object]]:
    """Return "choice" or "grid" and its list, if some entries are mappings."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return "", ()
    ((kind, listed),) = value.items()
    branching = kind in {"choice", "grid"} and isinstance(listed, list | tuple)
    if branching and any(isinstance(option, Mapping) for option in listed):
        return str(kind), listed
    return "", ()


def _options(listed: Sequence[object], path: Path, *, drawn: bool) -> tuple[Value | Nested, ...]:
    options: list[Value | Nested] = []
    for number, option in enumerate(listed):
        here = (*path, number)
        if not isinstance(option, Mapping):
            try:
                options.append(Categories((option,)).values[0])  # type: ignore[arg-type]
            except ExperimentError as error:
                raise PlaceError(str(error), here) from None
            continue
        if not option or _means_a_domain(option):
            raise PlaceError(
                f"{quote(dict(option))} is no branch; write its parameters, such as "
                "{name: sgd, momentum: {uniform: [0, 1]}}",
                here,
            )
        branch = _parse_nested(option, here, drawn=drawn)
        for other, before in enumerate(options):
            if isinstance(before, Nested) and not _told_apart(before, branch):
                raise PlaceError(
                    f"this branch can't be distinguished from branch {other + 1} of the list; give "
                    "each a constant of its own, such as name: sgd",
                    here,
                )
        options.append(branch)
    return tuple(options)


def _told_apart(one: Nested, other: Nested) -> bool:
    """Whether no configuration fits both branches."""
    first, second = (Space({"": options}) for options in (one, other))
    sure = _sure(first)
    also = _sure(second)
    if not set(sure) <= set(second.flat_names) or not set(also) <= set(first.flat_names):
        return True
    both = [(sure[name], also[name]) for name in sure if name in also]
    return any(_is_set(a) and _is_set(b) and a != b for a, b in both)


def _sure(space: Space) -> dict[str, Domain]:
    """Return the parameters that all configurations have, by flat names."""
    return {
        space.flat_name(name): domain
        for name, domain in space.items()
        if name not in space.conditions and not space.is_branching(name)
    }


def parameter_jsonable(parameter: Parameter) -> object:
    """Return a value that `parse_parameter` turns into an equal parameter."""
    match parameter:
        case Model(parameters):
            return {MUTATORS: parameter_jsonable(Nested(parameters))}
        case Nested(parameters):
            return {name: parameter_jsonable(below) for name, below in parameters.items()}
        case Branches(options, each):
            listed = [parameter_jsonable(o) if isinstance(o, Nested) else o for o in options]
            return {"grid" if each else "choice": listed}
        case _:
            return to_jsonable(parameter)


class Space(Mapping[str, Domain]):
    """A search space without nesting: every parameter of every branch, and every branching.

    A mapping by unique names: each branch has its own `lr`. A branching is a choice or a grid of
    the numbers of its branches, as text. `conditions` has, for each part of a branch, its branching
    and branch; `flat_name` is its name in configurations. *Values* use the unique names, a
    *configuration* uses flat names. `of_models` are the names that change the network.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._domains: dict[str, Domain] = {}
        self._names: dict[str, str] = {}
        self._branching: dict[str, int] = {}
        self.conditions: dict[str, tuple[str, str]] = {}
        self.of_models: set[str] = set()
        for name, parameter in parameters.items():
            self._add(name, name, parameter, None)

    def _add(
        self, name: str, flat: str, parameter: Parameter, condition: tuple[str, str] | None
    ) -> None:
        if isinstance(parameter, Nested):
            before = set(self._domains)
            for below, inner in parameter.parameters.items():
                self._add(_join(name, below), _join(flat, below), inner, condition)
            if isinstance(parameter, Model):
                self.of_models |= set(self._domains) - before
            return
        if condition is not None:
            self.conditions[name] = condition
        self._names[name] = flat
        if not isinstance(parameter, Branches):
            self._domains[name] = parameter
            return
        numbers = tuple(map(str, range(len(parameter.options))))
        self._domains[name] = Grid(numbers) if parameter.in_turn else Categories(numbers)
        self._branching[name] = len(numbers)
        for number, option in zip(numbers, parameter.options, strict=True):
            inner = option if isinstance(option, Nested) else Categories((option,))
            self._add(f"{name}{_BRANCH}{number}", flat, inner, (name, number))

    @classmethod
    def of(cls, space: Mapping[str, Domain]) -> Space:
        """Return a mapping of domains as a space; a space unchanged."""
        return space if isinstance(space, Space) else cls(space)

    def __getitem__(self, name: str) -> Domain:
        return self._domains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __len__(self) -> int:
        return len(self._domains)

    def is_branching(self, name: str) -> bool:
        """Whether a name is a branching, which configurations don't have."""
        return name in self._branching

    def flat_name(self, name: str) -> str:
        """Return the name of a parameter in configurations: `optimizer/lr`."""
        return self._names[name]

    @property
    def flat_names(self) -> tuple[str, ...]:
        """The names that configurations may have, in the order of the file, each once."""
        names = (flat for name, flat in self._names.items() if name not in self._branching)
        return tuple(dict.fromkeys(names))

    def active(self, name: str, values: Mapping[str, object]) -> bool:
        """Whether a parameter is part of the branches taken by the values."""
        condition = self.conditions.get(name)
        if condition is None:
            return True
        branching, number = condition
        return self.active(branching, values) and values.get(branching) == number

    def config(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the configuration of values, without those of branches not taken.

        Parameters without a value are missing in the configuration too.
        """
        return {
            self._names[name]: values[name]
            for name in self._domains
            if name not in self._branching and name in values and self.active(name, values)
        }

    def active_values(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the values of a configuration, including the branches that it takes.

        A branching without a fitting branch has none.
        """
        values: dict[str, object] = {}
        for name in self._domains:
            if not self.active(name, values):
                continue
            if name in self._branching:
                taken = self._choose_branch(name, config)
                if taken is not None:
                    values[name] = taken
            elif self._names[name] in config:
                values[name] = config[self._names[name]]
        return values

    def _choose_branch(self, branching: str, config: Mapping[str, object]) -> str | None:
        numbers = map(str, range(self._branching[branching]))
        return next((n for n in numbers if self._fits(branching, n, config)), None)

    def _fits(self, branching: str, number: str, config: Mapping[str, object]) -> bool:
        """Whether a configuration has all that a branch always has, and nothing it never has."""
        flat = self._names[branching]
        within = f"{branching}{_BRANCH}{number}"
        can = {self._names[name] for name in self._domains if _below(name, within)}
        if any(_below(name, flat) and name not in can for name in config):
            return False
        for name, condition in self.conditions.items():
            if condition != (branching, number):
                continue
            own = self._names[name]
            domain = self._domains[name]
            if name in self._branching:
                fits = self._choose_branch(name, config) is not None
            else:
                fits = own in config and (not _is_set(domain) or contains(domain, config[own]))
            if not fits:
                return False
        return True

    @property
    def crossings(self) -> int:
        """The number of configurations of the crossed grids, including those of branches."""
        return self._grid_size(None)

    def _grid_size(self, condition: tuple[str, str] | None) -> int:
        return math.prod(self._size(name) for name in self._grids(condition))

    def _grids(self, condition: tuple[str, str] | None) -> list[str]:
        return [
            name
            for name, domain in self._domains.items()
            if isinstance(domain, Grid) and self.conditions.get(name) == condition
        ]

    def _size(self, grid: str) -> int:
        if grid not in self._branching:
            return len(cast("Grid", self._domains[grid]).values)
        return sum(self._grid_size((grid, str(n))) for n in range(self._branching[grid]))

    def crossing(self, number: int) -> dict[str, Value]:
        """Return the values of the grids in configuration `number`, from 0.

        The first grid changes fastest; after the last crossing it begins again.
        """
        return self._crossing(number, None)

    def _crossing(self, at: int, condition: tuple[str, str] | None) -> dict[str, Value]:
        grids: dict[str, Value] = {}
        for name in self._grids(condition):
            at, here = divmod(at, self._size(name))
            if name not in self._branching:
                grids[name] = cast("Grid", self._domains[name]).values[here]
                continue
            branch = 0
            while here >= (crossed := self._grid_size((name, str(branch)))):
                here = here - crossed
                branch = branch + 1
            grids[name] = str(branch)
            grids |= self._crossing(here, (name, str(branch)))
        return grids

    @property
    def is_listed(self) -> bool:
        """Whether there is nothing to draw: only grids and constants."""
        return all(
            isinstance(domain, Grid | Constant) or (name in self.conditions and _is_set(domain))
            for name, domain in self._domains.items()
        )


def _join(above: str, below: str) -> str:
    return f"{above}/{below}" if above else below


def _below(name: str, above: str) -> bool:
    return name == above or name.startswith((f"{above}/", f"{above}{_BRANCH}"))


def _is_set(domain: Domain) -> bool:
    return isinstance(domain, Constant) or (
        isinstance(domain, Categories) and len(domain.values) == 1
    )


# How often to draw the branches of a configuration that names some of their values.
_TRIES = 1000


def complete(space: Space, fixed: Mapping[str, object], stream: str) -> dict[str, object]:
    """Return a configuration with the given values, by flat names, and the others drawn.

    Equal arguments give equal configurations; `stream` names the draws.

    Raises:
        PlaceError: the space lacks a name or a value, or the values are of different branches.
    """
    for name, value in fixed.items():
        domains = [
            space[own]
            for own in space
            if space.flat_name(own) == name and not space.is_branching(own)
        ]
        if not domains:
            raise PlaceError(f"is not searched; {allowed_names(name, space.flat_names)}", (name,))
        if not any(contains(domain, value) for domain in domains):
            ranges = " or ".join(quote(to_jsonable(domain)) for domain in domains)
            raise PlaceError(f"{quote(value)} is not in {ranges}", (name,))
    streams = {name: Random(f"{stream}/{name}") for name in space}  # noqa: S311 (no secret)
    tries = _TRIES if space.conditions else 1
    for _ in range(tries):
        values: dict[str, object] = {}
        for name, domain in space.items():
            listed = Categories(domain.values) if isinstance(domain, Grid) else domain
            flat = space.flat_name(name)
            drawn = listed.draw(streams[name])
            fits = not space.is_branching(name) and flat in fixed and contains(domain, fixed[flat])
            values[name] = fixed[flat] if fits else drawn
        config = space.config(values)
        if all(name in config and config[name] == value for name, value in fixed.items()):
            return config
    raise PlaceError(f"no configuration has {', '.join(fixed)} together: they are of branches", ())


def sample(space: Mapping[str, Domain], trials: int, seed: int) -> tuple[dict[str, Value], ...]:
    """Return `trials` configurations, each with its parameters in the order of the space.

    As in Ray the grids are crossed and cycled through in order, the first one fastest, while every
    other parameter is drawn for each trial. A space of grids and constants alone has only its
    crossings, so there may be fewer than `trials`.

    Equal arguments give equal configurations, on any machine. Each parameter has its own stream,
    named by the parameter, so adding a parameter at the end, removing a drawn one or requesting
    more trials doesn't change other draws. Parameters of a branch are drawn for all trials, so it
    doesn't matter which of them take it.
    """
    space = Space.of(space)
    if space.is_listed:
        trials = min(trials, space.crossings)
    columns: dict[str, list[Value]] = {}
    for name, domain in space.items():
        if not isinstance(domain, Grid):
            stream = Random(f"{seed}/{name}")  # noqa: S311 (no secret: a reproducible draw)
            columns[name] = [domain.draw(stream) for _ in range(trials)]
    configs = []
    for trial in range(trials):
        values = {name: column[trial] for name, column in columns.items()}
        configs.append(space.config(values | space.crossing(trial)))
    return tuple(cast("list[dict[str, Value]]", configs))

"""A search space over networks: a base, and typed functions that change it by choices.

A mutator is a plain function of the script. Its first parameter is the network, the others are its
choices, and their types say what they may be: `Literal[8, 16]`, `bool`, or a range such as
`Annotated[float, models.uniform(0, 0.5)]`. It returns the network, the same one or another.
`cloudtune plan` imports the script to read them.

After Retiarii's mutators (Zhang et al., OSDI 2020, section 3.1), which change a graph extracted
from the model; here they change the model itself.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin
from typing import get_type_hints as types_of

from cloudtune.errors import UsageError, nearest, quote
from cloudtune.model.trial import nest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    Mutator: TypeAlias = Callable[..., torch.nn.Module]

# The choice of `one_of` that changes nothing.
NONE: Final = "none"
# Names with another meaning in a search space.
_KEPT: Final = frozenset(
    {"choice", "grid", "loguniform", "mutators", "name", "quniform", "randint", "uniform"}
)


@dataclass(frozen=True)
class Range:
    """The range of a choice, as in a search space: `{uniform: [0, 0.5]}`."""

    kind: str
    arguments: tuple[Any, ...]

    @property
    def search(self) -> dict[str, Any]:
        """Return the range as in the `search` section of an experiment."""
        return {self.kind: list(self.arguments)}


def uniform(low: float, high: float, /) -> Range:
    """Return the range of numbers between the two: `Annotated[float, models.uniform(0, 0.5)]`."""
    return Range("uniform", (low, high))


def loguniform(low: float, high: float, /) -> Range:
    """Return the range of numbers between the two, uniform on a log scale."""
    return Range("loguniform", (low, high))


def quniform(low: float, high: float, step: float, /) -> Range:
    """Return the multiples of the step between the two."""
    return Range("quniform", (low, high, step))


def randint(low: int, high: int, /) -> Range:
    """Return the whole numbers from low up to, but without, high."""
    return Range("randint", (low, high))


def choice(*values: str | float | bool) -> Range:
    """Return a choice of the values: like `Literal`, which doesn't take fractions."""
    return Range("choice", values)


@dataclass(frozen=True)
class OneOf:
    """One of several mutators, or none; see `one_of`."""

    name: str
    options: tuple[Mutator | None, ...]

    @property
    def search(self) -> dict[str, Any]:
        """Return a branch for each mutator with its own choices, and a name for each without."""
        branches: list[object] = []
        for option in self.options:
            name = NONE if option is None else mutator_name(option)
            choices = {} if option is None else mutator_choices(option)
            branches.append({"name": name, **choices} if choices else name)
        return {"choice": branches}

    def apply(self, network: torch.nn.Module, taken: object) -> torch.nn.Module:
        """Return the network changed by the chosen option."""
        choices = dict(taken) if isinstance(taken, dict) else {"name": taken}
        name = choices.pop("name", None)
        if name == NONE and None in self.options:
            return network
        options = {mutator_name(option): option for option in self.options if option is not None}
        if name not in options:
            there_are = ", ".join([*([NONE] if None in self.options else []), *options])
            raise UsageError(
                f"{self.name} is {quote(name)}; it may be {there_are}.{nearest(name, options)}"
            )
        return _apply(options[name], network, choices)


@dataclass(frozen=True)
class ModelSpace:
    """A base and its mutators; see `space`."""

    base: Callable[[], torch.nn.Module]
    mutators: tuple[Mutator | OneOf, ...]

    @property
    def search(self) -> dict[str, Any]:
        """Return its `search` section in an experiment; `{mutators: train.py:MODEL}` for short."""
        search = {
            mutator_name(it): it.search if isinstance(it, OneOf) else mutator_choices(it)
            for it in self.mutators
        }
        return {"mutators": search}

    def build(self, choices: Mapping[str, object]) -> torch.nn.Module:
        """Return the network for the choices of a configuration.

        The mutators are applied in order, without those that the choices don't name. The weights
        are initialised by torch's random numbers; load a checkpoint for trained ones.

        Raises:
            UsageError: no mutator has such a choice, or a mutator returns no network.
        """
        rest = nest(choices)
        network = self.base()
        for mutator in self.mutators:
            name = mutator_name(mutator)
            if name not in rest:
                continue
            taken = rest.pop(name)
            if isinstance(mutator, OneOf):
                network = mutator.apply(network, taken)
            else:
                network = _apply(mutator, network, taken)
        if rest:
            names = [mutator_name(mutator) for mutator in self.mutators]
            odd = next(iter(rest))
            raise UsageError(
                f"the choices have {odd}, and there is no such mutator; there are "
                f"{', '.join(names)}.{nearest(odd, names)}"
            )
        return network


def space(base: Callable[[], torch.nn.Module], /, *mutators: Mutator | OneOf) -> ModelSpace:
    """Return the space of the networks that mutators make from a base.

    `base` takes no argument and returns a network. Assign the space at the top level of the script,
    so that the experiment can name it: `model: {mutators: train.py:MODEL}`.

    Raises:
        UsageError: no mutator, one without choices, two with one name, or a choice whose type
            doesn't say what it may be.
    """
    if not mutators:
        raise UsageError("space() has no mutators; give it functions that change the network")
    made_space = ModelSpace(base, mutators)
    names = [mutator_name(mutator) for mutator in mutators]
    _check_names("space()", names)
    for mutator, name in zip(mutators, names, strict=True):
        if isinstance(mutator, OneOf):
            continue
        if not mutator_choices(mutator):
            raise UsageError(
                f"{name}() has no choices, so it is part of the base; to have it now and then, "
                f'write models.one_of("{name}_or_not", None, {name})'
            )
    return made_space


def one_of(name: str, /, *options: Mutator | None) -> OneOf:
    """Return a choice among mutators; None leaves the network unchanged.

    In a configuration it is the name of the function, or "none"; with choices of its own, it is a
    branch: `head/name`, `head/p`.

    Raises:
        UsageError: no options, or two with one name.
    """
    if not options:
        raise UsageError(f"one_of({name!r}) has nothing to choose from; give it functions, or None")
    _check_names(
        f"one_of({name!r})",
        [NONE if option is None else mutator_name(option) for option in options],
    )
    for option in options:
        if option is not None:
            mutator_choices(option)
    return OneOf(name, options)


def mutator_name(mutator: Mutator | OneOf | Callable[..., object]) -> str:
    """Return the name of a mutator in a configuration: that of the function."""
    if isinstance(mutator, OneOf):
        return mutator.name
    name: str = getattr(mutator, "__name__", "")
    if not name.isidentifier():
        raise UsageError(f"{quote(mutator)} has no name; write a mutator as a function, with def")
    return name


def mutator_choices(mutator: Mutator) -> dict[str, Any]:
    """Return what each choice of a mutator may be, as in `search`.

    Raises:
        UsageError: the type of a choice doesn't say that.
    """
    parameters = [*inspect.signature(mutator).parameters.values()][1:]
    names = getattr(mutator, "__globals__", {})
    choices = {}
    for parameter in parameters:
        where = f"{parameter.name} of {mutator_name(mutator)}()"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"{where}: a choice has a name and a type, so * is none")
        hints = {parameter.name: parameter.annotation}
        if parameter.annotation is parameter.empty:
            hints.clear()
        one = SimpleNamespace(__annotations__=hints)
        domain = _domain(types_of(one, names, include_extras=True).get(parameter.name))
        if domain is None and parameter.default is parameter.empty:
            raise UsageError(f"{where} doesn't say what it may be; write Literal[8, 16], or bool")
        if domain is not None:
            _check_names(where, [parameter.name])
            choices[parameter.name] = domain
    return choices


def _domain(kind: Any) -> dict[str, Any] | None:
    if kind is bool:
        return {"choice": [False, True]}
    if get_origin(kind) is Literal:
        return {"choice": list(get_args(kind))}
    if get_origin(kind) is Annotated:
        return next((part.search for part in get_args(kind) if isinstance(part, Range)), None)
    return None


def _apply(mutator: Mutator, network: torch.nn.Module, taken: object) -> torch.nn.Module:
    from torch.nn import Module  # noqa: PLC0415

    name = mutator_name(mutator)
    if not isinstance(taken, dict):
        raise UsageError(f"the choices of {name} are {quote(taken)}; give them by their names")
    try:
        inspect.signature(mutator).bind(network, **taken)
    except TypeError as error:
        names = ", ".join(taken) or "none"
        raise UsageError(f"the choices of {name} are {names}: {error}") from None
    changed: object = mutator(network, **taken)
    if not isinstance(changed, Module):
        gave = "nothing" if changed is None else quote(changed)
        raise UsageError(f"{name}() gave {gave}; let it return the network")
    return changed


def _check_names(where: str, names: list[str]) -> None:
    for name in names:
        if name in _KEPT or "/" in name:
            raise UsageError(f"{where}: {name} has another meaning in a search space; rename it")
        if names.count(name) > 1:
            raise UsageError(f"{where}: {name} stands there twice; give each a name of its own")

"""A search space over networks: a base, and typed functions that each change it by choices.

A mutator is a plain function of the script. Its first parameter is the network, the others are its
choices, and their types say what they may be: `Literal[8, 16]`, `bool`, or a range such as
`Annotated[float, models.uniform(0, 0.5)]`. It returns the network, the same one or another.
`cloudtune plan` imports the script to read them.

After Retiarii's mutators (Zhang et al., OSDI 2020, section 3.1): there they change a graph that is
taken from the model, here they change the model itself.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin
from typing import get_type_hints as types_of

from cloudtune.errors import UsageError, nearest, shown
from cloudtune.model.trial import nested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    Mutator: TypeAlias = Callable[..., torch.nn.Module]

# The choice of `one_of` that changes nothing.
NONE: Final = "none"
# Names that mean something else in a search space.
_KEPT: Final = frozenset(
    {"choice", "grid", "loguniform", "mutators", "name", "quniform", "randint", "uniform"}
)


@dataclass(frozen=True)
class Range:
    """What a choice may be, as a search space says it: `{uniform: [0, 0.5]}`."""

    kind: str
    arguments: tuple[Any, ...]

    @property
    def search(self) -> dict[str, Any]:
        """The same, as `search` of an experiment has it."""
        return {self.kind: list(self.arguments)}


def uniform(low: float, high: float, /) -> Range:
    """Give a number between the two, as in `Annotated[float, models.uniform(0, 0.5)]`."""
    return Range("uniform", (low, high))


def loguniform(low: float, high: float, /) -> Range:
    """Give a number between the two, each order of magnitude equally likely."""
    return Range("loguniform", (low, high))


def quniform(low: float, high: float, step: float, /) -> Range:
    """Give a multiple of the step, between the two."""
    return Range("quniform", (low, high, step))


def randint(low: int, high: int, /) -> Range:
    """Give a whole number, from low up to but without high."""
    return Range("randint", (low, high))


def choice(*values: str | float | bool) -> Range:
    """Give one of the values: what `Literal` is for, but that it takes no fractions."""
    return Range("choice", values)


@dataclass(frozen=True)
class OneOf:
    """One mutator of several, or none: what `one_of` gives."""

    name: str
    options: tuple[Mutator | None, ...]

    @property
    def search(self) -> dict[str, Any]:
        """A branch for each that has choices of its own, and a name for each that has none."""
        branches: list[object] = []
        for option in self.options:
            name = NONE if option is None else name_of(option)
            choices = {} if option is None else choices_of(option)
            branches.append({"name": name, **choices} if choices else name)
        return {"choice": branches}

    def apply(self, network: torch.nn.Module, taken: object) -> torch.nn.Module:
        """Give the network as the option that was taken makes it."""
        choices = dict(taken) if isinstance(taken, dict) else {"name": taken}
        name = choices.pop("name", None)
        if name == NONE and None in self.options:
            return network
        options = {name_of(option): option for option in self.options if option is not None}
        if name not in options:
            there_are = ", ".join([*([NONE] if None in self.options else []), *options])
            raise UsageError(
                f"{self.name} is {shown(name)}; it may be {there_are}.{nearest(name, options)}"
            )
        return _apply(options[name], network, choices)


@dataclass(frozen=True)
class ModelSpace:
    """A base and its mutators: what `space` gives."""

    base: Callable[[], torch.nn.Module]
    mutators: tuple[Mutator | OneOf, ...]

    @property
    def search(self) -> dict[str, Any]:
        """What `search` of an experiment says for it; `{mutators: train.py:MODEL}` for short."""
        search = {
            name_of(it): it.search if isinstance(it, OneOf) else choices_of(it)
            for it in self.mutators
        }
        return {"mutators": search}

    def build(self, choices: Mapping[str, object]) -> torch.nn.Module:
        """Give the network of these choices: of a configuration, or of the record of one.

        The mutators are applied in their order. One that the choices don't name is left out. The
        weights are drawn again: torch's random numbers decide them, and a checkpoint has others.

        Raises:
            UsageError: a choice that no mutator has, or a mutator that gives no network.
        """
        rest = nested(choices)
        network = self.base()
        for mutator in self.mutators:
            name = name_of(mutator)
            if name not in rest:
                continue
            taken = rest.pop(name)
            if isinstance(mutator, OneOf):
                network = mutator.apply(network, taken)
            else:
                network = _apply(mutator, network, taken)
        if rest:
            names = [name_of(mutator) for mutator in self.mutators]
            odd = next(iter(rest))
            raise UsageError(
                f"the choices have {odd}, and there is no such mutator; there are "
                f"{', '.join(names)}.{nearest(odd, names)}"
            )
        return network


def space(base: Callable[[], torch.nn.Module], /, *mutators: Mutator | OneOf) -> ModelSpace:
    """Give the space of the networks that mutators make of a base.

    `base` takes nothing and gives a network. Assign the space at the top level of the script, so
    that the experiment can name it: `model: {mutators: train.py:MODEL}`.

    Raises:
        UsageError: no mutator, one without choices, two of one name, or a choice without a type
            that says what it may be.
    """
    if not mutators:
        raise UsageError("space() has no mutators; give it functions that change the network")
    made_space = ModelSpace(base, mutators)
    names = [name_of(mutator) for mutator in mutators]
    _check_names("space()", names)
    for mutator, name in zip(mutators, names, strict=True):
        if isinstance(mutator, OneOf):
            continue
        if not choices_of(mutator):
            raise UsageError(
                f"{name}() has no choices, so it is part of the base; to have it now and then, "
                f'write models.one_of("{name}_or_not", None, {name})'
            )
    return made_space


def one_of(name: str, /, *options: Mutator | None) -> OneOf:
    """Give a choice among mutators; None leaves the network as it is.

    In a configuration it is the name of the function, or "none"; that of one which has choices of
    its own is beside them, as a branch: `head/name`, `head/p`.

    Raises:
        UsageError: no options, or two of one name.
    """
    if not options:
        raise UsageError(f"one_of({name!r}) has nothing to choose from; give it functions, or None")
    _check_names(
        f"one_of({name!r})", [NONE if option is None else name_of(option) for option in options]
    )
    for option in options:
        if option is not None:
            choices_of(option)
    return OneOf(name, options)


def name_of(mutator: Mutator | OneOf | Callable[..., object]) -> str:
    """Give the name that a mutator has in a configuration: that of the function."""
    if isinstance(mutator, OneOf):
        return mutator.name
    name: str = getattr(mutator, "__name__", "")
    if not name.isidentifier():
        raise UsageError(f"{shown(mutator)} has no name; write a mutator as a function, with def")
    return name


def choices_of(mutator: Mutator) -> dict[str, Any]:
    """Give what each choice of a mutator may be, as `search` has it.

    Raises:
        UsageError: a choice without a type that says so.
    """
    parameters = [*inspect.signature(mutator).parameters.values()][1:]
    names = getattr(mutator, "__globals__", {})
    choices = {}
    for parameter in parameters:
        where = f"{parameter.name} of {name_of(mutator)}()"
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

    name = name_of(mutator)
    if not isinstance(taken, dict):
        raise UsageError(f"the choices of {name} are {shown(taken)}; give them by their names")
    try:
        inspect.signature(mutator).bind(network, **taken)
    except TypeError as error:
        names = ", ".join(taken) or "none"
        raise UsageError(f"the choices of {name} are {names}: {error}") from None
    changed: object = mutator(network, **taken)
    if not isinstance(changed, Module):
        gave = "nothing" if changed is None else shown(changed)
        raise UsageError(f"{name}() gave {gave}; let it return the network")
    return changed


def _check_names(where: str, names: list[str]) -> None:
    for name in names:
        if name in _KEPT or "/" in name:
            raise UsageError(f"{where}: {name} has another meaning in a search space; rename it")
        if names.count(name) > 1:
            raise UsageError(f"{where}: {name} stands there twice; give each a name of its own")

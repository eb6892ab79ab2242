"""What is wrong with the command of an experiment, and with the fields that go with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from cloudtune.errors import allowed_names, nearest, shown
from cloudtune.experiment.command import built_in, holes, is_command, words_of
from cloudtune.experiment.validation import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import PydanticCustomError

    from cloudtune.experiment.command import Word
    from cloudtune.experiment.sections import Checkpoints, Progress, Reports
    from cloudtune.experiment.spaces import Space

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "fish"})
_OPERATORS: Final = re.compile(r"\|\|?|&&?|;|\d?>>?(&\d)?|<")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*")
_VARIABLE: Final = re.compile(r"\$(\w+|\{\w+\}|\()")


class Named(Protocol):
    """Has a name, as the metric."""

    @property
    def name(self) -> str:
        """The name."""
        ...


class Commanded(Protocol):
    """The fields of an experiment that have to do with its command."""

    train: str
    progress: Progress
    reports: Reports
    checkpoints: Checkpoints

    @property
    def epochs(self) -> Iterable[tuple[str, int]]:
        """The bounds of a trial's epochs by their names."""
        ...

    @property
    def metric(self) -> Named:
        """What is tuned for."""
        ...

    @property
    def space(self) -> Space:
        """The search space."""
        ...


def first_mistake(experiment: Commanded) -> PydanticCustomError | None:
    """Return what is wrong with a command, with what it counts and the fields that go with it."""
    unit, every = experiment.progress.unit, experiment.progress.every
    for name, value in experiment.epochs:
        if value % every and (name, value) != ("min", 1):  # the first report, by default
            told = f"{value} is no multiple of {every}, the {unit}s from report to report; write "
            near = f"{max(1, value // every) * every} or {(value // every + 1) * every}"
            return refuse(told + near, "epochs", name)
    if not is_command(experiment.train):
        return _beside_a_function(experiment)
    try:
        words = words_of(experiment.train)
    except ValueError as error:
        return refuse(f"can't be split into words: {error}", "train")
    told = _shell(words) or _unknown(experiment, words) or _unused(experiment, words)
    return refuse(told, "train") if told else _unfit(experiment)


def _beside_a_function(experiment: Commanded) -> PydanticCustomError | None:
    for name in ("reports", "checkpoints"):
        if any(value is not None for value in getattr(experiment, name).model_dump().values()):
            return refuse(
                "is for commands, and train names a function, which calls cloudtune.report(…); "
                "leave it out",
                name,
            )
    return None


def _shell(words: tuple[Word, ...]) -> str:
    """Return what only a shell understands, unless one is asked for."""
    plain = ["".join(part if isinstance(part, str) else "{}" for part in word) for word in words]
    if plain[0].rpartition("/")[2] in _SHELLS:
        return ""
    if _ASSIGNMENT.fullmatch(plain[0]):
        return f"{shown(plain[0])} is not a program; write env {plain[0]} and the command after it"
    for word in plain:
        if _OPERATORS.fullmatch(word) or _VARIABLE.search(word) or word.endswith(";"):
            return (
                f"{shown(word)} is shell syntax, and no shell runs here; write sh -c '…' around "
                "the command if you want one"
            )
    return ""


def _unknown(experiment: Commanded, words: tuple[Word, ...]) -> str:
    """Return what is wrong with a hole that nothing fills, or not like this."""
    parameters, others = experiment.space.flat_names, built_in(experiment.progress.unit)
    for name, instead in holes(words):
        if name not in parameters and name not in others:
            known = (*parameters, *others)
            return (
                f"{{{name}}} is not a parameter of the search, nor one of the other placeholders: "
                f"{', '.join(known)}.{nearest(name, known)} For a brace itself write {{{{ or }}}}"
            )
        if name == "resume" and experiment.checkpoints.folder is None:
            return "{resume} needs the folder of checkpoints; write checkpoints: {folder: …}"
        if instead is not None and name in others and name not in parameters and name != "resume":
            return f"{{{name}:…}} is for values that may be false: a parameter, or {{resume:…}}"
    return ""


def _unused(experiment: Commanded, words: tuple[Word, ...]) -> str:
    used = {name for name, _ in holes(words)}
    if "config" in used:
        return ""
    for name in experiment.space.flat_names:
        if name not in used:
            return (
                f"the search's parameter {name} is in no {{…}} of the command, so it would change "
                f"nothing; write {{{name}}} where its value goes, or {{config}} for a JSON file "
                "with all parameters"
            )
    return ""


def _unfit(experiment: Commanded) -> PydanticCustomError | None:
    printed, metric = experiment.reports.printed, experiment.metric.name
    if printed is not None:
        groups = tuple(re.compile(printed).groupindex)
        if metric not in groups:
            return refuse(
                f"finds no {metric}, the experiment's metric; {allowed_names(metric, groups)}",
                *("reports", "printed"),
            )
    return None

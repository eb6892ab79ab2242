"""A command that trains, as an experiment names it: its words, and what stands in them for values.

    python main.py --lr {lr} --epochs {epochs} --resume {resume}/last.pt {amp:--amp}

A word is split into parts: text, and holes that a trial's values fill. Words are split as a shell
does it, but no shell runs: a value is one word, or a part of one, whatever stands in it.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final, TypeAlias

from cloudtune.errors import allowed_names, nearest, shown
from cloudtune.experiment.validation import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_core import PydanticCustomError

    from cloudtune.experiment.schema import Experiment

Hole: TypeAlias = tuple[str, str | None]
"""What fills it, and the text that stands there instead where that is true."""
Word: TypeAlias = tuple[str | Hole, ...]

_FUNCTION: Final = re.compile(r"[^:\s]+\.py\s*:\s*\w*")
_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "fish"})
_OPERATORS: Final = re.compile(r"\|\|?|&&?|;|\d?>>?(&\d)?|<")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*")
_VARIABLE: Final = re.compile(r"\$(\w+|\{\w+\}|\()")


def is_command(train: str) -> bool:
    """Whether a `train` is a command, and not file.py:function."""
    return " " in train.strip() and not _FUNCTION.fullmatch(train.strip())


def built_in(unit: str) -> dict[str, str]:
    """Return what fills a hole besides parameters, and what that is."""
    return {
        "trial": "the trial's name",
        "seed": "a seed of the trial",
        f"{unit}s": f"the last {unit} of the experiment",
        "device": "cuda:0, or cpu",
        "config": "a JSON file with all parameters",
        "resume": "the folder of checkpoints, once there is one",
    }


def words_of(command: str) -> tuple[Word, ...]:
    """Return the words of a command.

    Raises:
        ValueError: they can't be split, or a brace belongs to nothing; the message says so.
    """
    return tuple(_parts(word) for word in shlex.split(command))


def _parts(word: str) -> Word:
    parts: list[str | Hole] = []
    text, end = "", 0
    for found in _PART.finditer(word):
        text += word[end : found.start()]
        end = found.end()
        if found[0] in ("{{", "}}"):
            text += found[0][0]
        elif found[1] is None:
            raise ValueError(f"a {found[0]} in {shown(word)} is alone; write {2 * found[0]} for it")
        else:
            name, colon, instead = found[1].partition(":")
            parts += [text] if text else []
            parts.append((name.strip(), instead if colon else None))
            text = ""
    text += word[end:]
    return (*parts, text) if text or not parts else tuple(parts)


def holes(words: tuple[Word, ...]) -> Iterator[Hole]:
    """Give what is to be filled, in order."""
    return (part for word in words for part in word if not isinstance(part, str))


def first_mistake(experiment: Experiment) -> PydanticCustomError | None:
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


def _beside_a_function(experiment: Experiment) -> PydanticCustomError | None:
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
                f"{shown(word)} is for a shell, and none runs here; write sh -c '…' around the "
                "command if you want one"
            )
    return ""


def _unknown(experiment: Experiment, words: tuple[Word, ...]) -> str:
    """Return what is wrong with a hole that nothing fills, or not like this."""
    parameters, others = experiment.space.flat_names, built_in(experiment.progress.unit)
    for name, instead in holes(words):
        if name not in parameters and name not in others:
            known = (*parameters, *others)
            return (
                f"{{{name}}} is no parameter of the search and nothing else that is known: "
                f"{', '.join(known)}.{nearest(name, known)} For a brace itself write {{{{ or }}}}"
            )
        if name == "resume" and experiment.checkpoints.folder is None:
            return "{resume} needs to know where checkpoints are; say checkpoints: {folder: …}"
        if instead is not None and name in others and name not in parameters and name != "resume":
            return f"{{{name}:…}} is for what may be false, as a parameter or {{resume:…}}"
    return ""


def _unused(experiment: Experiment, words: tuple[Word, ...]) -> str:
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


def _unfit(experiment: Experiment) -> PydanticCustomError | None:
    printed, metric = experiment.reports.printed, experiment.metric.name
    if printed is not None:
        groups = tuple(re.compile(printed).groupindex)
        if metric not in groups:
            return refuse(
                f"finds no {metric}, the experiment's metric; {allowed_names(metric, groups)}",
                *("reports", "printed"),
            )
    return None

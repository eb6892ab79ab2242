"""Checks of an experiment's command and its epochs."""

import re
from collections.abc import Collection
from typing import Final

from cloudtune.errors import nearest, quote
from cloudtune.experiment.sections import Checkpoints, ProgressSettings
from cloudtune.experiment.spaces import Space
from cloudtune.script.command import Word, built_in, holes, is_pattern, split_words
from cloudtune.script.settings_files import is_settings_file

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "fish"})
_OPERATORS: Final = re.compile(r"\|\|?|&&?|;|\d?>>?(&\d)?|<")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*")
_VARIABLE: Final = re.compile(r"\$(\w+|\{\w+\}|\()")
# What looks like a file's name, and is no option.
_FILE: Final = re.compile(r"[^-=][^=]*\.\w+")


def epochs_mistake(name: str, value: int, progress: ProgressSettings) -> str:
    """Return what is wrong with a bound of a trial's epochs, "min" or "max"; "" if nothing."""
    every = int(progress.every)
    is_first_report = (name, value) == ("min", 1)  # as by default
    if every < 1 or is_first_report or value % every == 0:
        return ""
    lower = max(1, value // every) * every
    upper = (value // every + 1) * every
    return (
        f"{value} is no multiple of {every}, the {progress.unit}s from report to report; write "
        f"{lower} or {upper}"
    )


def command_mistake(
    command: str, space: Space, progress: ProgressSettings, checkpoints: Checkpoints
) -> str:
    """Return what is wrong with a command and its placeholders; "" if nothing."""
    try:
        words = split_words(command)
    except ValueError as error:
        return f"can't be split into words: {error}"
    return (
        _shell(words)
        or _unknown(words, space.flat_names, progress.unit, resumes=checkpoints.folder is not None)
        or _unused_hint(words, space.flat_names)
    )


def _without_names(word: Word) -> str:
    return "".join(part if isinstance(part, str) else "{}" for part in word)


def _shell(words: tuple[Word, ...]) -> str:
    """Return the first word that only a shell understands, unless one is used."""
    plain = [_without_names(word) for word in words]
    if plain[0].rpartition("/")[2] in _SHELLS:
        return ""
    if _ASSIGNMENT.fullmatch(plain[0]):
        return f"{quote(plain[0])} is not a program; write env {plain[0]} and the command after it"
    for word in plain:
        if _OPERATORS.fullmatch(word) or _VARIABLE.search(word) or word.endswith(";"):
            return (
                f"{quote(word)} is shell syntax, and no shell runs here; write sh -c '…' around "
                "the command if you want one"
            )
    return ""


def _unknown(
    words: tuple[Word, ...], parameters: Collection[str], unit: str, *, resumes: bool
) -> str:
    """Return what is wrong with a placeholder that nothing fills, or not in this form."""
    others = built_in(unit)
    for name, flag in holes(words):
        if name not in parameters and name not in others:
            names = (*parameters, *others)
            return (
                f"{{{name}}} is not a parameter of the search, nor one of the other placeholders: "
                f"{', '.join(names)}.{nearest(name, names)} For a brace itself write {{{{ or }}}}"
            )
        if name == "resume" and not resumes:
            return "{resume} needs the folder of checkpoints; write checkpoints: {folder: …}"
        is_text = flag is not None and not is_pattern(flag)
        if name == "resume" and is_text and _FILE.fullmatch(flag or ""):
            return (
                f"{{resume:{flag}}} is the text {flag}, once there is a checkpoint; for the file "
                f"write {{resume}}/{flag}, or {{resume:**/{flag}}} if it is in a folder below"
            )
        is_file = name == "config" and is_settings_file(flag)
        takes_text = name in parameters or name not in others or name == "resume" or is_file
        if flag is not None and not takes_text:
            return (
                f"{{{name}:…}} is for values that may be false: a parameter, or {{resume:…}}; "
                "{config:base.yaml} is that file with a trial's parameters"
            )
    return ""


def _unused_hint(words: tuple[Word, ...], parameters: Collection[str]) -> str:
    used = {name for name, _ in holes(words)}
    for name in parameters:
        if name not in used and "config" not in used:
            return (
                f"the search's parameter {name} is in no {{…}} of the command, so it would change "
                f"nothing; write {{{name}}} where its value goes, or {{config}} for a JSON file "
                "with all parameters"
            )
    return ""

"""A command that trains, as in an experiment: its words and their placeholders.

    python main.py --lr {lr} --epochs {epochs} --resume {resume}/last.pt {amp:--amp}

A word is split into parts: text, and placeholders that a trial's values fill. Words are split like
in a shell, but no shell runs: a value is one word, or a part of one, whatever it contains.
"""

import re
import shlex
from collections.abc import Iterator
from typing import Final, TypeAlias

from cloudtune.errors import quote

# The name of its value, and the text to use instead if that is true.
Hole: TypeAlias = tuple[str, str | None]
Word: TypeAlias = tuple[str | Hole, ...]

_FUNCTION: Final = re.compile(r"[^:\s]+\.py\s*:\s*\w*")
_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def is_command(train: str) -> bool:
    """Whether a `train` field is a command, not file.py:function."""
    return " " in train.strip() and not _FUNCTION.fullmatch(train.strip())


def built_in(unit: str) -> dict[str, str]:
    """Return the built-in placeholders, with their meanings."""
    return {
        "trial": "the trial's name",
        "seed": "a seed of the trial",
        f"{unit}s": f"the last {unit} of the experiment",
        "device": "cuda:0, or cpu",
        "config": "a JSON file with all parameters",
        "resume": "the folder of checkpoints, once there is one",
    }


def is_pattern(text: str | None) -> bool:
    """Whether the text of a placeholder is a pattern of names, as in {resume:checkpoint-*}."""
    return text is not None and any(letter in text for letter in "*?[")


def split_words(command: str) -> tuple[Word, ...]:
    """Return the words of a command.

    Raises:
        ValueError: they can't be split, or a brace is unmatched; the message says so.
    """
    return tuple(_parts(word) for word in shlex.split(command))


def _parts(word: str) -> Word:
    parts: list[str | Hole] = []
    text = ""
    end = 0
    for match in _PART.finditer(word):
        text += word[end : match.start()]
        end = match.end()
        if match[0] in ("{{", "}}"):
            text += match[0][0]
        elif match[1] is None:
            raise ValueError(f"a {match[0]} in {quote(word)} is alone; write {2 * match[0]} for it")
        else:
            name, colon, instead = match[1].partition(":")
            parts += [text] if text else []
            parts.append((name.strip(), instead if colon else None))
            text = ""
    text += word[end:]
    return (*parts, text) if text or not parts else tuple(parts)


def holes(words: tuple[Word, ...]) -> Iterator[Hole]:
    """Yield the placeholders, in order."""
    return (part for word in words for part in word if not isinstance(part, str))

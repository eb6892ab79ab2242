"""A command that trains, and its words for the values of a trial."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudtune.script.command import Hole, Word, holes, is_pattern
from cloudtune.script.settings_files import is_settings_file

_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class Program:
    """A command: `words` with placeholders, and `text` as in the experiment.

    Its reports are read from `file`, a path or a pattern, or from printed lines that `printed`
    matches; if both are None, it calls `cloudtune.report`. `folder` has its checkpoints, relative
    to where it runs. `until` is the experiment's last epoch or step. `alone`: it never has several
    workers.
    """

    text: str
    words: tuple[Word, ...]
    until: int
    file: str | None = None
    printed: str | None = None
    folder: str | None = None
    alone: bool = False

    @property
    def settings_files(self) -> list[str]:
        """The files of settings that it gets with a trial's values in them."""
        named = holes(self.words)
        return [str(text) for name, text in named if name == "config" and is_settings_file(text)]

    @property
    def speaks(self) -> bool:
        return self.file is None and self.printed is None

    def fill(self, values: Mapping[str, object]) -> list[str]:
        """Return the words with the values filled in.

        A placeholder without a value, or with the value None, is left out with its option: its
        word, and the word before if that is an option and the value a separate word. A list that is
        a word of its own becomes a word for each of its values.
        """
        done: list[str] = []
        for word in self.words:
            listed = _fill_list(word, values)
            if listed is not None:
                done += [_value_text(value) for value in listed]
                continue
            texts = [_text(part, values) for part in word]
            if None not in texts:
                done.append("".join(text for text in texts if text is not None))
            elif done and self._is_option_of(word, done[-1]):
                done.pop()
        return done

    def _is_option_of(self, word: Word, before: str) -> bool:
        """Whether the previous word is the option whose value is left out."""
        alone = (before,) in self.words and before.startswith("-") and "=" not in before
        first = word[0] if word else ""
        flag = not isinstance(first, str) and first[1] is not None and not is_pattern(first[1])
        return alone and not flag and not (isinstance(first, str) and first.startswith("-"))


def _text(part: str | Hole, values: Mapping[str, object]) -> str | None:
    """Return the text of a part; None if it has no value."""
    if isinstance(part, str):
        return part
    name, instead = part
    value = values.get(name)
    if name == "config" and instead in values:
        return str(values[str(instead)])
    if name == "resume" and is_pattern(instead):
        return None if value is None else newest(Path(str(value)), str(instead))
    if instead is not None:
        return instead if value else None
    return None if value is None else _value_text(value)


def _fill_list(word: Word, values: Mapping[str, object]) -> list[object] | None:
    """Return the list that fills a word on its own; None if none does."""
    if len(word) != 1 or isinstance(word[0], str) or word[0][1] is not None:
        return None
    value = values.get(word[0][0])
    return value if isinstance(value, list) else None


def newest(folder: Path, pattern: str) -> str | None:
    """Return the newest file or folder below a folder by a pattern; None if there is none.

    That is the one with the largest numbers in its path, from left to right: a restored folder has
    no times, and a library may begin another numbered folder each time that it starts.
    """

    def order(path: Path) -> tuple[list[int], str]:
        name = path.relative_to(folder).as_posix()
        return [int(digits) for digits in _DIGITS.findall(name)], name

    found = sorted(folder.glob(pattern), key=order)
    return str(found[-1]) if found else None


def _value_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)

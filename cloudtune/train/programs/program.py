"""A command that trains, with its values: what is started for a trial."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cloudtune.script.command import Hole, Word


@dataclass(frozen=True)
class Program:
    """A command: `words` with holes, and `text` as the experiment has it.

    Its reports are read off `file`, or what it prints that `printed` matches; None: it calls
    `cloudtune.report`. `folder` is where its checkpoints are, as seen from where it runs. `until`
    is the experiment's last epoch or step. One that is `alone` never has several workers.
    """

    text: str
    words: tuple[Word, ...]
    until: int
    file: str | None = None
    printed: str | None = None
    folder: str | None = None
    alone: bool = False

    @property
    def speaks(self) -> bool:
        return self.file is None and self.printed is None

    def fill(self, values: Mapping[str, object]) -> list[str]:
        """Return the words with their values.

        What has no value is left out with its option: the word that it stands in, and the one
        before, where that is an option and the value a word of its own.
        """
        done: list[str] = []
        for word in self.words:
            texts = [_text(part, values) for part in word]
            if None not in texts:
                done.append("".join(text for text in texts if text is not None))
            elif done and self._is_option_of(word, done[-1]):
                done.pop()
        return done

    def _is_option_of(self, word: Word, before: str) -> bool:
        """Whether the word before is the option whose value is left out."""
        alone = (before,) in self.words and before.startswith("-") and "=" not in before
        first = word[0] if word else ""
        flag = not isinstance(first, str) and first[1] is not None
        return alone and not flag and not (isinstance(first, str) and first.startswith("-"))


def _text(part: str | Hole, values: Mapping[str, object]) -> str | None:
    """Return what stands for a part; None where it has no value."""
    if isinstance(part, str):
        return part
    name, instead = part
    value = values.get(name)
    if instead is not None:
        return instead if value else None
    if isinstance(value, dict | list):
        return json.dumps(value)
    return None if name not in values else str(value)

"""Text from elsewhere without what would move a terminal's cursor, or change what people read."""

import re

# Of colours, and of the cursor's moves.
_STYLES = r"\x1b\[[0-?]*[ -/]*[@-~]"
_TITLES = r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # and links, and the clipboard
_STRINGS = r"\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
_OTHERS = r"\x1b(?!\[)[ -/]*[0-~]?"
# All but tab, line feed, carriage return and escape.
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
# They turn text around, so that a name reads as another.
_DIRECTIONS = r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
_FOREIGN = re.compile(f"{_TITLES}|{_STRINGS}|{_OTHERS}|{_CONTROLS}|{_DIRECTIONS}")
_ALL = re.compile(f"{_STYLES}|{_FOREIGN.pattern}|\\x1b|\\r(?!\\n)")


def clean(text: str) -> str:
    """Return a text without escapes, control characters and direction marks; lines stay lines."""
    return _ALL.sub("", text)


def clean_output(text: str) -> str:
    """Return what a program has printed without escapes; a rewritten line becomes several."""
    return clean(re.sub(r"\r+(?!\n)", "\n", text))


def keep_styles(text: str) -> str:
    """Return a text of ours with its colours and the moves of its cursor, and nothing else."""
    return _FOREIGN.sub("", text)

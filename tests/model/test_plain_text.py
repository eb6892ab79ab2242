"""What a terminal may not get from a script, a file's name or an error."""

import os
import sys

import pytest

from cloudtune.display.streams import use_steady_streams
from cloudtune.model.plain_text import clean, clean_output, keep_styles

FOREIGN = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x1b\\",
    "device": "\x1bP$q\x1b\\",
    "reset": "\x1bc",
    "charset": "\x1b(0",
    "bell": "\x07",
    "backspace": "\x08",
    "8-bit": "\x9b",
    "turned": "\u202e",
    "isolated": "\u2066",
    "unfinished": "\x1b]0;",
}
STYLES = {"red": "\x1b[31m", "up": "\x1b[2A", "hidden": "\x1b[?25l", "erased": "\x1b[2K"}


@pytest.mark.parametrize("name", [*FOREIGN, *STYLES])
def test_no_escape_is_left(name: str) -> None:
    escape = {**FOREIGN, **STYLES}[name]
    assert clean(f"a\tb\n{escape}") == "a\tb\n"
    if name != "unfinished":
        assert clean(f"acc{escape}=1") == "acc=1"


@pytest.mark.parametrize("name", STYLES)
def test_our_own_styles_stay(name: str) -> None:
    assert keep_styles(f"{STYLES[name]}x\r\n") == f"{STYLES[name]}x\r\n"


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_escapes_do_not(name: str) -> None:
    assert keep_styles(f"a {FOREIGN[name]}") == "a "


def test_rewritten_lines_become_lines() -> None:
    assert clean_output("1 %\r50 %\r100 %\r\nend\n") == "1 %\n50 %\n100 %\r\nend\n"


def test_a_name_in_another_script_stays() -> None:
    text = "שלום, مرحبا, 你好, naïve, 🚀"
    assert clean(text) == keep_styles(text) == text


def test_the_streams_of_a_command_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as out:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", out)
        use_steady_streams()
        print("\x1b[1mbold\x1b[0m \x1b]0;owned\x07\u202ename")  # noqa: T201
        sys.stdout.flush()
    with open(reader, encoding="utf-8") as read:  # noqa: PTH123
        assert read.read() == "\x1b[1mbold\x1b[0m name\n"

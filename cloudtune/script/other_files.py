"""Files that start a training and aren't Python: shell scripts and notebooks."""

import re
import shlex
from pathlib import Path
from typing import Final

_SHELL_SUFFIXES: Final = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")
_SHEBANG: Final = re.compile(r"#!.*\b(ba|z|da|k)?sh\b")
_PYTHON: Final = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed)")


def explain_other_file(script: Path) -> str:
    """Return what to name in place of a shell script or a notebook; "" for any other file."""
    if script.suffix == ".ipynb":
        return (
            f"{script} is a notebook; make a script of it (jupyter nbconvert --to script {script}) "
            f"and then: cloudtune init {script.with_suffix('.py')}"
        )
    if script.suffix == ".py":
        return ""
    text = script.read_text(encoding="utf-8", errors="replace")
    if script.suffix in _SHELL_SUFFIXES or _SHEBANG.match(text):
        head = f"{script} is a shell script, and cloudtune init reads a Python program"
        return f"{head}{_name_program(_python_calls(text))}"
    return ""


def _name_program(calls: list[list[str]]) -> str:
    """Return which program to name in place of the shell script that calls some."""
    if not calls:
        return "; it has no line `python PROGRAM.py …`: name the program that trains"
    if len(calls) > 1:
        programs = ", ".join(dict.fromkeys(words[0] for words in calls))
        return f"; it calls {len(calls)} ({programs}): name the one that trains"
    program, *words = calls[0]
    command = f": the one that it calls. Write: cloudtune init {program}"
    if any("$" in word for word in words):
        return f"{command}, after -- with the values of `{' '.join(words)}`"
    return f"{command} -- {shlex.join(words)}" if words else command


def _python_calls(text: str) -> list[list[str]]:
    """Return the words after `python` in each line that calls a file, without options of Python."""
    calls = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            continue
        at = next((n for n, word in enumerate(words) if _PYTHON.fullmatch(word)), None)
        if at is None:
            continue
        program = next((n for n in range(at, len(words)) if words[n].endswith(".py")), None)
        if program is not None:
            calls.append(words[program : _end(words, program)])
    return calls


def _end(words: list[str], start: int) -> int:
    """Return where a command ends: at a redirection, a pipe or the next command."""
    ends = (n for n in range(start, len(words)) if re.match(r"[|&;]|\d?[<>]", words[n]))
    return next(ends, len(words))

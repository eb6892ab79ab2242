"""Checks whether a command can train, by its program and script, without running them."""

import ast
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cloudtune.errors import ExperimentError, nearest
from cloudtune.script.command import Word, holes, split_words
from cloudtune.script.functions import mentions, parse_file
from cloudtune.script.printed_lines import EXAMPLE
from cloudtune.script.settings_files import check_settings_file, is_settings_file

_SCRIPT: Final = re.compile(r"[\w./-]+\.py\b")
_CHANGE: Final = re.compile(r"\bcd\s+([\w./-]+)")


def find_script(command: str, folder: Path) -> Path:
    """Return the file that a command runs, which is the key of its measured speed.

    Raises:
        ExperimentError: there is none in the folder.
    """
    plain = [_plain(word) for word in split_words(command)]
    for word, after in zip(plain, [*plain[1:], ""], strict=True):
        if word == "-m":
            for path in (f"{after.replace('.', '/')}.py", f"{after.replace('.', '/')}/__main__.py"):
                if (folder / path).is_file():
                    return folder / path
        elif word.endswith(".py"):
            return folder / word
    for word in plain:
        if word and (folder / word).is_file():
            return folder / word
        script = _SCRIPT.search(word)
        if script is not None:  # sh -c 'cd out; python ../main.py …'; out may not be there yet
            folders = _CHANGE.findall(word[: script.start()])
            return Path(os.path.normpath(folder.joinpath(*folders, script[0])))
    raise ExperimentError(
        f"train: nothing in `{command}` is a file in {folder}, the folder that instances get a "
        "copy of; put the script beside the experiment file"
    )


def _plain(word: Word) -> str:
    return "".join(part if isinstance(part, str) else "{}" for part in word)


def check_command(
    command: str,
    folder: Path,
    *,
    reads: bool,
    here: bool,
    parameters: Collection[str] = (),
    falses: Collection[str] = (),
) -> None:
    """Check that the command's program and script exist, and that something reports.

    `reads`: the experiment says where its metrics are read. `here`: it will run on this machine.
    `parameters` are those of the search, `falses` those that may be false.

    Raises:
        ExperimentError: it can't train; the message says why.
    """
    _check_program(_plain(split_words(command)[0]), folder, here=here)
    _check_settings(command, folder, parameters)
    script = find_script(command, folder)
    if script.suffix != ".py":
        return
    tree = parse_file(script)
    for option in _bool_options(tree):
        if name := _filled_parameter(split_words(command), option.names, falses):
            raise ExperimentError(
                f"{script}:{option.line}: {option.flag} has type=bool, and argparse makes True of "
                f'every text, "False" too, so {{{name}}} would change nothing; in the script write '
                "action=argparse.BooleanOptionalAction, and in train "
                f"{{{name}:{option.flag}}}"
            )
    if not reads and not mentions(folder, b"cloudtune"):
        raise ExperimentError(
            f"{script}: nothing reports: no file in {folder} names cloudtune. Call "
            "cloudtune.report({…}) once an epoch, or say where its numbers are: "
            f"reports: {{file: metrics.jsonl}} or {{printed: '{EXAMPLE}'}}"
        )


def _check_settings(command: str, folder: Path, parameters: Collection[str]) -> None:
    """Check that each parameter is in a file of settings, unless a word of the command has it."""
    named = list(holes(split_words(command)))
    elsewhere = {name for name, _ in named}
    for name, text in named:
        if name == "config" and "config" not in parameters and is_settings_file(text):
            inside = [parameter for parameter in parameters if parameter not in elsewhere]
            path = folder / str(text)
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ExperimentError(
                    f"train: {text} is not below {folder}, the folder that instances get a copy of"
                )
            check_settings_file(path, inside)


class _BoolOption(NamedTuple):
    names: tuple[str, ...]
    line: int

    @property
    def flag(self) -> str:
        """The long name, or else the first."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])


def _bool_options(tree: ast.Module) -> Iterator[_BoolOption]:
    """Yield the options of argparse with type=bool."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        types = [ast.unparse(word.value) for word in node.keywords if word.arg == "type"]
        words = [it.value for it in node.args if isinstance(it, ast.Constant)]
        names = [word for word in words if isinstance(word, str) and word.startswith("-")]
        if types == ["bool"] and names:
            yield _BoolOption(tuple(names), node.lineno)


def _filled_parameter(
    words: Sequence[Word], option: Collection[str], parameters: Collection[str]
) -> str:
    """Return which of the parameters an option gets as its value; "" if none."""
    for before, word in zip(["", *map(_plain, words)], words, strict=False):
        given = [part[0] for part in word if not isinstance(part, str) and part[1] is None]
        to_option = before in option or _plain(word).partition("=")[0] in option
        if to_option and given and given[0] in parameters:
            return given[0]
    return ""


def _check_program(program: str, folder: Path, *, here: bool) -> None:
    if "/" in program and not Path(program).is_absolute():
        path = folder / program
        if not path.is_file():
            raise ExperimentError(
                f"train: no program {program} in {folder}.{_near(path)} A command runs in a copy "
                "of that folder"
            )
        if not os.access(path, os.X_OK):
            raise ExperimentError(
                f"train: {path} can't be executed; chmod +x it, or name its shell"
            )
    elif here and shutil.which(program, path=search_path()) is None:
        raise ExperimentError(
            f"train: no program {program} on the PATH or beside {sys.executable}"
            f"{_near(folder / program) or '; install it, or correct the name'}"
        )


def search_path() -> str:
    """Return the search path for programs, with this Python's folder first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _near(path: Path) -> str:
    beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    if path.name in beside:
        return f"; the file beside the experiment is ./{path.name}, or python {path.name}"
    return nearest(path.name, beside)

"""Whether a command can train, as far as that is found without running anything of the user's.

Its program is looked for, its script read: the options that an argparse parser there knows, and
whether anything there reports.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloudtune.errors import ExperimentError, nearest
from cloudtune.experiment.command import words_of
from cloudtune.experiment.script.check import parse_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cloudtune.experiment.command import Word

_MAX_FILES: Final = 1000
_SCRIPT: Final = re.compile(r"[\w./-]+\.py\b")
_CHANGE: Final = re.compile(r"\bcd\s+([\w./-]+)")
_BEYOND: Final = frozenset(
    {"add_subparsers", "parse_known_args", "parse_known_intermixed_args", "parents", "prefix_chars"}
)
"""Names in a script whose options aren't all in sight."""


def script_of(command: str, folder: Path) -> Path:
    """Return the file that a command runs: what its measured speed is kept by.

    Raises:
        ExperimentError: there is none in the folder.
    """
    plain = [_plain(word) for word in words_of(command)]
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


def check_command(command: str, folder: Path, *, told: bool, here: bool) -> None:
    """Pass if the command's program and script are there, and the script knows its options.

    `told`: its reports are read off what it writes. `here`: it will run on this machine.

    Raises:
        ExperimentError: it can't train; the message says why.
    """
    words = words_of(command)
    _check_program(_plain(words[0]), folder, here=here)
    script = script_of(command, folder)
    if script.suffix != ".py":
        return
    _check_options(script, parse_file(script), words, command)
    if not told and not _reports(folder):
        raise ExperimentError(
            f"{script}: nothing reports: no file in {folder} names cloudtune. Call "
            "cloudtune.report({…}) once an epoch, or say where its numbers are: "
            "reports: {file: metrics.jsonl} or {printed: 'accuracy (?P<accuracy>[0-9.]+)'}"
        )


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
    """Return where programs are looked for: beside this Python first, so that `python` is it."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _near(path: Path) -> str:
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    if path.name in beside:
        return f"; the file beside the experiment is ./{path.name}, or python {path.name}"
    return nearest(path.name, beside)


def _reports(folder: Path) -> bool:
    """Whether any Python file in a folder names cloudtune; true where there are too many."""
    for count, path in enumerate(folder.rglob("*.py")):
        if count >= _MAX_FILES or b"cloudtune" in path.read_bytes():
            return True
    return False


def _check_options(script: Path, tree: ast.Module, words: Iterable[Word], command: str) -> None:
    """Raise if the script's one argparse parser doesn't know an option, or misses one."""
    known = _options(tree)
    if known is None:
        return
    plain = [_plain(word) for word in words]
    after = next((n for n, word in enumerate(plain) if Path(word).name == script.name), None)
    if after is None:
        return
    options = plain[after + 1 :]
    if "--" in options:
        options = options[: options.index("--")]
    given = [name for word in options if (name := _option(word))]
    for name in given:
        if not _takes(known, name):
            raise ExperimentError(
                f"{script}: no option {name} for `{command}`; its parser has: "
                f"{', '.join(sorted(known))}.{nearest(name, known)}"
            )
    for names in known.values():
        if names and not any(name.startswith(each) for name in names for each in given):
            raise ExperimentError(
                f"{script}: its parser requires {names[-1]}; add it to `{command}`"
            )


def _option(word: str) -> str:
    """Return the option that a word gives; "" where it gives none."""
    name = word.partition("=")[0]
    if not re.fullmatch(r"--?[A-Za-z][\w-]*", name):
        return ""
    return name


def _takes(known: Iterable[str], name: str) -> bool:
    if name in {"-h", "--help"} or any(each == name for each in known):
        return True
    if name.startswith("--"):
        return any(each.startswith(name) for each in known)
    return name[:2] in known


def _options(tree: ast.Module) -> dict[str, tuple[str, ...]] | None:
    """Return the options of a script's parser: for one that must be given all names that it has.

    None where not all of them are in sight: there are several parsers, or what builds them is
    somewhere else, or is no argparse.
    """
    calls = list(_calls(tree))
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree)}
    names |= {word.arg or "" for _, call in calls for word in call.keywords}
    called = [name for name, _ in calls]
    if _BEYOND & names or called.count("ArgumentParser") != 1 or "parse_args" not in called:
        return None
    found: dict[str, tuple[str, ...]] = {}
    for name, call in calls:
        if name == "add_argument":
            plain = all(isinstance(each, ast.Constant) for each in call.args)
            if not plain or any(word.arg is None for word in call.keywords):
                return None
            found.update(_added(call))
    return found if found and not _hands_on(tree) else None


def _added(call: ast.Call) -> Iterator[tuple[str, tuple[str, ...]]]:
    said = {word.arg: ast.unparse(word.value) for word in call.keywords}
    names = (str(each.value) for each in call.args if isinstance(each, ast.Constant))
    options = tuple(name for name in names if name.startswith("-"))
    for name in options:
        yield name, options if said.get("required") == "True" else ()
        if said.get("action", "").endswith("BooleanOptionalAction"):
            yield f"--no-{name.removeprefix('--')}", ()


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def _hands_on(tree: ast.AST) -> bool:
    """Whether a parser is given to a function, which may add options to it."""
    parsers = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "ArgumentParser(" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(argument, ast.Name) and argument.id in parsers
        for _, call in _calls(tree)
        for argument in (*call.args, *(word.value for word in call.keywords))
    )

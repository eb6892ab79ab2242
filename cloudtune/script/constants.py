"""Settings that a program has as constants, and what makes options of them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cloudtune.script.functions import parse_file
from cloudtune.script.guesses import EPOCHS, usual_space
from cloudtune.script.options import Option


class FixedSetting(NamedTuple):
    """A number at the top level of a file: LR = 1e-3, or "lr" of a dict `owner`."""

    name: str
    value: float
    line: int
    owner: str = ""

    @property
    def option(self) -> Option:
        flag = f"--{self.name.lower().replace('_', '-')}"
        return Option((flag,), default=self.value, kind=type(self.value).__name__)


def find_constants(script: Path) -> list[FixedSetting]:
    """Return the settings of a file, in one dict or beside each other; none without one to tune."""
    found = [it for it in _constants(parse_file(script)) if _is_setting(it)]
    tuned = next((it for it in found if it.option.last_name not in EPOCHS), None)
    return [] if tuned is None else [it for it in found if it.owner == tuned.owner]


def _is_setting(constant: FixedSetting) -> bool:
    option = constant.option
    if not constant.name.isidentifier():
        return False  # a key such as SOLVER.BASE_LR is no name of an option
    return option.last_name in EPOCHS or usual_space(option) is not None


def _constants(tree: ast.Module) -> Iterator[FixedSetting]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if isinstance(value, ast.Dict):
            for key, entry in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield from _number(key.value, entry, owner=name)
        else:
            yield from _number(name, value)


def _number(name: str, node: ast.expr, owner: str = "") -> Iterator[FixedSetting]:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            yield FixedSetting(name, value, node.lineno, owner)


def explain_constants(script: Path, constants: list[FixedSetting]) -> str:
    """Return how to make options of a file's constants: lines to write below them."""
    first = constants[0]
    names = ", ".join(f"{it.name} (line {it.line})" for it in constants)
    added = [
        f"    parser.add_argument({it.option.flag!r}, type={it.option.kind}, default={it.value!r})"
        for it in constants
    ]
    read = ["    args = parser.parse_args()"]
    if first.owner:
        read += [f"    {first.owner}[{it.name!r}] = args.{it.option.name}" for it in constants]
    else:
        read += [f"    {it.name} = args.{it.option.name}" for it in constants]
    head = (
        f"{script}: its settings are constants, which nothing outside of it can change: {names}. "
        "Make them options: write below them"
    )
    lines = ["    import argparse", "    parser = argparse.ArgumentParser()", *added, *read]
    return "\n".join([head, "", *lines, "", f"and then again: cloudtune init {script}"])

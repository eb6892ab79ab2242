"""Names that docstrings and comments mention exist."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.test_layout import SOURCES, module_name, parse

_WORD = re.compile(r"[A-Za-z_]\w*")
_NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
# Names in examples, and in other people's code.
ELSEWHERE = {
    *("block_2", "block_then", "check_to_kill", "eval_loss", "time_total_s", "val_loss"),
    *("constraints.txt", "plotly.graph_objects.Figure", "study.optimize"),
}


def test_names_in_backticks_exist() -> None:
    known = {*dir(builtins), *ELSEWHERE}
    prose: list[tuple[str, str]] = []
    for path in SOURCES:
        place = module_name(path)
        tree = parse(path)
        documented = set(docstrings(tree))
        known.update(_WORD.findall(place), names(tree, documented))
        prose += [(place, text) for text in (*documented, *comments(path))]
    unknown = [
        f"{place}: {name}"
        for place, text in prose
        for name in _NAME.findall(text)
        if name not in ELSEWHERE and not known.issuperset(name.split("."))
    ]
    assert unknown == []


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""


def names(tree: ast.Module, documented: set[str]) -> Iterator[str]:
    """Yield the names in code, and the words of its strings that aren't docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name):
                yield from name.split(".")
            case ast.Constant(value=str(text)) if text not in documented:
                yield from _WORD.findall(text)


def comments(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield line.partition("# ")[2]

"""The numbers that a script prints or logs, and the patterns that name their places."""

import ast
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cloudtune.script.options import called, literal

_PRINTS: Final = frozenset({"print", "write", "info"})
# A value's place in a text for `%`, or for logging.
_PLACE: Final = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[a-zA-Z]")
# A label of the number after it: words, and the separator between them and the number.
_LABEL: Final = re.compile(r"([A-Za-z][\w@/ -]*?)(['\"]?\s*[:=]?)\s*$")


@dataclass(frozen=True)
class Printed:
    """A number in a line: its name, the pattern that names its place, its line and loop depth."""

    name: str
    pattern: str
    line: int
    loops: int


def printed_in(tree: ast.Module) -> Iterator[Printed]:
    """Yield the labelled numbers, as in "val loss: 0.5", in the order of the file.

    Lines that the file or its `main` prints outside of loops are left out: they are printed once.
    """
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    values = {ast.unparse(target): it.value for it in assigned for target in it.targets}
    yield from _printed(tree, values)


def _printed(
    tree: ast.AST, values: Mapping[str, ast.expr], loops: int = 0, *, once: bool = True
) -> Iterator[Printed]:
    for node in ast.iter_child_nodes(tree):
        is_loop = isinstance(node, ast.For | ast.While)
        if isinstance(node, ast.Call) and called(node) in _PRINTS and (loops or not once):
            yield from _numbers(_texts(node, values), node.lineno, loops)
        if isinstance(node, ast.FunctionDef):
            yield from _printed(node, values, once=node.name == "main")
        else:
            yield from _printed(node, values, loops + is_loop, once=once)


def _numbers(texts: list[str], line: int, loops: int) -> Iterator[Printed]:
    for text in texts[:-1]:
        label = _LABEL.search(text)
        if label is not None:
            name = re.sub(r"\W+", "_", label[1].lower()).strip("_")
            between = " " if text[label.end(1) :] else ""
            yield Printed(name, f"{label[1]}{between}{{{name}}}", line, loops)


def _texts(call: ast.Call, values: Mapping[str, ast.expr]) -> list[str]:
    """Return the texts before, between and after the values of a line."""
    texts = [""]
    for argument in call.args:
        if isinstance(argument, ast.Constant) and called(call) != "print":
            pieces = _PLACE.split(str(argument.value))
        else:
            pieces = _pieces(argument, values)
        texts = _appended(texts, pieces)
        texts[-1] += " "
    return texts


def _appended(texts: list[str], pieces: list[str]) -> list[str]:
    return [*texts[:-1], texts[-1] + pieces[0], *pieces[1:]]


def _pieces(argument: ast.expr, values: Mapping[str, ast.expr]) -> list[str]:
    """Return the texts around the values of an expression; for a dict, as printed."""
    match argument:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _PLACE.split(text)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _appended(_pieces(left, values), _pieces(right, values))
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return _joined(_fields(text))
        case ast.JoinedStr(values=parts):
            return _joined(str(it.value) if isinstance(it, ast.Constant) else None for it in parts)
        case _:
            return _items(argument, values)


def _items(value: ast.expr, values: Mapping[str, ast.expr]) -> list[str]:
    """Return the texts around the values of a dict, as Python or JSON writes it."""
    if isinstance(value, ast.Name):
        value = values.get(value.id, value)
    quote = "'"
    if isinstance(value, ast.Call) and called(value) == "dumps" and value.args:
        quote = '"'
        value = value.args[0]
        value = values.get(value.id, value) if isinstance(value, ast.Name) else value
    names: list[object] = []
    if isinstance(value, ast.Dict):
        names = [key if key is None else literal(key) for key in value.keys]
    elif isinstance(value, ast.Call) and called(value) == "dict":
        names = [keyword.arg for keyword in value.keywords]
    return [*(f"{quote}{name}{quote}: " for name in names), ""] if names else ["", ""]


def _fields(text: str) -> Iterator[str | None]:
    """Yield the texts of a format, and None for each value; just the text if it isn't a format."""
    try:
        for before, field, *_ in string.Formatter().parse(text):
            yield before
            if field is not None:
                yield None
    except ValueError:  # the script fails there too
        yield text


def _joined(pieces: Iterable[str | None]) -> list[str]:
    """Return the texts between values; a value is None."""
    texts = [""]
    for piece in pieces:
        if piece is None:
            texts.append("")
        else:
            texts[-1] += piece
    return texts

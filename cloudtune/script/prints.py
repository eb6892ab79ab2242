"""The numbers that a script prints or logs, and the regular expressions that find them."""

import ast
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cloudtune.script.options import called

_PRINTS: Final = frozenset({"print", "write", "info"})
# A value's place in a text for `%`, or for logging.
_PLACE: Final = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[a-zA-Z]")
# What names the number after it: words, and what stands between them and the number.
_LABEL: Final = re.compile(r"([A-Za-z][\w@/ -]*?)(\s*[:=]?)\s*$")


@dataclass(frozen=True)
class Printed:
    """A number of a line: its name, what finds it there, where, and within how many loops."""

    name: str
    pattern: str
    line: int
    loops: int


def printed_in(tree: ast.AST, loops: int = 0, *, once: bool = True) -> Iterator[Printed]:
    """Yield the numbers that a label names, as in "val loss: 0.5", in the order of the file.

    What the file itself or its `main` prints outside of loops is left out: it is printed once.
    """
    for node in ast.iter_child_nodes(tree):
        is_loop = isinstance(node, ast.For | ast.While)
        if isinstance(node, ast.Call) and called(node) in _PRINTS and (loops or not once):
            yield from _numbers(_texts(node), node.lineno, loops)
        if isinstance(node, ast.FunctionDef):
            yield from printed_in(node, once=node.name == "main")
        else:
            yield from printed_in(node, loops + is_loop, once=once)


def _numbers(texts: list[str], line: int, loops: int) -> Iterator[Printed]:
    for text in texts[:-1]:
        label = _LABEL.search(text)
        if label is not None:
            name = re.sub(r"\W+", "_", label[1].lower()).strip("_")
            words = re.escape(label[1]).replace("\\ ", " ").replace("\\-", "-")
            pattern = rf"\b{words}{label[2]}\s*(?P<{name}>[-+.\w]+)"
            yield Printed(name, pattern, line, loops)


def _texts(call: ast.Call) -> list[str]:
    """Return the texts before, between and after the values of a line."""
    texts = [""]
    for argument in call.args:
        pieces = _pieces(argument, is_print=called(call) == "print")
        texts = [*texts[:-1], texts[-1] + pieces[0], *pieces[1:]]
        texts[-1] += " "
    return texts


def _pieces(argument: ast.expr, *, is_print: bool) -> list[str]:
    match argument:
        case ast.Constant(value=str(text)):
            return [text] if is_print else _PLACE.split(text)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _PLACE.split(text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            try:
                parsed = list(string.Formatter().parse(text))
            except ValueError:  # the script fails there as well
                return [text]
            return _joined(it for text, field, *_ in parsed for it in _with_place(text, field))
        case ast.JoinedStr(values=values):
            return _joined(str(it.value) if isinstance(it, ast.Constant) else None for it in values)
        case _:
            return ["", ""]


def _with_place(text: str, field: str | None) -> list[str | None]:
    return [text] if field is None else [text, None]


def _joined(pieces: Iterable[str | None]) -> list[str]:
    """Return the texts between values, which are None."""
    texts = [""]
    for piece in pieces:
        if piece is None:
            texts.append("")
        else:
            texts[-1] += piece
    return texts

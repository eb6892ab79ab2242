"""Whether a Python file defines a function, found without running the file."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

from cloudtune.errors import ExperimentError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_MAX_NAMES = 20


def check_function(path: Path, function: str) -> None:
    """Pass if the top level of the file defines, assigns or imports the function.

    Raises:
        ExperimentError: it does not, or the file is not there or is no Python.
    """
    tree = parse_file(path)
    found = dict(_names(tree.body))
    if function not in found and "*" not in found:
        raise ExperimentError(f"{path}: no function {function!r}; {_having(found, function)}")
    node = found.get(function)
    if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef):
        kind = "a class" if isinstance(node, ast.ClassDef) else "an async function"
        raise ExperimentError(
            f"{path}:{node.lineno}: {function!r} is {kind}; name a plain function (def)"
        )


def _having(found: dict[str, ast.stmt], wanted: str) -> str:
    functions = [name for name, node in found.items() if isinstance(node, ast.FunctionDef)]
    if not functions:
        return "the file defines none at its top level; add `def train(...)` or correct the name"
    listed = ", ".join(functions[:_MAX_NAMES]) + (", …" if len(functions) > _MAX_NAMES else "")
    return f"it defines: {listed}.{nearest(wanted, functions)}"


def parse_file(path: Path) -> ast.Module:
    """Return a Python file's tree.

    Raises:
        ExperimentError: there is no such file, or it is no Python.
    """
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise ExperimentError(f"{path}: {_missing(path)}") from None
    except OSError as error:
        raise ExperimentError(f"{path}: can't be read: {error.strerror}") from error
    return parse(path, source)


def parse(path: Path, source: bytes) -> ast.Module:
    """Return the tree of what a Python file has.

    Raises:
        ExperimentError: it is no Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source, filename=str(path))
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise ExperimentError(f"{place}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExperimentError(f"{path}: not valid Python: {error}") from None


def _missing(path: Path) -> str:
    beside = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return f"no such file; `train` is relative to the experiment file.{nearest(path.name, beside)}"


def _names(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield every name that the top level binds, those inside if, try, with and loops too."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield alias.asname or alias.name.partition(".")[0], node
            case ast.Assign():
                yield from ((name, node) for each in node.targets for name in _targets(each))
            case ast.AnnAssign(value=ast.expr()):
                yield from ((name, node) for name in _targets(node.target))
            case _:
                yield from _names(_blocks(node))


def _targets(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _blocks(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements directly inside a compound statement."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body

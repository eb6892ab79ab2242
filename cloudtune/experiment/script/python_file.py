"""A Python file as far as it can be read without running it: what it defines, imports and runs."""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_CAUGHT = frozenset(
    {"", "ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
)
_OURS = ("cloudtune", "ray")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read_python(path: Path, folder: Path) -> PythonFile | None:
    """Read a file; `folder` is where it finds those beside it. None where it isn't Python."""
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PythonFile(path, folder, text, ast.parse(text))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def chain_of(node: ast.expr) -> list[str] | None:
    """Return the names of `a.b.c`; None for what is no such thing."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None


class PythonFile:
    """A file of the user's."""

    def __init__(self, path: Path, folder: Path, text: str, tree: ast.Module) -> None:
        self.path = path
        self.folder = folder
        self.text = text
        self.tree = tree
        self.lines = [*text.split("\n"), ""]

    @cached_property
    def _tops(self) -> dict[str, list[ast.AST]]:
        found: dict[str, list[ast.AST]] = defaultdict(list)
        for node in _statements(self.tree):
            if isinstance(node, _FUNCTIONS):
                found[node.name].append(node)
        return dict(found)

    @property
    def defined(self) -> set[str]:
        """The functions and classes of its top level."""
        return set(self._tops)

    def regions(self, name: str) -> list[ast.AST]:
        """Return what is run under that name; the top level for an empty one."""
        return self._tops.get(name, []) if name else [self.tree]

    def run_nodes(self, region: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that are run with a region.

        Left out: functions of the top level where that is the region, `if __name__ == "__main__"`,
        `if TYPE_CHECKING`, and attempts that may fail (try … except ImportError).
        """
        yield from _run(ast.iter_child_nodes(region), top=region is self.tree)

    @cached_property
    def _bound(self) -> dict[str, set[str]]:
        """What each name is imported as, in the whole file."""
        found: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first].add(alias.name if alias.asname else first)
                    if not alias.asname and first not in _OURS:
                        found[first].add(alias.name)  # a.b.c of a folder beside
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    full = f"{node.module or ''}.{alias.name}".strip(".")
                    found[alias.asname or alias.name].add(full)
        return found

    @cached_property
    def imported(self) -> dict[str, str]:
        """The full names of what is imported of Ray and of cloudtune; of one source only."""
        return {
            name: full
            for name, (full, *others) in (
                (name, sorted(each)) for name, each in self._bound.items()
            )
            if not others and full.partition(".")[0] in _OURS and name not in self._tops
        }

    @cached_property
    def beside(self) -> dict[str, list[tuple[Path, str]]]:
        """Which name is imported from which file beside this one, and what of it ("": it all)."""
        found: dict[str, list[tuple[Path, str]]] = {}
        for name, sources in self._bound.items():
            places = [place for full in sources for place in self._places(full)]
            if places:
                found[name] = places
        return found

    def _places(self, full: str) -> Iterator[tuple[Path, str]]:
        module, _, last = full.rpartition(".")
        for dotted, wanted in ((full, ""), (module, last)):
            if not dotted:
                continue
            base = self.folder.joinpath(*dotted.split("."))
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    yield path, wanted
                    return

    def hidden_in(self, region: ast.AST) -> set[str]:
        """Return the names that mean something else there: parameters and variables."""
        if region is self.tree:
            return set()
        found = {node.arg for node in ast.walk(region) if isinstance(node, ast.arg)}
        for node in ast.walk(region):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
        return found

    @cached_property
    def only_results(self) -> dict[str, ast.Call]:
        """The variables that are given a value once in the file, and that is what a call gives."""
        stored: dict[str, int] = defaultdict(int)
        found: dict[str, ast.Call] = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    stored[name] += 1
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                    found[name] = call
                case ast.NamedExpr(target=ast.Name(id=name), value=ast.Call() as call):
                    found[name] = call
                case _:
                    continue
        return {name: call for name, call in found.items() if stored[name] == 1}


def _run(nodes: Iterable[ast.AST], *, top: bool) -> Iterator[ast.AST]:
    for node in nodes:
        if top and isinstance(node, _FUNCTIONS):
            continue
        if isinstance(node, ast.If) and _is_never_run(node.test):
            yield from _run(node.orelse, top=top)
        elif isinstance(node, ast.Try) and any(map(_catches, node.handlers)):
            yield from _run([*node.handlers, *node.orelse, *node.finalbody], top=top)
        else:
            yield node
            yield from _run(ast.iter_child_nodes(node), top=top)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of the top level, those inside if, try, with and loops too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.ExceptHandler) or (
            isinstance(child, ast.stmt) and not isinstance(child, _FUNCTIONS)
        ):
            yield from _statements(child)


def _is_never_run(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return text.rpartition(".")[2] == "TYPE_CHECKING" or (
        "__name__" in text and "__main__" in text and "==" in text
    )


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(("" if kind is None else ast.unparse(kind)) in _CAUGHT for kind in kinds)

"""Python files of the user's: their syntax trees, and whether they define a function."""

import ast
import warnings
from pathlib import Path

from cloudtune.errors import ExperimentError, nearest

# The maximum number of names in an error: more don't help to find the right one.
_MAX_NAMES = 20
# The maximum number of files to search: more would take seconds.
_MAX_FILES = 1000


def check_function(path: Path, function: str) -> None:
    """Check that the top level of the file defines, assigns or imports the function.

    Raises:
        ExperimentError: it doesn't, or the file is missing or isn't Python.
    """
    tree = parse_file(path)
    bound = _bound(tree)
    if function not in bound and "*" not in bound:
        raise ExperimentError(f"{path}: no function {function!r}; {_existing(tree, function)}")
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef) and node.name == function:
            kind = "a class" if isinstance(node, ast.ClassDef) else "an async function"
            raise ExperimentError(
                f"{path}:{node.lineno}: {function!r} is {kind}; name a plain function (def)"
            )


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that the top level defines, imports ("*" too) or assigns."""
    names: set[str] = set()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not (isinstance(node, ast.AnnAssign) and node.value is None):
            waiting += ast.iter_child_nodes(node)
    return names


def _existing(tree: ast.Module, name: str) -> str:
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not functions:
        return "the file defines none at its top level; add `def train(...)` or correct the name"
    listed = ", ".join(functions[:_MAX_NAMES]) + (", …" if len(functions) > _MAX_NAMES else "")
    return f"it defines: {listed}.{nearest(name, functions)}"


def imported_names(tree: ast.Module) -> set[str]:
    """Return the packages and modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def relative_level(tree: ast.Module) -> int:
    """Return how many folders up a file's relative imports go: 1 for `from .model import Net`."""
    levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return max(levels, default=0)


def parse_file(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file.

    Raises:
        ExperimentError: the file is missing, can't be read, or isn't Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes(), filename=str(path))
    except FileNotFoundError:
        names = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ExperimentError(
            f"{path}: no such file; `train` is relative to the experiment file."
            f"{nearest(path.name, names)}"
        ) from None
    except OSError as error:
        raise ExperimentError(f"{path}: can't be read: {error.strerror}") from error
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise ExperimentError(f"{place}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExperimentError(f"{path}: not valid Python: {error}") from None


def names_checkpoints(folder: Path) -> bool:
    """Whether a function, or what lies beside it, may save checkpoints."""
    return mentions(folder, b"Checkpoint") or mentions(folder, b"integrations")


def mentions(folder: Path, text: bytes) -> bool:
    """Whether any Python file in a folder contains a text; True if there are too many."""
    for count, path in enumerate(folder.rglob("*.py")):
        if count >= _MAX_FILES or (path.is_file() and text in path.read_bytes()):
            return True
    return False

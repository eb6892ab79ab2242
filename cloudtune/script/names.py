"""Names of Ray that a training function uses, though Ray doesn't run it.

The check covers the function, the top level, and what these call in the file. Other mistakes show
when `run` tries the script, or in the first epoch.
"""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cloudtune.errors import ExperimentError
from cloudtune.script.functions import parse_file

# A line that ends with this isn't checked.
_LEAVE: Final = b"# cloudtune: leave"
# The maximum number of mistakes named at once: later ones often follow from the first.
_MAX_LINES: Final = 8
_OF_RAY: Final = re.compile(r"ray\.(train|tune|air)\.(torch\.|session\.)?")
_IN_THE_FILE: Final = (
    "leave it out: cloudtune starts the training function that the experiment file names, on as "
    "many GPUs as the plan gives it"
)
_SPACE: Final = "the search space stands in the experiment file, under `search`"
_SPACES: Final = (
    *("uniform", "loguniform", "quniform", "qloguniform", "randint", "lograndint", "qrandint"),
    *("choice", "randn", "grid_search", "sample_from"),
)
_FOLDER: Final = "write files into a folder, and give Checkpoint.from_directory(folder)"
# What to write instead of a name of Ray Train or Ray Tune.
_HINTS: Final = {
    "get_dataset_shard": "read the data in the script: prepare_data_loader() gives each worker its "
    "share of every batch",
    "accelerate": "take torch.autocast and torch.amp.GradScaler, which work as they are",
    "from_dict": _FOLDER,
    **dict.fromkeys(_SPACES, _SPACE),
}


def check_names(path: Path, function: str) -> None:
    """Check that a training function uses no name of Ray, and divides no batch twice.

    Raises:
        ExperimentError: it does; the message has each use with file, line and what to write.
    """
    lines = path.read_bytes().splitlines()
    tree = parse_file(path)
    flaws = {
        (line, f"{name} is Ray's, which doesn't run this script; {_ray_hint(name)}")
        for line, name in _uses(tree, function)
        if _OF_RAY.match(name)
    }
    if b"prepare_data_loader" in path.read_bytes():
        flaws |= set(_divided_batches(tree, function))
    mistakes = [
        f"{path}:{line}: {text}" for line, text in sorted(flaws) if _LEAVE not in lines[line - 1]
    ]
    if len(mistakes) > _MAX_LINES:
        mistakes[_MAX_LINES:] = [f"… and {len(mistakes) - _MAX_LINES} more"]
    if mistakes:
        raise ExperimentError("\n".join(mistakes))


def _ray_hint(full: str) -> str:
    """Return what to write for a full name of Ray, such as "write cloudtune.report"."""
    if "transformers" in full:
        return "write cloudtune.integrations.transformers.prepare(trainer)"
    if "lightning" in full:
        return "cloudtune.integrations.lightning.Trainer takes the place of lightning's Trainer"
    facade = importlib.import_module("cloudtune")
    rest = _OF_RAY.sub("", full)
    name = rest.rpartition(".")[2]
    homes = {
        f"cloudtune.{rest}": rest.partition(".")[0] in facade.__all__,
        f"cloudtune.train.torch.{name}": hasattr(facade.train.torch, name),
        f"cloudtune.get_context().{name}()": hasattr(facade.train.calls.Context, name),
    }
    home = next((home for home, exists in homes.items() if exists), None)
    if name in _HINTS or home is None:
        return _HINTS.get(name, _IN_THE_FILE)
    return f"write {home}"


def _reach(tree: ast.Module, function: str) -> Iterator[list[ast.AST]]:
    """Yield the nodes of the top level, of a function, and of the functions that they use."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    definitions = {node.name: node for node in tree.body if isinstance(node, kinds)}
    top = [node for node in tree.body if not isinstance(node, kinds) and not _is_guard(node)]
    nodes = [inner for node in top for inner in ast.walk(node)]
    waiting = [function]
    while True:
        waiting += [node.id for node in nodes if isinstance(node, ast.Name)]
        yield nodes
        waiting = [name for name in waiting if name in definitions]
        if not waiting:
            return
        nodes = list(ast.walk(definitions.pop(waiting.pop())))


def _is_guard(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__"` or `if TYPE_CHECKING`."""
    test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
    return "__name__" in test or "TYPE_CHECKING" in test


def _uses(tree: ast.Module, function: str) -> Iterator[tuple[int, str]]:
    """Yield the imported names that a function uses, such as ray.train.report, with their lines."""
    imports = _imports(tree)
    for nodes in _reach(tree, function):
        names = [node for node in nodes if isinstance(node, ast.Name)]
        local = {node.arg for node in nodes if isinstance(node, ast.arg)}
        local |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
                name, *attributes = _chain(node)
                if name in imports and name not in local:
                    yield node.lineno, ".".join([imports[name], *attributes])


def _divided_batches(tree: ast.Module, function: str) -> Iterator[tuple[int, str]]:
    """Yield divisions of the batch by the workers: loaders would divide it again."""
    for node in (node for nodes in _reach(tree, function) for node in nodes):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.FloorDiv | ast.Div)
            and "batch" in ast.unparse(node.left)
            and re.search("world_size|num_workers", ast.unparse(node.right))
        ):
            text = (
                f"{ast.unparse(node)}: prepare_data_loader() divides the batch among the workers "
                "itself; give the DataLoader the batch of all of them"
            )
            yield node.lineno, text


def _chain(node: ast.expr) -> list[str]:
    """Return the names of `a.b.c`, or [""] for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else [""]


def _imports(tree: ast.Module) -> dict[str, str]:
    """Return the full name of each import, without names that are imported in two ways."""
    sources: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    sources[alias.asname].add(alias.name)
                else:
                    first = alias.name.partition(".")[0]
                    sources[first].add(first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                sources[alias.asname or alias.name].add(f"{node.module}.{alias.name}")
    return {name: full.pop() for name, full in sources.items() if len(full) == 1}

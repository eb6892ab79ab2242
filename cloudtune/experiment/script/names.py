"""What a training script calls that isn't there, found before anything is rented.

Looked at is what a worker would run: the top level of the file, the training function, and what
these two lead to, in the files beside it as well. Nothing of the user's is imported or run.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import ExperimentError, nearest
from cloudtune.experiment.script.migration_hints import instead_of, instead_of_argument, is_of_ray
from cloudtune.experiment.script.python_file import PythonFile, chain_of, read_python

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

LEAVE: Final = "# cloudtune: leave"
"""At the end of a line: don't look at it."""
_RETURNS: Final = {
    "cloudtune.get_context": "cloudtune.train.calls.Context",
    "cloudtune.train.get_context": "cloudtune.train.calls.Context",
    "cloudtune.get_checkpoint": "cloudtune.Checkpoint",
    "cloudtune.train.get_checkpoint": "cloudtune.Checkpoint",
    "cloudtune.Checkpoint.from_directory": "cloudtune.Checkpoint",
    "cloudtune.Checkpoint.from_storage": "cloudtune.Checkpoint",
}
_FUSED: Final = frozenset({"cloudtune.fused.train", "cloudtune.train.fused.train"})
_CHECKED: Final = ("cloudtune.train", "cloudtune.errors")
"""Our modules that a script may use, and that are imported in no time."""
_UNKNOWN: Final = object()
_MAX_LINES: Final = 8


def check_names(path: Path, function: str, keys: Collection[str]) -> None:
    """Pass if what the training function calls of cloudtune and of Ray is there, when it runs.

    `keys` are those of the configuration that it is given.

    Raises:
        ExperimentError: what isn't, each with its file, its line and what to write instead.
    """
    flaws = sorted({*_flaws(path, function), *_missing_keys(path, function, keys)})
    shown = [f"{file}:{line}: {text}" for file, line, text in flaws[:_MAX_LINES]]
    if len(flaws) > _MAX_LINES:
        shown.append(f"… and {len(flaws) - _MAX_LINES} more")
    if shown:
        raise ExperimentError("\n".join(shown))


def trains_fused(path: Path, function: str) -> bool:
    """Whether what a worker would run uses `cloudtune.fused.train`."""
    return any(name in _FUSED for look in _looks(path, function) for _, name in look.uses)


_Flaw = tuple[Path, int, str]


def check_inherits(path: Path, function: str) -> None:
    """Pass if what a worker would run takes weights over from another network.

    Raises:
        ExperimentError: it doesn't.
    """
    used = (full for look in _looks(path, function) for _, full in look.uses)
    if not any(full.startswith("cloudtune.") and full.endswith(".inherit") for full in used):
        raise ExperimentError(
            f"{path}: with strategy.inherit a clone begins from another network's checkpoint, and "
            f"{function} never calls cloudtune.inherit(); call it in place of load_state_dict()"
        )


def _flaws(path: Path, function: str) -> Iterator[_Flaw]:
    """Yield what is wrong in all that a worker would run."""
    for look in _looks(path, function):
        yield from look.flaws()


def _looks(path: Path, function: str) -> Iterator[_Look]:
    """Yield a look at each part of all that a worker would run."""
    files: dict[Path, PythonFile | None] = {}
    waiting, seen = [(path, ""), (path, function)], set[tuple[Path, str]]()
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        if here[0] not in files:
            files[here[0]] = read_python(here[0], path.parent)
        file = files[here[0]]
        if file is None:
            continue
        for region in file.regions(here[1]):
            look = _Look(file, region)
            yield look
            waiting += [(here[0], name) for name in look.names & file.defined]
            waiting += [leads for leads in look.leads() if leads not in seen]


@dataclass
class _Look:
    """A look at one function, class or top level of a file."""

    file: PythonFile
    region: ast.AST

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All that is run there, without what a guard is around."""
        return list(self.file.run_nodes(self.region))

    @cached_property
    def names(self) -> set[str]:
        """The names that are read there."""
        return {node.id for node in self.nodes if isinstance(node, ast.Name)}

    @cached_property
    def uses(self) -> list[tuple[ast.expr, str]]:
        """The uses of what is imported, each in its full name, such as ray.train.report."""
        inner = {id(node.value) for node in self.nodes if isinstance(node, ast.Attribute)}
        hidden = self.file.hidden_in(self.region)
        found: list[tuple[ast.expr, str]] = []
        for node in self.nodes:
            if not isinstance(node, ast.Attribute | ast.Name) or id(node) in inner:
                continue
            name, *attributes = chain_of(node) or [""]
            if name in self.file.imported and name not in hidden:
                found.append((node, ".".join([self.file.imported[name], *attributes])))
        return found

    def leads(self) -> Iterator[tuple[Path, str]]:
        """Yield what is used of the files beside this one; "" stands for their top level."""
        chains = [
            chain_of(node) for node in self.nodes if isinstance(node, ast.Attribute | ast.Name)
        ]
        for name, *attributes in filter(None, chains):
            for beside, wanted in self.file.beside.get(name, ()):
                yield beside, ""
                yield from ((beside, each) for each in ([wanted] if wanted else attributes))

    def flaws(self) -> Iterator[_Flaw]:
        """Yield what is wrong, line by line."""
        found = (
            *self._imports(),
            *self._uses(),
            *self._results(),
            *self._calls(),
            *self._batches(),
        )
        for node, text in found:
            line = getattr(node, "lineno", 1)
            if LEAVE not in self.file.lines[line - 1]:
                yield self.file.path, line, text

    def _imports(self) -> Iterator[tuple[ast.AST, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                full = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                if node.module == "cloudtune.models":  # a name, and no module
                    yield node, "write `from cloudtune import models`, and models.space(...)"
                full = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*"]
            else:
                continue
            for each in full:
                yield from ((node, why) for why in _why_missing(each))
            if any(_is_in_fused(node, each) for each in full):
                yield (
                    node,
                    "cloudtune.fused is not imported by itself; write: from cloudtune import fused",
                )

    def _uses(self) -> Iterator[tuple[ast.AST, str]]:
        for node, full in self.uses:
            chain = chain_of(node) or [""]
            if any(_why_missing(self.file.imported[chain[0]])):
                continue  # told where it is imported
            if is_of_ray(full):
                yield node, f"{full} is Ray's, which doesn't run this script; {instead_of(full)}"
            else:
                yield from ((node, why) for why in _why_missing(full))

    def _results(self) -> Iterator[tuple[ast.AST, str]]:
        """Yield what isn't there of what get_context() and get_checkpoint() give."""
        calls = {id(node): _RETURNS[full] for node, full in self.uses if full in _RETURNS}
        kinds = {
            name: kind
            for name, call in self.file.only_results.items()
            if (kind := calls.get(id(call.func)))
        }
        for node in self.nodes:
            if not isinstance(node, ast.Attribute):
                continue
            value, kind = node.value, None
            if isinstance(value, ast.Call):
                kind = calls.get(id(value.func))
            elif isinstance(value, ast.Name):
                kind = kinds.get(value.id)
            if kind is not None:
                yield from ((node, why) for why in _why_missing(f"{kind}.{node.attr}"))

    def _calls(self) -> Iterator[tuple[ast.AST, str]]:
        """Yield arguments that a function of ours doesn't take."""
        full = {id(node): name for node, name in self.uses if name.startswith("cloudtune.")}
        for node in self.nodes:
            if isinstance(node, ast.Call) and id(node.func) in full:
                name = full[id(node.func)]
                taken = _arguments(_found(name))
                for keyword in node.keywords:
                    why = _why_refused(name.rpartition(".")[2], keyword, taken)
                    yield from ((keyword.value, each) for each in why)

    def _batches(self) -> Iterator[tuple[ast.AST, str]]:
        """Yield batch sizes that are divided by the workers, who would divide them once more."""
        if "prepare_data_loader" not in self.file.text:
            return
        for node in self.nodes:
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.FloorDiv | ast.Div)
                and re.search("world_size|num_workers", ast.unparse(node.right))
                and "batch" in ast.unparse(node.left)
            ):
                yield (
                    node,
                    (
                        f"{ast.unparse(node)}: prepare_data_loader() divides the batch among the "
                        "workers itself; give the DataLoader the batch of all of them"
                    ),
                )


# ---- what there is of cloudtune ------------------------------------------------------------


def _why_missing(full: str) -> Iterator[str]:
    """Yield why a name of cloudtune isn't there, and what to write; nothing where it is."""
    if full.partition(".")[0] != "cloudtune" or _found(full) is not None:
        return
    owner = full
    while _found(owner) is None:
        owner, _, name = owner.rpartition(".")
    shown = owner.replace("cloudtune.train.calls.Context", "cloudtune.get_context()")
    advice = instead_of(full)
    yield (
        f"{shown} has no {name}; {advice}"
        if advice
        else f"{shown} has no {name}.{_near(owner, name)}"
    )


def _is_in_fused(node: ast.AST, full: str) -> bool:
    """Whether what is imported is looked for in a file of that name: it has another."""
    return full.startswith(
        "cloudtune.fused" if isinstance(node, ast.Import) else "cloudtune.fused."
    )


def _near(owner: str, name: str) -> str:
    found = _found(owner)
    names = getattr(found, "__all__", None) or [each for each in dir(found) if each[0] != "_"]
    return nearest(name, names)


def _found(full: str) -> Any:
    """Return what stands under a name of cloudtune, `_UNKNOWN` for what isn't looked into.

    None where there is no such thing.
    """
    found: Any = importlib.import_module("cloudtune")
    for name in full.split(".")[1:]:
        if found is _UNKNOWN or not isinstance(found, type | ModuleType):
            return _UNKNOWN
        found = _member(found, name)
        if found is None:
            return None
    return found


def _member(owner: Any, name: str) -> Any:
    if isinstance(owner, type):
        return getattr(owner, name, None)
    home = f"{owner.__name__}.{name}"
    if owner.__name__ == "cloudtune" and name in owner.__all__:
        ours = owner._HOMES.get(name, "cloudtune.train.calls").startswith(_CHECKED)  # noqa: SLF001
        return getattr(owner, name) if ours else _UNKNOWN
    if owner.__name__ == "cloudtune.integrations":
        return _UNKNOWN if importlib.util.find_spec(home) else None
    if owner.__name__ in ("cloudtune", "cloudtune.train") and importlib.util.find_spec(home):
        light = home.startswith((*_CHECKED, "cloudtune.integrations"))
        return importlib.import_module(home) if light else _UNKNOWN
    try:
        return getattr(owner, name)
    except AttributeError:
        return None


def _why_refused(function: str, given: ast.keyword, taken: set[str] | None) -> Iterator[str]:
    """Yield why an argument isn't one that our function takes, and what to do."""
    value = given.value.value if isinstance(given.value, ast.Constant) else None
    if taken is not None and given.arg is not None and given.arg not in taken:
        advice = instead_of_argument(given.arg)
        advice = f"; {advice}" if advice else f".{nearest(given.arg, taken)}"
        yield f"{function}() takes no {given.arg}{advice}"
    elif given.arg == "parallel_strategy" and value not in ("ddp", None):
        yield (
            f"{function}() knows no parallel_strategy {value!r}; give it None, and shard the model "
            "that you get yourself, by torch.distributed.fsdp"
        )


def _arguments(function: Any) -> set[str] | None:
    """Return the arguments that a function has; None where it takes any, or is none."""
    if not inspect.isfunction(function):
        return None
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return None
    return set(parameters)


# ---- the configuration ---------------------------------------------------------------------


def _missing_keys(path: Path, function: str, keys: Collection[str]) -> Iterator[_Flaw]:
    """Yield what the training function reads of its configuration that the search hasn't."""
    file = read_python(path, path.parent)
    defined = [] if file is None else list(file.regions(function))
    for node in defined:
        assert file is not None
        if not isinstance(node, ast.FunctionDef) or not node.args.args:
            continue
        config = node.args.args[0].arg
        inside = list(file.run_nodes(node))
        if _is_changed(config, inside):
            continue
        for each in inside:
            if (
                isinstance(each, ast.Subscript)
                and isinstance(each.value, ast.Name)
                and each.value.id == config
                and isinstance(each.slice, ast.Constant)
                and isinstance(each.slice.value, str)
                and each.slice.value not in keys
                and LEAVE not in file.lines[each.lineno - 1]
            ):
                key = each.slice.value
                yield (
                    path,
                    each.lineno,
                    (
                        f"{config}[{key!r}] is read, and `search` has no {key}; it has "
                        f"{', '.join(sorted(keys))}. {_for_key(key)}"
                    ),
                )


def _for_key(key: str) -> str:
    if "epoch" in key:
        return "cloudtune decides the number of epochs: `for epoch in cloudtune.epochs():`"
    return f"Write the value in the script, or under search: `{key}: {{choice: [...]}}`"


def _is_changed(name: str, nodes: Iterable[ast.AST]) -> bool:
    """Whether a variable gets another value or other keys, or is asked which it has."""
    for node in nodes:
        match node:
            case ast.Name(id=found, ctx=ast.Store()) if found == name:
                return True
            case ast.Subscript(value=ast.Name(id=found), ctx=ast.Store() | ast.Del()) if (
                found == name
            ):
                return True
            case ast.Attribute(value=ast.Name(id=found), attr="update" | "setdefault") if (
                found == name
            ):
                return True
            case ast.Compare(comparators=[ast.Name(id=found)]) if found == name:
                return True
            case _:
                continue
    return False

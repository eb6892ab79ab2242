"""Training functions, as their file shows them: parameters and metric are read from its text."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cloudtune.errors import ExperimentError, UsageError
from cloudtune.script.drafts import Draft
from cloudtune.script.functions import imported_names, parse_file
from cloudtune.script.guesses import EPOCHS, GAP, rank
from cloudtune.script.options import UNKNOWN, Option
from cloudtune.script.other_files import explain_other_file

_LIBRARIES: Final = frozenset(
    {"cloudtune", "ray", "lightning", "pytorch_lightning", "transformers"}
)
_TRAINERS: Final = ("train", "main", "train_func", "training_function", "objective", "trainable")
# What a function calls that trains, if it reports by a library.
_TRAINS: Final = frozenset({"fit", "train", "backward"})


def read_function(script: Path) -> Draft | None:
    """Return the draft of a training function; None if the file is a program.

    Raises:
        UsageError: there is no such file, or it isn't Python.
    """
    if not script.is_file():
        raise UsageError(f"{script}: no such file")
    if other := explain_other_file(script):
        raise UsageError(other)
    try:
        tree = parse_file(script)
    except ExperimentError as error:
        raise UsageError(str(error)) from None
    function = _function(tree)
    if function is None:
        return None
    metric, why = _metric(tree)
    config = function.args.args[0].arg
    return Draft(
        script=script,
        train=f"{script.name}:{function.name}",
        train_why=f"line {function.lineno}: it takes {config}",
        metric=metric,
        metric_why=why,
        tuned=[value for value in _keys(tree, config) if value.name.lower() not in EPOCHS],
    )


def reported_metric(script: Path) -> tuple[str, str]:
    """Return the metric that a program gives to `cloudtune.report`, and where; "" if none."""
    tree = parse_file(script)
    return _metric(tree) if "cloudtune" in imported_names(tree) else ("", "")


def _function(tree: ast.Module) -> ast.FunctionDef | None:
    """Return the function that trains: it takes a configuration, and it or the file reports."""
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and len(node.args.args) == 1
    ]
    own = [node for node in functions if _find_calls("report", node)]
    if not own and (_find_calls("report", tree) or _LIBRARIES & imported_names(tree)):
        trainers = [node for node in functions if _TRAINS & _called_names(node, tree)]
        own = [node for node in trainers if list(_keys(node, node.args.args[0].arg))]
    return min(
        own,
        key=lambda it: _TRAINERS.index(it.name) if it.name in _TRAINERS else len(_TRAINERS),
        default=None,
    )


def _find_calls(function: str, tree: ast.AST) -> list[ast.Call]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if callee_name(call) == function]


def _called_names(function: ast.FunctionDef, tree: ast.Module) -> set[str]:
    """Return the names of what a function calls, also by functions and classes of its file.

    One that only prepares an example for training takes a dict, too.
    """
    names: set[str] = set()
    waiting: list[ast.AST] = [function]
    while waiting:
        calls = (it for it in ast.walk(waiting.pop()) if isinstance(it, ast.Call))
        new = {callee_name(call) for call in calls} - names
        names |= new
        defined = (it for it in tree.body if isinstance(it, ast.FunctionDef | ast.ClassDef))
        waiting += [it for it in defined if it.name in new]
    return names


def _keys(tree: ast.AST, config: str) -> Iterator[Option]:
    """Yield the keys read from a configuration, in the order of the file, each once.

    As config["lr"], config.get("lr", 0.1) or {name: config[name] for name in ("lr", "momentum")}.
    """
    yielded: set[str] = set()
    for node in sorted(ast.walk(tree), key=lambda it: getattr(it, "lineno", 0)):
        default: Any = UNKNOWN
        names: Any
        match node:
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))):
                names = [name]
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="get"),
                args=[ast.Constant(value=str(name)), *rest],
            ):
                names = [name]
                default = literal(rest[0]) if rest else UNKNOWN
            case ast.ListComp() | ast.DictComp() | ast.SetComp() | ast.GeneratorExp():
                owner = config
                loop = node.generators[0]
                read = f"{config}[{ast.unparse(loop.target)}]" in ast.unparse(node)
                names = literal(loop.iter) if read else ()
            case _:
                continue
        if owner != config or not isinstance(names, list | tuple):
            continue
        for name in names:
            if isinstance(name, str) and name not in yielded:
                yielded.add(name)
                yield Option((name,), getattr(node, "lineno", 0), default)


def _metric(tree: ast.Module) -> tuple[str, str]:
    """Return the metric that a script reports, and where; validation metrics first."""
    metrics = list(_metrics(tree))
    if not metrics:
        return "", f"{GAP}: the name of a number that it reports, and max if more is better"
    name, line = min(metrics, key=lambda it: rank(it[0].lower()))
    return name, f"line {line}: a reported number; is it the right one?"


def _metrics(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the metrics that a script reports, logs or computes for a trainer, and where."""
    for call in _find_calls("report", tree):
        named = [word.value for word in call.keywords if word.arg == "metrics"]
        for argument in [*call.args[:1], *named]:
            yield from ((name, call.lineno) for name in _names(argument, tree))
    for call in _find_calls("log", tree):  # Lightning's
        name = literal(call.args[0]) if call.args else None
        if isinstance(name, str):
            yield name, call.lineno
    if "transformers" in imported_names(tree):
        computed = _names(ast.parse("compute_metrics()", mode="eval").body, tree)
        yield from ((f"eval_{name}", 1) for name in (*computed, "loss"))


def _names(node: ast.AST, tree: ast.Module) -> Iterator[str]:
    """Yield the keys of a dict, including one in a variable or returned by a function."""
    values: list[ast.AST | None] = []
    if isinstance(node, ast.Dict):
        keys = (literal(key) for key in node.keys if key is not None)
        yield from (key for key in keys if isinstance(key, str))
    elif isinstance(node, ast.Name):
        assigned = (it for it in ast.walk(tree) if isinstance(it, ast.Assign))
        values = [it.value for it in assigned if node.id in map(ast.unparse, it.targets)]
    elif isinstance(node, ast.Call):
        functions = (it for it in tree.body if isinstance(it, ast.FunctionDef))
        bodies = [ast.walk(it) for it in functions if it.name == callee_name(node)]
        values = [it.value for body in bodies for it in body if isinstance(it, ast.Return)]
        values = [value for value in values if isinstance(value, ast.Dict)]
    for value in values:
        if isinstance(value, ast.Dict | ast.Call):
            yield from _names(value, tree)


def callee_name(call: ast.Call) -> str:
    """Return the last name of the called function: "report" for cloudtune.report(…)."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def literal(node: ast.AST) -> Any:
    """Return the value of a literal; UNKNOWN for any other expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN

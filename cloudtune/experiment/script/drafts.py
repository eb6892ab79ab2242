"""A first experiment for a script, as `cloudtune init` writes it: read off its text, never run.

What stands in it is either read (the function, its parameters, an option's default) or a guess by
what such things are usually called; each line says which, with the line of the script.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cloudtune.errors import UsageError
from cloudtune.experiment.script.check import parse
from cloudtune.model.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import TypeAlias

    _Usual: TypeAlias = tuple[Callable[[str], bool], Callable[[float | None], str]]

GAP: Final = "FILL IN"
"""What stands where nothing could be guessed."""
_UNKNOWN: Final = object()
_MOST: Final = 1e15
_BATCHES: Final = ("batch_size", "batchsize", "bs", "train_batch_size")
_EPOCHS: Final = ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "nepochs")
_RATES: Final = ("lr", "learning_rate", "base_lr", "max_lr", "alpha")
_DECAYS: Final = ("weight_decay", "wd", "l2", "l2_reg")
_SIZES: Final = ("hidden", "width", "dim", "channels", "units", "embd", "features", "heads")
_CHOSEN: Final = frozenset({"optimizer", "opt", "optim", "activation", "scheduler", "schedule"})
_LIBRARIES: Final = frozenset(
    {"cloudtune", "ray", "lightning", "pytorch_lightning", "transformers"}
)
_MAXIMIZED: Final = ("acc", "auc", "f1", "bleu", "rouge", "iou", "map", "precision", "recall", "r2")
_TRAINERS: Final = ("train", "main", "train_func", "training_function", "objective", "trainable")


@dataclass(frozen=True)
class _Value:
    """A parameter of a script: its default (`_UNKNOWN` if there is none in sight), and where."""

    name: str
    line: int
    default: Any = _UNKNOWN
    choices: tuple[Any, ...] = ()
    option: str = ""


@dataclass
class _Script:
    """What a script's text says of it."""

    train: str = ""
    why: str = ""
    metric: str = ""
    metric_why: str = ""
    tuned: list[_Value] = field(default_factory=list)
    epochs: _Value | None = None
    reads_reports: bool = True
    """Whether it calls `report`; else its numbers are to be read."""


@dataclass(frozen=True)
class Gap:
    """Something that the script doesn't say: `what` ("lr", "metric", "epochs" or "reports").

    `option` is how to give it on the command line; "" where the file alone can.
    """

    what: str
    question: str
    option: str


@dataclass
class Draft:
    """A first experiment for a script: what its text says, what was given besides, and the gaps.

    `search` has spaces as YAML by parameter, which go before those that were guessed. `mode` is
    guessed from the metric's name until it is given.
    """

    script: Path
    read: _Script
    search: dict[str, str] = field(default_factory=dict)
    metric: str = ""
    mode: str = ""
    last_epoch: int | None = None
    printed: str = ""

    def gaps(self, *, guesses: bool = True) -> list[Gap]:
        """Return what is missing; without `guesses` also the last epoch, where it is a guess."""
        gaps = [
            Gap(value.name, f"a space for {value.name} (line {value.line})", "--search")
            for value in self.read.tuned
            if value.name not in self.search and GAP in _space(value)
        ]
        if not self.read.tuned and not self.search:
            gaps.append(Gap("search", "a parameter to search", "--search"))
        if not self._metric:
            gaps.append(Gap("metric", "the reported number that decides", "--metric"))
        if not self.read.reads_reports and not self.printed:
            gaps.append(Gap("reports", "the numbers that it prints or writes", ""))
        if not guesses and self.last_epoch is None and self.read.epochs is None:
            gaps.append(Gap("epochs", "the epochs of a full training", "--epochs"))
        return gaps

    @property
    def _metric(self) -> str:
        return self.metric or self.read.metric

    def _search_lines(self) -> Iterator[str]:
        for value in self.read.tuned:
            if value.name not in self.search:
                yield f"  {value.name}: {_space(value)}"
        for name, space in self.search.items():
            yield f"  {name}: {space}"

    def body(self) -> list[str]:
        """Return the lines that say what is tuned: train, metric, reports, search and epochs."""
        name, why = self._metric, "given" if self.metric else self.read.metric_why
        guess = "max" if any(word in name.lower() for word in _MAXIMIZED) else "min"
        metric = f"metric: {{name: {name}, mode: {self.mode or guess}}}  # {why}"
        reports = [f"reports: {{printed: {self.printed!r}}}"] if self.printed else []
        if not self.read.reads_reports and not self.printed:
            reports = _to_be_read()
        search = list(self._search_lines())
        if self.last_epoch is not None:
            epochs = f"epochs: {{max: {self.last_epoch}}}"
        else:
            first, last = _span(self.read.epochs)
            whence = f"line {self.read.epochs.line}" if self.read.epochs else "a guess"
            epochs = f"epochs: {{min: {first}, max: {last}}}  # {whence}; compared from min on"
        return [
            f"train: {self.read.train}  # {self.read.why}",
            metric,
            *reports,
            "search:" if search else f"search: {{}}  # {GAP}: no parameter of it was found",
            *search,
            epochs,
        ]

    def text(self, name: str) -> str:
        """Return the experiment as YAML."""
        body = self.body()
        count = sum(GAP in line for line in body)
        head = (
            f"# {counted(count, 'gap')}, marked {GAP}: until then `cloudtune plan` refuses it."
            if count
            else "# Ranges are guesses from the parameters' names: check them."
        )
        return "\n".join(
            [
                f"# An experiment for {self.script.name}, written by cloudtune.",
                head,
                "",
                f"name: {name}",
                *body,
                *_AFTER,
            ]
        )


_AFTER: Final = (
    "# trials: 16  # a cap; without it as many configurations as the limits allow",
    "",
    "# Limits are given here or on the command line, which overrides them:",
    "#   cloudtune run FILE --deadline 2h --budget '$40'",
    "# limits: {deadline: 2h, budget: $40}",
    "",
    "cloud:",
    "  provider: emulated  # EC2 emulated here, nothing is paid; local: this machine; aws",
    "  instances: [g4dn.12xlarge]  # `cloudtune catalog` has the others",
    "  max_instances: 4",
    "",
)


def read_script(script: Path) -> Draft:
    """Return what the text of a script says of an experiment with it.

    Raises:
        UsageError: there is no such file, it is no Python, or nothing in it trains.
    """
    try:
        source = script.read_bytes()
    except OSError as error:
        raise UsageError(f"{script}: can't be read: {error.strerror}") from None
    return Draft(script, _read(script, parse(script, source)))


def _read(script: Path, tree: ast.Module) -> _Script:
    function, options = _function(tree), list(_options(tree))
    found = _Script()
    found.metric, found.metric_why = _metric(tree)
    if function is not None:
        config = function.args.args[0].arg
        found.train = f"{script.name}:{function.name}"
        found.why = f"line {function.lineno}: it takes {config}"
        found.tuned = [each for each in _keys(tree, config) if each.name not in _EPOCHS]
        if not found.tuned:  # argparse.Namespace(**config)
            found.tuned = [each for each in options if _kind(each) is not None]
        return found
    if not options:
        raise UsageError(
            f"{script}: nothing to tune: no function that takes a configuration and calls "
            "cloudtune.report({…}), and no argparse options; write def train(config), "
            "docs/scripts.md"
        )
    found.reads_reports = bool(found.metric)
    found.tuned = [each for each in options if _kind(each) is not None]
    found.epochs = next((each for each in options if each.name in _EPOCHS), None)
    holes = [f"{each.option} {{{each.name}}}" for each in found.tuned]
    holes += [f"{found.epochs.option} {{epochs}}"] if found.epochs else []
    holes += [f"{each.option} {{seed}}" for each in options if each.name == "seed"]
    found.train = " ".join([f"python {script.name}", *holes])
    found.why = "options that are called as what one tunes; others keep theirs"
    return found


# ---- functions -----------------------------------------------------------------------------


def _function(tree: ast.Module) -> ast.FunctionDef | None:
    """Return the function that trains: it takes a configuration, and it or the file reports."""
    functions = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and len(each.args.args) == 1
    ]
    own = [each for each in functions if _reports(each)]
    if not own and (_reports(tree) or _LIBRARIES & _imported(tree)):
        own = [each for each in functions if list(_keys(each, each.args.args[0].arg))]
    return min(
        own,
        key=lambda it: _TRAINERS.index(it.name) if it.name in _TRAINERS else len(_TRAINERS),
        default=None,
    )


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _reports(tree: ast.AST) -> list[ast.Call]:
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == "report"
    ]


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _keys(tree: ast.AST, config: str) -> Iterator[_Value]:
    """Give what is read of a configuration: config["lr"], config.get("lr", 0.1), by loops as well.

    In the order of the file, each once.
    """
    seen: set[str] = set()
    for node in sorted(ast.walk(tree), key=lambda it: getattr(it, "lineno", 0)):
        match node:
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))):
                found = [(owner, name, _UNKNOWN)]
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="get"),
                args=[ast.Constant(value=str(name)), *rest],
            ):
                found = [(owner, name, _constant(rest[0]) if rest else _UNKNOWN)]
            case ast.ListComp() | ast.DictComp() | ast.SetComp() | ast.GeneratorExp():
                found = [(config, name, _UNKNOWN) for name in _looped(node, config)]
            case _:
                continue
        for owner, name, default in found:
            if owner == config and name not in seen:
                seen.add(name)
                yield _Value(name, getattr(node, "lineno", 0), default)


def _looped(
    node: ast.ListComp | ast.DictComp | ast.SetComp | ast.GeneratorExp, config: str
) -> list[str]:
    """Return the names over which a comprehension reads a configuration."""
    read = {
        each.slice.id
        for each in ast.walk(node)
        if isinstance(each, ast.Subscript)
        and isinstance(each.value, ast.Name)
        and each.value.id == config
        and isinstance(each.slice, ast.Name)
    }
    for loop in node.generators:
        names = _constant(loop.iter)
        if isinstance(loop.target, ast.Name) and loop.target.id in read:
            return [it for it in names if isinstance(it, str)] if names is not _UNKNOWN else []
    return []


def _constant(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN


# ---- options -------------------------------------------------------------------------------


def _options(tree: ast.Module) -> Iterator[_Value]:
    """Give the options of argparse parsers that take a value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) != "add_argument":
            continue
        names = [str(it.value) for it in node.args if isinstance(it, ast.Constant)]
        long = next((it for it in names if it.startswith("--")), next(iter(names), ""))
        said = {word.arg: word.value for word in node.keywords}
        if not long.startswith("-") or "action" in said:
            continue
        choices = _constant(said["choices"]) if "choices" in said else ()
        yield _Value(
            long.lstrip("-").replace("-", "_"),
            node.lineno,
            _constant(said["default"]) if "default" in said else _UNKNOWN,
            tuple(choices) if isinstance(choices, list | tuple) else (),
            long,
        )


# ---- guesses -------------------------------------------------------------------------------


def _metric(tree: ast.Module) -> tuple[str, str]:
    """Return the metric that a script reports, and where; of validation before others."""
    found = list(_metrics(tree))
    if not found:
        return "", f"{GAP}: the name of a number that it reports, and max if more is better"
    name, line = min(found, key=lambda it: _rank(it[0].lower()))
    return name, f"line {line}: a reported number; is it the right one?"


def _metrics(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Give what a script reports, logs or computes for a trainer, and where."""
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    for call in _reports(tree):
        named = [word.value for word in call.keywords if word.arg == "metrics"]
        for given in [*call.args[:1], *named]:
            for found in _dicts(given, tree, functions):
                yield from ((name, call.lineno) for name in _names(found))
    for node in ast.walk(tree):  # Lightning's
        if isinstance(node, ast.Call) and _called(node) == "log" and node.args:
            name = _constant(node.args[0])
            if isinstance(name, str):
                yield name, node.lineno
    if "transformers" in _imported(tree):
        computed = functions.get("compute_metrics")
        for found in _returned(computed) if computed else ():
            yield from ((f"eval_{name}", found.lineno) for name in _names(found))
        yield "eval_loss", 1


def _names(node: ast.Dict) -> list[str]:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    return [key for key in keys if isinstance(key, str)]


def _rank(name: str) -> tuple[bool, bool, bool]:
    good = any(word in name for word in _MAXIMIZED)
    return not (good or "loss" in name), "train" in name, not good


def _dicts(
    node: ast.expr, tree: ast.Module, functions: Mapping[str, ast.FunctionDef]
) -> Iterator[ast.Dict]:
    """Give the dict that an expression is, that its variable is set to, or a function returns."""
    match node:
        case ast.Dict():
            yield node
        case ast.Name(id=name):
            for each in ast.walk(tree):
                if isinstance(each, ast.Assign) and not isinstance(each.value, ast.Name):
                    targets = [to.id for to in each.targets if isinstance(to, ast.Name)]
                    yield from _dicts(each.value, tree, functions) if name in targets else ()
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            yield from _returned(functions[name])


def _returned(function: ast.FunctionDef) -> list[ast.Dict]:
    returns = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return [value for value in returns if isinstance(value, ast.Dict)]


def _space(value: _Value) -> str:
    """Return a search space for a parameter, with the reason."""
    found = _kind(value)
    where = f"line {value.line}"
    known = "" if value.default is _UNKNOWN else f", {value.default} there"
    if found is not None:
        return f"{found}  # {where}{known}; a guess by its name"
    if value.default is not _UNKNOWN and isinstance(value.default, bool | int | float | str):
        return f"{{choice: [{_yaml(value.default)}]}}  # {where}: the value there; add others"
    return f"{{choice: []}}  # {GAP}: {where}"


def _kind(value: _Value) -> str | None:
    """Return the space that is usual for a parameter of such a name; None where none is."""
    name = value.name.lower().rpartition("/")[2]
    given = value.default
    plain = isinstance(given, int | float) and not isinstance(given, bool)
    number = float(given) if plain and 0 < given < _MOST else None
    if value.choices:
        return _choice(value.choices) if name in _CHOSEN else None
    for is_it, space in _USUAL:
        if is_it(name):
            return space(number)
    return None


def _around(number: float) -> str:
    return f"{{loguniform: [{number / 10:.3g}, {number * 10:.3g}]}}"


def _doublings(number: float) -> list[int]:
    whole = max(1, int(number))
    return sorted({max(1, whole // 2), whole, 2 * whole})


def _choice(values: Iterable[Any]) -> str:
    return f"{{choice: [{', '.join(map(_yaml, values))}]}}"


def _near(number: float | None) -> str:
    middle = int(number or 2)
    return _choice(sorted({max(1, middle - 1), middle, middle + 1}))


_USUAL: Final[tuple[_Usual, ...]] = (
    (lambda it: it in _RATES, lambda given: _around(given or 0.01)),
    (lambda it: it in _DECAYS, lambda given: _around(given or 1e-4)),
    (lambda it: it in {"momentum", "beta1"}, lambda _: "{uniform: [0.8, 0.99]}"),
    (lambda it: it == "gamma", lambda _: "{uniform: [0.5, 0.99]}"),
    (lambda it: "dropout" in it or it.startswith("drop_"), lambda _: "{uniform: [0, 0.5]}"),
    (lambda it: "smoothing" in it, lambda _: "{uniform: [0, 0.2]}"),
    (lambda it: it in _BATCHES, lambda given: _choice(_doublings(given or 64))),
    (
        lambda it: any(word in it.split("_") for word in _SIZES),
        lambda given: _choice(_doublings(given or 64)),
    ),
    (lambda it: "layers" in it or it in {"depth", "n_layer"}, _near),
)
"""What is usual, by name: of the first that fits, for a default (None where none is known)."""


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f"{value!r}"


def _span(epochs: _Value | None) -> tuple[int, int]:
    default = epochs.default if epochs is not None else 0
    last = default if isinstance(default, int) and default > 0 else 16
    return max(1, last // 8), last


def _to_be_read() -> list[str]:
    return [
        f"reports: {{file: }}  # {GAP}: where it writes its numbers, a file of JSON lines;",
        "# or what it prints, {printed: 'accuracy (?P<accuracy>[0-9.]+)'}; or let it call",
        "# cloudtune.report({…}) once an epoch, and leave this out (docs/commands.md)",
    ]

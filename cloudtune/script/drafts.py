"""A first experiment for a script, as `cloudtune init` writes it: read from its text, never run.

Each value is either read (the function, its parameters, an option's default) or a guess by common
names; each line says which, with the line of the script.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from cloudtune.errors import ExperimentError, UsageError
from cloudtune.model.text import counted
from cloudtune.script.functions import parse_file
from cloudtune.script.options import UNKNOWN, Option, called, literal, options_in
from cloudtune.script.printed_lines import EXAMPLE
from cloudtune.script.prints import Printed, printed_in

_Usual: TypeAlias = tuple[Callable[[str], bool], Callable[[float | None], str]]

# Stands for a value that couldn't be guessed.
GAP: Final = "FILL IN"
_MAX_DEFAULT: Final = 1e15
_BATCHES: Final = ("batch_size", "batchsize", "bs", "train_batch_size")
_EPOCHS: Final = ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "nepochs")
_RATES: Final = ("lr", "learning_rate", "base_lr", "max_lr", "alpha")
_DECAYS: Final = ("weight_decay", "wd", "l2", "l2_reg")
_SIZES: Final = ("hidden", "width", "dim", "channels", "units", "embd", "features", "heads")
_CHOSEN: Final = frozenset({"optimizer", "opt", "optim", "activation", "scheduler", "schedule"})
_LIBRARIES: Final = frozenset(
    {"cloudtune", "ray", "lightning", "pytorch_lightning", "transformers"}
)
_MAXIMIZED: Final = (
    *("acc", "auc", "f1", "bleu", "rouge", "iou", "map", "precision", "recall", "r2"),
    *("psnr", "ssim", "dice", "ndcg", "mrr", "reward"),
)
_MINIMIZED: Final = (
    *("loss", "mse", "mae", "rmse", "mape", "err", "ppl", "perplexity", "wer", "cer", "fid"),
)
_HELD_OUT: Final = ("val", "dev", "test")  # the first are for model selection
_SAVES: Final = ("ckpt_dir", "checkpoint_dir", "save_dir", "output_dir", "out_dir", "outdir")
_RESUMES: Final = ("resume", "resume_from", "checkpoint", "ckpt", "load")
_TRAINERS: Final = ("train", "main", "train_func", "training_function", "objective", "trainable")


@dataclass(frozen=True)
class Gap:
    """Something that the script doesn't show: `what` ("lr", "metric", "epochs" or "reports")."""

    what: str
    question: str


@dataclass
class Draft:
    """A first experiment for a script: what its text shows, what was given, and the gaps.

    `search` has spaces as YAML by parameter, which replace guessed ones. `mode` is guessed from the
    metric's name until it is given. `reads_reports` is False if the script calls no `report`, so
    that its metrics must be read from a file or from its output. `notes` are comments on its
    checkpoints.
    """

    script: Path
    train: str
    train_why: str
    metric: str
    metric_why: str
    tuned: list[Option]
    epochs: Option | None = None
    reads_reports: bool = True
    search: dict[str, str] = field(default_factory=dict)
    mode: str = ""
    last_epoch: int | None = None
    prints: tuple[Printed, ...] = ()
    notes: tuple[str, ...] = ()
    printed: str = ""

    def __post_init__(self) -> None:
        self._read_printed()

    def gaps(self, *, guesses: bool = True) -> list[Gap]:
        """Return what is missing; without `guesses`, also the last epoch if it is a guess."""
        gaps = [
            Gap(value.name, f"a space for {value.name} (line {value.line})")
            for value in self.tuned
            if value.name not in self.search and GAP in _space(value)
        ]
        if not self.tuned and not self.search:
            gaps.append(Gap("search", "a parameter to search"))
        if not self.metric:
            gaps.append(Gap("metric", "the reported number that decides"))
        if not self.reads_reports and not self.printed:
            gaps.append(Gap("reports", "the numbers that it prints or writes"))
        if not guesses and self.last_epoch is None and self.epochs is None:
            gaps.append(Gap("epochs", "the epochs of a full training"))
        return gaps

    def give_metric(self, name: str, mode: str) -> None:
        """Use this metric; an empty mode is guessed from the name."""
        self.metric = name
        self.metric_why = "given"
        self.mode = mode
        self._read_printed()

    def _read_printed(self) -> None:
        named = (it.pattern for it in self.prints if it.name == self.metric)
        self.printed = next(named, "")

    def body(self) -> list[str]:
        """Return the lines about the tuning: train, metric, reports, search and epochs."""
        mode = self.mode or ("max" if _is_maximized(self.metric.lower()) else "min")
        lines = [
            f"train: {self.train}  # {self.train_why}",
            f"metric: {{name: {self.metric}, mode: {mode}}}  # {self.metric_why}",
        ]
        if self.printed:
            quoted = self.printed.replace("'", "''")
            lines.append(f"reports: {{printed: '{quoted}'}}")
        elif not self.reads_reports:
            lines += _REPORTS
        lines += self.notes
        guessed = (value for value in self.tuned if value.name not in self.search)
        spaces = {value.name: _space(value) for value in guessed} | self.search
        lines.append("search:" if spaces else f"search: {{}}  # {GAP}: no parameter was found")
        lines += [f"  {name}: {space}" for name, space in spaces.items()]
        if self.last_epoch is not None:
            return [*lines, f"epochs: {{max: {self.last_epoch}}}"]
        default = self.epochs.default if self.epochs is not None else 0
        last = default if isinstance(default, int) and default > 0 else 16
        source = f"line {self.epochs.line}" if self.epochs else "a guess"
        span = f"epochs: {{min: {max(1, last // 8)}, max: {last}}}"
        return [*lines, f"{span}  # {source}; compared from min on"]

    def text(self, name: str) -> str:
        body = self.body()
        count = sum(GAP in line for line in body)
        head = (
            f"# {counted(count, 'gap')}, marked {GAP}: until then `cloudtune plan` refuses it."
            if count
            else "# Ranges are guesses from the parameters' names: check them."
        )
        first = f"# An experiment for {self.script.name}, written by cloudtune."
        return "\n".join([first, head, "", f"name: {name}", *body, *_AFTER])


_REPORTS: Final = (
    f"reports: {{file: }}  # {GAP}: where it writes its numbers, a file of JSON lines;",
    f"# or what it prints, {{printed: '{EXAMPLE}'}}; or let it call",
    "# cloudtune.report({…}) once an epoch, and leave this out (docs/commands.md)",
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
    "  # instances: [g5.*]  # without it any type that the limits buy most on",
    "",
)


def read_script(script: Path) -> Draft:
    """Return the draft of an experiment from a script's text.

    Raises:
        UsageError: there is no such file, it isn't Python, or nothing in it trains.
    """
    if not script.is_file():
        raise UsageError(f"{script}: no such file")
    try:
        tree = parse_file(script)
    except ExperimentError as error:
        raise UsageError(str(error)) from None
    function = _function(tree)
    metric, why = _metric(tree)
    options = [option for option in options_in(tree) if option.takes_value]
    usual = [value for value in options if _kind(value) is not None]
    if function is not None:
        config = function.args.args[0].arg
        tuned = [value for value in _keys(tree, config) if value.name.lower() not in _EPOCHS]
        return Draft(
            script=script,
            train=f"{script.name}:{function.name}",
            train_why=f"line {function.lineno}: it takes {config}",
            metric=metric,
            metric_why=why,
            tuned=tuned or usual,  # argparse.Namespace(**config)
        )
    if not options:
        raise UsageError(
            f"{script}: nothing to tune: no function that takes a configuration and calls "
            "cloudtune.report({…}), and no options of argparse, click or absl; write "
            "def train(config), docs/scripts.md. A program that reads its settings from a file can "
            f"be tuned as train: python {script.name} {{config}}, docs/commands.md"
        )
    epochs = next((value for value in options if value.name.lower() in _EPOCHS), None)
    words = [f"{value.flag} {{{value.name}}}" for value in usual]
    words += [f"{epochs.flag} {{epochs}}"] if epochs else []
    words += [f"{value.flag} {{seed}}" for value in options if value.name == "seed"]
    prints = () if metric else tuple(_measures(tree))
    if prints:
        metric = prints[0].name
        others = ", ".join(dict.fromkeys(it.name for it in prints if it.name != metric))
        why = f"line {prints[0].line} prints it{others and f', others: {others}'}; the right one?"
    return Draft(
        script=script,
        train=" ".join([f"python {script.name}", *words]),
        train_why="options that are called as what one tunes; others keep theirs",
        metric=metric,
        metric_why=why,
        tuned=usual,
        epochs=epochs,
        reads_reports=bool(metric) and not prints,
        prints=prints,
        notes=(*_notes(options), *_bools(options)),
    )


def _measures(tree: ast.Module) -> list[Printed]:
    """Return the metrics that are printed once per epoch, as far as the text shows.

    Names that another line also prints, or ends with, are left out: they would be ambiguous.
    """
    prints = list(printed_in(tree))
    measures = []
    for printed in prints:
        others = (it.name for it in prints if it.line != printed.line)
        unique = not any(f"_{other}".endswith(f"_{printed.name}") for other in others)
        if unique and printed.loops < 2 and _is_metric(printed.name):
            measures.append(printed)
    return sorted(measures, key=lambda it: (_rank(it.name), it.loops, it.line))


def _notes(options: Sequence[Option]) -> Iterator[str]:
    """Yield what to write if a program saves and loads checkpoints."""
    saves = next((it for it in options if it.name in _SAVES and isinstance(it.default, str)), None)
    resumes = next((it for it in options if it.name in _RESUMES), None)
    if saves is None and resumes is None:
        return
    folder = scalar(saves.default) if saves is not None and saves.default else "…"
    flag = "an option that loads them" if resumes is None else resumes.flag
    yield f"# checkpoints: {{folder: {folder}}}  # where it saves; then trials can pause and move,"
    yield f"#   with `{flag} {{resume}}/FILE` in train (docs/commands.md)"


def _bools(options: Sequence[Option]) -> Iterator[str]:
    """Yield a line for each option that can't be turned off by a text."""
    for option in options:
        if option.makes_bool:
            yield f"# line {option.line}: {option.flag} has type=bool: any text is True there;"
            yield (
                "#   to tune it, write action=argparse.BooleanOptionalAction there, and "
                f"{{{option.name}:{option.flag}}} in train"
            )


def _function(tree: ast.Module) -> ast.FunctionDef | None:
    """Return the function that trains: it takes a configuration, and it or the file reports."""
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and len(node.args.args) == 1
    ]
    own = [node for node in functions if _calls_of("report", node)]
    if not own and (_calls_of("report", tree) or _LIBRARIES & _imported(tree)):
        own = [node for node in functions if list(_keys(node, node.args.args[0].arg))]
    return min(
        own,
        key=lambda it: _TRAINERS.index(it.name) if it.name in _TRAINERS else len(_TRAINERS),
        default=None,
    )


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _calls_of(function: str, tree: ast.AST) -> list[ast.Call]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if called(call) == function]


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
    name, line = min(metrics, key=lambda it: _rank(it[0].lower()))
    return name, f"line {line}: a reported number; is it the right one?"


def _metrics(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the metrics that a script reports, logs or computes for a trainer, and where."""
    for call in _calls_of("report", tree):
        named = [word.value for word in call.keywords if word.arg == "metrics"]
        for argument in [*call.args[:1], *named]:
            yield from ((name, call.lineno) for name in _names(argument, tree))
    for call in _calls_of("log", tree):  # Lightning's
        name = literal(call.args[0]) if call.args else None
        if isinstance(name, str):
            yield name, call.lineno
    if "transformers" in _imported(tree):
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
        bodies = [ast.walk(it) for it in functions if it.name == called(node)]
        values = [it.value for body in bodies for it in body if isinstance(it, ast.Return)]
        values = [value for value in values if isinstance(value, ast.Dict)]
    for value in values:
        if isinstance(value, ast.Dict | ast.Call):
            yield from _names(value, tree)


def _rank(name: str) -> tuple[object, ...]:
    held_out = next((place for place, word in enumerate(_HELD_OUT) if word in name), 9)
    return not _is_metric(name), "train" in name, held_out, not _is_maximized(name)


def _is_metric(name: str) -> bool:
    return any(word in name for word in (*_MAXIMIZED, *_MINIMIZED))


def _is_maximized(name: str) -> bool:
    good = any(word in name for word in _MAXIMIZED)
    return good and not any(word in name for word in _MINIMIZED)


def _space(value: Option) -> str:
    """Return a search space for a parameter, with the reason."""
    space = _kind(value)
    where = f"line {value.line}"
    default = "" if value.default is UNKNOWN else f", {value.default} there"
    if space is not None:
        return f"{space}  # {where}{default}; a guess by its name"
    if value.default is not UNKNOWN and isinstance(value.default, bool | int | float | str):
        return f"{{choice: [{scalar(value.default)}]}}  # {where}: the value there; add others"
    return f"{{choice: []}}  # {GAP}: {where}"


def _kind(value: Option) -> str | None:
    """Return the usual space for a parameter of that name; None if there is none."""
    name = value.name.lower().rpartition("/")[2]
    default = value.default
    plain = isinstance(default, int | float) and not isinstance(default, bool)
    number = float(default) if plain and 0 < default < _MAX_DEFAULT else None
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
    return f"{{choice: [{', '.join(map(scalar, values))}]}}"


def _near(number: float | None) -> str:
    middle = int(number or 2)
    return _choice(sorted({max(1, middle - 1), middle, middle + 1}))


# The usual spaces by name: the first match counts, for a default (None if unknown).
_USUAL: Final[tuple[_Usual, ...]] = (
    (lambda it: it in _RATES, lambda default: _around(default or 0.01)),
    (lambda it: it in _DECAYS, lambda default: _around(default or 1e-4)),
    (lambda it: it in {"momentum", "beta1"}, lambda _: "{uniform: [0.8, 0.99]}"),
    (lambda it: it == "gamma", lambda _: "{uniform: [0.5, 0.99]}"),
    (lambda it: "dropout" in it or it.startswith("drop_"), lambda _: "{uniform: [0, 0.5]}"),
    (lambda it: "smoothing" in it, lambda _: "{uniform: [0, 0.2]}"),
    (lambda it: it in _BATCHES, lambda default: _choice(_doublings(default or 64))),
    (
        lambda it: any(word in it.split("_") for word in _SIZES),
        lambda default: _choice(_doublings(default or 64)),
    ),
    (lambda it: "layers" in it or it in {"depth", "n_layer"}, _near),
)


def scalar(value: object) -> str:
    """Return a value as YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f"{value!r}"

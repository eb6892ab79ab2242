"""Create an experiment file from a script, the given options, and answers."""

import ast
import contextlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from cloudtune.errors import ExperimentError, UsageError, quote
from cloudtune.experiment.spaces import parse_parameter
from cloudtune.private_files import for_others
from cloudtune.script.drafts import Draft, Gap, Shown, nothing_to_tune, program_draft, usual_options
from cloudtune.script.functions import mentions
from cloudtune.script.guesses import EPOCHS, SAVES, scalar, usual_space
from cloudtune.script.invocation import Invocation, call_folder
from cloudtune.script.options import UNKNOWN, Option
from cloudtune.script.training_functions import read_function, reported_metric
from cloudtune.train.programs.whole_saves import MODEL_SUFFIXES

_PARAMETER = re.compile(r"\s*([A-Za-z_][\w./-]*)\s*=\s*(.+)", re.DOTALL)


def is_script(path: Path) -> bool:
    """Whether a path is a training script, rather than an experiment or a plan."""
    return path.suffix == ".py"


def parse_search(search: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return parameters by name from texts such as "lr=loguniform(1e-4, 1)" or "batch_size=64".

    The kinds are those of an experiment file; a plain value is a constant. A mapping, with spaces
    as in an experiment file, is returned as it is.

    Raises:
        UsageError: a text isn't NAME=SPACE, or the space is unknown.
    """
    if isinstance(search, Mapping):
        return dict(search)
    return dict(_parameter(text) for text in search)


def _parameter(text: str) -> tuple[str, Any]:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--search {quote(text)}: write NAME=SPACE, as in 'lr=loguniform(1e-4, 1)' or "
            "'batch_size=choice(32, 64)'"
        )
    name = match[1]
    written = match[2].strip()
    space = _space(name, written)
    try:
        parse_parameter(space)
    except ExperimentError as error:
        raise UsageError(f"--search {name}: {error}") from None
    return name, space


def _space(name: str, written: str) -> Any:
    try:
        node = ast.parse(written, mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            values = [ast.literal_eval(value) for value in node.args]
            if len(values) == 1 and isinstance(values[0], list | tuple):
                values = [*values[0]]  # choice([32, 64])
            return {node.func.id: values}
        return ast.literal_eval(node)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UsageError(
            f"--search {name}: invalid space {quote(written)}; write one such as loguniform(1e-4, "
            "1), uniform(0, 0.5), randint(1, 8), choice('adam', 'sgd') or a constant"
        ) from None


def parse_metric(text: str) -> tuple[str, str]:
    """Return name and mode of a metric such as "val_loss:min"; the mode is "" if left out.

    Raises:
        UsageError: the mode is neither min nor max.
    """
    name, _, mode = text.rpartition(":")
    if mode in {"min", "max"} and name:
        return name, mode
    if name:
        raise UsageError(f"--metric {quote(text)}: write NAME:max or NAME:min")
    return text, ""


# Names in a folder's files that train on several GPUs.
_PARALLEL = (
    *(b"distributed", b"accelerate", b"lightning", b"DataParallel", b"Trainer", b"deepspeed"),
)


def experiment_folder(script: Path) -> Path:
    """Return the folder of a script's experiment, whose files instances get.

    Raises:
        UsageError: there is no such script.
    """
    return call_folder(script) if read_function(script) is None else script.parent


def draft_script(script: Path, words: Sequence[str] = (), *, show: Callable[[str], None]) -> Draft:
    """Return the draft of a script's experiment: a function is read, a program asked and tried.

    `words` are those that the program is called with. `show` gets a line before it is tried.

    Raises:
        UsageError: there is no such script, nothing in it can be tuned, or it fails.
    """
    # Here alone: it imports Ray, which takes half a second, and a plan does without.
    from cloudtune.lifecycle.observation import ask_options, watch  # noqa: PLC0415

    function = read_function(script)
    if function is not None:
        if not function.tuned:  # argparse.Namespace(**config)
            with contextlib.suppress(UsageError):
                _, asked = ask_options(Invocation.usual(script))
                function.tuned = usual_options(asked)
        return function
    program, named = ask_options(Invocation.usual(script, words))
    options, kept = _apply(named, program.words)
    if not usual_options(options):
        raise nothing_to_tune(program, options)
    outputs = _outputs(options, kept)
    missing = [it for it in options if it.required and it.words(_own_place(it)) not in outputs]
    if missing:
        values = " ".join(map(_example, missing))
        flags = ", ".join(option.flag for option in missing)
        raise UsageError(f"{script} needs {flags}; write: cloudtune init {script} -- {values}")
    fixed = [shlex.quote(word).replace("{", "{{").replace("}", "}}") for word in kept] + outputs
    metric, place = reported_metric(script)
    if metric:
        draft = program_draft(program, fixed, options, Shown(), alone=False)
        draft.give_metric(metric, "")
        draft.metric_why = place
        draft.reads_reports = True
        return draft
    show(f"Trying {script.name} for up to a minute, to see what it reports …")
    epochs = next((it.default for it in options if it.last_name in EPOCHS), None)
    last = int(epochs) if isinstance(epochs, int | float) and epochs >= 1 else None
    given = shlex.split(" ".join(outputs))
    folders = [
        it.default for it in options if it.last_name in SAVES and isinstance(it.default, str)
    ]
    shown = watch(replace(program, words=(*program.words, *given)), last, folders)
    parallel = any(mentions(program.folder, name) for name in _PARALLEL)
    return program_draft(program, fixed, options, shown, alone=not parallel)


def _example(option: Option) -> str:
    """Return an option's words with its default, where it must be given all the same."""
    if option.default is UNKNOWN:
        return option.words("VALUE")
    return option.words(shlex.quote(str(option.default)))


def _apply(options: Sequence[Option], words: Sequence[str]) -> tuple[list[Option], list[str]]:
    """Return options with the values that some words give, and the words of all others.

    Those that the experiment will fill are taken out of the words: their values are defaults.
    """
    values: dict[int, str] = {}
    kept: list[str] = []
    waiting = list(words)
    positionals = [n for n, it in enumerate(options) if not it.flag.startswith("-")]
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        index = next((n for n, it in enumerate(options) if name in it.names), None)
        taken = [word]
        if index is None and not word.startswith("-") and positionals:
            index = positionals.pop(0)
            value = word
        elif index is not None and options[index].takes_value and not equals and waiting:
            value = waiting.pop(0)
            taken.append(value)
        if index is not None:
            values[index] = value
        if index is None or not _has_value(options[index]):
            kept += taken
    applied = [
        replace(it, default=_number(values[n]), required=False) if n in values else it
        for n, it in enumerate(options)
    ]
    return applied, kept


def _has_value(option: Option) -> bool:
    """Whether an experiment fills an option in, whatever the program shows."""
    return usual_space(option) is not None or option.last_name == "seed"


def _number(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _outputs(options: Sequence[Option], words: Sequence[str]) -> list[str]:
    """Return words for a place of a trial's own where a program would write elsewhere, or fail."""
    outputs = []
    for option in options:
        is_given = any(word.partition("=")[0] in option.names for word in words)
        elsewhere = isinstance(option.default, str) and option.default.startswith(("/", "~"))
        if option.last_name in SAVES and not is_given and (elsewhere or option.required):
            outputs.append(option.words(_own_place(option)))
    return outputs


def _own_place(option: Option) -> str:
    """Return a folder beside the program; for a file, such as /tmp/best.pt, one of its name."""
    name = PurePosixPath(str(option.default)).name
    return shlex.quote(name) if PurePosixPath(name).suffix in MODEL_SUFFIXES else "out"


def experiment_beside(
    script: Path,
    given: Mapping[str, Any],
    *,
    ask: Callable[[Gap], str] | None,
    show: Callable[[str], None],
) -> Path:
    """Return the experiment file of a script, written beside it if it doesn't exist yet.

    `given` has the options `search`, `metric` and `epochs`. `ask` fills gaps; it is None if there
    is no one to ask. `show` gets the lines of the new file.

    Raises:
        UsageError: something is missing, or the script has no training function; nothing was
            written.
    """
    path = experiment_folder(script) / f"{script.stem}.yaml"
    if path.exists():
        show(f"Using the existing experiment {path}; delete it to read {script.name} again.")
        return path
    draft = draft_script(script, show=show)
    for name, space in parse_search(given.get("search") or ()).items():
        draft.search[name] = _as_yaml(space)
    if given.get("metric"):
        draft.give_metric(*parse_metric(given["metric"]))
    draft.last_epoch = given.get("epochs")
    while gaps := draft.gaps(guesses=False):
        if ask is None:
            raise UsageError(_missing(script, gaps))
        try:
            _fill(draft, gaps[0], ask(gaps[0]))
        except UsageError as error:
            show(f"{error}")  # then ask again
    with for_others():
        path.write_text(draft.text(script.stem), encoding="utf-8")
    show(f"Wrote {path} for {script} (ranges are guesses; edit them there):")
    for line in draft.body():
        show(f"  {line}")
    return path


def _missing(script: Path, gaps: Sequence[Gap]) -> str:
    hints = {
        "metric": "--metric NAME:max",
        "epochs": "--epochs N",
        "search": "--search 'NAME=loguniform(1e-4, 1)'",
        "reports": f"cloudtune init {script}, and fill in `reports` (cloudtune docs commands)",
    }
    lines = []
    for gap in gaps:
        hint = hints.get(gap.what, f"--search '{gap.what}=choice(0, 1)', or another space")
        lines.append(f"  {gap.question}: {hint}")
    return "\n".join([f"{script} lacks information that a run needs; add:", *lines])


def _fill(draft: Draft, gap: Gap, answer: str) -> None:
    """Put an answer into a draft.

    Raises:
        UsageError: the answer is invalid.
    """
    if gap.what == "metric":
        draft.give_metric(*parse_metric(answer.strip()))
    elif gap.what == "epochs":
        if not answer.strip().isdecimal() or int(answer) < 1:
            raise UsageError(f"{quote(answer)} is not a number of epochs")
        draft.last_epoch = int(answer)
    elif gap.what == "reports":
        draft.reports = ("printed", answer)
    else:
        text = answer if gap.what == "search" else f"{gap.what}={answer}"
        for name, space in parse_search([text]).items():
            draft.search[name] = _as_yaml(space)


def _as_yaml(space: Any) -> str:
    if isinstance(space, dict):
        [(kind, values)] = space.items()
        return f"{{{kind}: [{', '.join(map(scalar, values))}]}}"
    return scalar(space)

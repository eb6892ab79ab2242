"""A program asked for its options, and watched in the first minute of one training."""

import contextlib
import fnmatch
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cloudtune.errors import UsageError
from cloudtune.infra.sent_files import copy_sent_files, left_out_hint
from cloudtune.lifecycle.dry_run import needs_gpu, script_error
from cloudtune.script import help_hook
from cloudtune.script.command_check import search_path
from cloudtune.script.drafts import Measure, Shown
from cloudtune.script.functions import imported_names, parse_file
from cloudtune.script.guesses import is_held_out, is_metric, rank
from cloudtune.script.invocation import Invocation
from cloudtune.script.labels import labelled_numbers
from cloudtune.script.options import Help, Option, read_configuration, read_help
from cloudtune.script.printed_tables import table_columns
from cloudtune.train.programs.metric_files import PATTERNS, MetricFiles
from cloudtune.train.programs.metric_parsers import Reading, Readings, count_bar_steps, find_step
from cloudtune.train.programs.output_lines import last_traceback
from cloudtune.train.programs.site_hooks import install_hook
from cloudtune.train.programs.whole_saves import MODEL_SUFFIXES

# Seconds in which a program prints its help: importing torch takes some from a cold disk.
_HELP_SECONDS: Final = 90.0
# Seconds in which a program shows its metrics, and between two looks at them.
SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.25
_READ_SECONDS: Final = 5.0
# A program that reports for less is let end: its last numbers and models may come then.
_LET_END_SECONDS: Final = 15.0
# Epochs that begin so often are of folds of the data, of which the mean decides.
_FOLDS: Final = 3
# Reports of a held-out metric that are enough.
_ENOUGH: Final = 3
# More reports than this many an epoch are of parts of epochs.
_PER_EPOCH: Final = 1.5
# The bytes of output that are read, and the lines of it in an error.
_OUTPUT_BYTES: Final = 2**24
_LINES: Final = 12
_END_SECONDS: Final = 1.5
# As a worker: the first to be killed where memory is short.
_PROTECTED: Final = 'echo 1000 >/proc/self/oom_score_adj 2>/dev/null; exec "$@"'
_HYDRA: Final = re.compile(r"powered by hydra|== Config ==", re.IGNORECASE)
# Hydra has an exception of its own for it.
_NO_FILE: Final = re.compile(r"FileNotFoundError|MissingConfigException")
_MODULE: Final = re.compile(r"No module named '([\w.]+)")
_USAGE_ERROR: Final = re.compile(r"^\S+: error: .+", re.MULTILINE)
_USAGE: Final = re.compile(r"usage:|missing (?:option|argument)|required", re.IGNORECASE)
# The commands of a command line that trains.
_TRAINS: Final = ("fit", "train", "main", "run")
# fire's help of a class: the commands are in the help of an object, after a dash.
_OF_CLASS: Final = re.compile(r"^SYNOPSIS\n\s+\S+ -$", re.MULTILINE)
_EPOCH_OF: Final = re.compile(r"\bepoch\b\W{0,4}\d+\s*(?:/|of)\s*(\d+)", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\d[\d_:T-]*\d|\d")
# Files of numbers by how soon and how exactly they are written; output stands at 1.
_SOURCES: Final = {".csv": 0, ".tsv": 0, ".jsonl": 0, ".json": 2, ".wandb": 4}
_PRINTED: Final = 1
_EVENTS: Final = 3


# A measure, whether it is late, and how exact its source is.
_Found: TypeAlias = tuple[Measure, bool, int]


def ask_options(program: Invocation) -> tuple[Invocation, tuple[Option, ...]]:
    """Return a program's options as its --help names them, and the program with its command.

    Of a command line with several commands, the one that trains.

    Raises:
        UsageError: it printed no help in time.
    """
    with _copy(program.folder) as folder:
        help_, text = _help(_without_options(program), folder)
        if _OF_CLASS.search(text):
            help_, text = _help(replace(program, words=("-",)), folder)
        if not help_.options or (help_.commands and program.words == ()):
            command = next((it for it in _TRAINS if it in help_.commands), None)
            if command is not None:
                program = replace(program, words=(command, *program.words))
                help_, text = _help(_without_options(program), folder)
        if _HYDRA.search(text):
            return program, tuple(_configuration(program, folder))
    return program, help_.options


def _without_options(program: Invocation) -> Invocation:
    """Return a program of fire's with its commands alone, and any other as it is.

    With options fire calls the function, and shows the help of what that returns.
    """
    if "fire" not in imported_names(parse_file(program.script)):
        return program
    commands = itertools.takewhile(lambda word: not word.startswith("-"), program.words)
    return replace(program, words=tuple(commands))


def _help(program: Invocation, folder: Path) -> tuple[Help, str]:
    """Return what a program says of its options, and the text of its help."""
    described = folder.parent / "options"
    described.unlink(missing_ok=True)
    variables = {
        **install_hook(help_hook, folder.parent / "site", {**os.environ, **program.variables}),
        help_hook.FILE: str(described),
        "COLUMNS": "300",
        "TERMINAL_WIDTH": "300",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
    }
    log = folder.parent / "help"
    process = _start(program, ["--help"], folder, log, variables)
    code = _wait(process, _HELP_SECONDS)
    text = _text(log)
    if code is None:
        asked = shlex.join([*program.command, "--help"])
        raise UsageError(f"{program.script}: no help within {_HELP_SECONDS:.0f} s of `{asked}`")
    facts = described.read_text(encoding="utf-8") if described.exists() else ""
    found = read_help(facts, text)
    if code and not found.options and not found.commands:
        raise UsageError(_failure(program, ["--help"], code, folder, log))
    return found, text


def _configuration(program: Invocation, folder: Path) -> Iterator[Option]:
    """Yield the settings of a program of hydra's."""
    log = folder.parent / "configuration"
    printed = folder.parent / "configuration.yaml"
    # Apart from the warnings that it prints as well.
    process = _start(program, ["--cfg", "job"], folder, log, program.variables, printed=printed)
    code = _wait(process, _HELP_SECONDS)
    with contextlib.suppress(YAMLError):
        configuration = YAML(typ="safe").load(_text(printed))
        if code == 0 and isinstance(configuration, Mapping):
            yield from read_configuration(configuration)
            return
    raise UsageError(_failure(program, ["--cfg", "job"], code, folder, log))


def watch(program: Invocation, last: int | None, folders: Sequence[str] = ()) -> Shown:
    """Train with a program's defaults for up to a minute, and return what it showed.

    `last` is its last epoch, if that is known; `folders` are those that its options name. It runs
    in a temporary copy of the files that instances get, on this machine's CPUs, and is ended with
    its children.

    Raises:
        UsageError: it failed; the message has its last lines.
    """
    with _copy(program.folder) as folder:
        log = folder.parent / "log"
        trial = _Trial(folder, log, last)
        variables = {**program.variables, "WANDB_MODE": "offline"}
        process = _start(program, [], folder, log, variables)
        try:
            trial.wait(process)
            code = process.poll()
        finally:
            _end(process)
        if code:
            raise UsageError(_failure(program, [], code, folder, log))
        measures = trial.measures(ended=code == 0)
        text = _text(log)
        saved = trial.list_models()
        return Shown(
            measures=tuple(measures),
            ended=code == 0,
            epochs=_last_epoch(text) or last,
            folder=_common_folder(saved, program.folder, folders),
            saved=saved[-1].as_posix() if saved else "",
        )


@contextlib.contextmanager
def _copy(source: Path) -> Iterator[Path]:
    """Give a temporary copy of a script's folder, as instances get it."""
    with tempfile.TemporaryDirectory(prefix="cloudtune-try-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve() / "code"
        folder.mkdir()
        copy_sent_files(source, folder)
        yield folder


def _start(
    program: Invocation,
    words: Sequence[str],
    folder: Path,
    log: Path,
    variables: Mapping[str, str],
    *,
    printed: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program; its output goes to `log`, or what isn't an error to `printed`."""
    command = [*program.command, *words]
    environment = {
        **os.environ,
        "PATH": search_path(),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "CUDA_VISIBLE_DEVICES": "",
        "MPLBACKEND": "Agg",
        **variables,
    }
    with log.open("wb") as file, (printed or log).open("ab") as output:
        return subprocess.Popen(
            ["/bin/sh", "-c", _PROTECTED, "sh", *command],
            cwd=folder,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=file if printed else subprocess.STDOUT,
        )


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code of a process; None if it didn't end in time. It is over then."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(log: Path) -> str:
    with log.open("rb") as file:
        return file.read(_OUTPUT_BYTES).decode(errors="replace")


def _failure(
    program: Invocation, words: Sequence[str], code: int | None, folder: Path, log: Path
) -> str:
    """Return how a program failed: the place in its own files, or its last lines."""
    source = program.folder
    text = _text(log).replace(str(folder), str(source)).rstrip()
    error, trace = last_traceback(text)
    usage = _USAGE_ERROR.search(text)
    if trace:
        what = script_error(error, trace, source)
    elif usage:
        what = usage[0]
    else:
        what = "\n".join(text.split("\n")[-_LINES:])
    command = shlex.join([*program.command, *words])
    return f"{what}\n`{command}` ended with code {code}{_hint(program, words, error, text)}"


def _hint(program: Invocation, words: Sequence[str], error: str, text: str) -> str:
    """Return what to do about a program's error, or ""."""
    if missing := _MODULE.search(error):
        return _missing_module(program, missing[1])
    if _NO_FILE.search(error):
        copied = f"; only files in {program.folder.resolve()} are copied"
        return left_out_hint(error, program.folder) or copied + _from_project(program)
    if needs_gpu(error):
        return "; it is tried without a GPU: give the option that has it train on a CPU"
    if _USAGE.search(text):
        return f"; give what it needs: cloudtune init {program.script} -- OPTIONS"
    if "--help" in words:
        return (
            "; if it takes no --help, write its experiment by hand, with train: python "
            f"{shlex.join(program.call)} --NAME={{NAME}} and what it prints: cloudtune docs "
            "commands"
        )
    return ""


def _missing_module(program: Invocation, name: str) -> str:
    for folder in program.folders_with(name.partition(".")[0]):
        return f"; {name} is in {folder}: {_init_command(folder, program)}"
    return f"; {name} isn't installed for {sys.executable}"


def _from_project(program: Invocation) -> str:
    """Return how to copy a project's other files, if a program is called from a part of it."""
    project = program.project
    if project is None or project == program.folder.resolve():
        return ""
    return f"; to copy those of {project}: {_init_command(project, program)}"


def _init_command(folder: Path, program: Invocation) -> str:
    return f"cd {folder}; cloudtune init {program.script.resolve().relative_to(folder)}"


class _Trial:
    """A program that trains in a folder: its output, and the files that it writes."""

    def __init__(self, folder: Path, log: Path, last: int | None) -> None:
        self._folder = folder
        self._log = log
        self._last = last
        self._before = {path for path in folder.rglob("*") if path.is_file()}
        self._sizes: dict[Path, list[int]] = defaultdict(list)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the program has ended, has shown enough, or its time is up."""
        began = time.monotonic()
        read = silent_until = began
        while process.poll() is None and time.monotonic() < began + SECONDS:
            time.sleep(_LOOK_SECONDS)
            self._note_sizes()
            if time.monotonic() > read + _READ_SECONDS:
                best = self.measures(ended=False)[:1]
                read = time.monotonic()
                if not best:
                    silent_until = read
                elif _is_enough(best[0]) and not self._ends_soon(best[0], read - silent_until):
                    return

    def _ends_soon(self, measure: Measure, elapsed: float) -> bool:
        """Whether it has reported its last epoch, or will soon, by the seconds since its first.

        One whose epochs begin again shows only at its end what it comes to.
        """
        if measure.rounds > 1:
            return True
        last = self._last or _last_epoch(_text(self._log))
        parts = 1.0 if last is None else last / len(set(measure.epochs))
        return last is not None and elapsed * max(1.0, parts) < _LET_END_SECONDS

    def _note_sizes(self) -> None:
        for path in self._number_files():
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size not in self._sizes[path][-1:]:
                    self._sizes[path].append(size)

    def _new_files(self) -> list[Path]:
        paths = sorted(path for path in self._folder.rglob("*") if path.is_file())
        return [path for path in paths if path not in self._before]

    def _number_files(self) -> list[Path]:
        return [path for path in self._new_files() if _has_numbers(path.name)]

    def list_models(self) -> list[PurePosixPath]:
        """Return the files that look like models, relative to the folder."""
        names = [PurePosixPath(path.relative_to(self._folder)) for path in self._new_files()]
        return [name for name in names if name.suffix in MODEL_SUFFIXES and not _is_data(name)]

    def measures(self, *, ended: bool) -> list[Measure]:
        """Return what it printed and wrote that may be its metric, the most likely first."""
        found = [*self._find_printed_metrics(), *self._written()]
        likely = [it for it in found if _is_likely(it[0], self._last, ended=ended)]
        folds = any(measure.rounds >= _FOLDS for measure, _, _ in likely)
        likely.sort(key=lambda it: _key(*it, ended=ended, folds=folds))
        names: dict[str, Measure] = {}
        for measure, _, _ in likely:
            names.setdefault(measure.name, measure)
        return list(names.values())

    def _find_printed_metrics(self) -> Iterator[_Found]:
        text = _text(self._log)
        for name, pattern, _ in (*labelled_numbers(text), *table_columns(text)):
            bar_steps = count_bar_steps(text, pattern)
            last = self._last or bar_steps or 0
            readings = Readings(self._log, name, pattern, last=last, start=0)
            reports = list(readings.more(ended=True))
            measure = _measure(name, ("printed", pattern), "its output", reports)
            yield replace(measure, bar_steps=bar_steps), False, _PRINTED

    def _written(self) -> Iterator[_Found]:
        patterns = defaultdict(list)
        for path in self._number_files():
            patterns[_pattern(PurePosixPath(path.relative_to(self._folder)))].append(path)
        for pattern, paths in patterns.items():
            changes = max(len(self._sizes.get(path, ())) for path in paths)
            order = min(_SOURCES.get(path.suffix, _EVENTS) for path in paths)
            for name, rows in _columns(self._folder, pattern).items():
                measure = _measure(name, ("file", pattern), pattern, rows)
                yield measure, changes < min(2, len(rows)), order


def _last_epoch(text: str) -> int | None:
    """Return the last epoch, where lines of a text say "epoch 1 of 10"; None if they differ."""
    named = {int(number) for number in _EPOCH_OF.findall(text)}
    return named.pop() if len(named) == 1 else None


def _is_enough(measure: Measure) -> bool:
    """Whether enough reports of a held-out metric have come."""
    epochs = {epoch for epoch in measure.epochs if epoch is not None}
    return is_held_out(measure.name) and len(epochs) >= _ENOUGH


def _columns(folder: Path, pattern: str) -> dict[str, list[Reading]]:
    """Return the reports that a run would read in files, by the metric."""
    with contextlib.suppress(UsageError):
        probe = MetricFiles(folder, pattern, "", restored=False)
        list(probe.more(ended=True))
        names = [name for name in probe.seen if is_metric(name)]
        return {
            name: list(MetricFiles(folder, pattern, name, restored=False).more(ended=True))
            for name in names
        }
    return {}


def _measure(
    name: str, reports: tuple[str, str], source: str, readings: Sequence[Reading]
) -> Measure:
    return Measure(
        name=name,
        reports=reports,
        source=source,
        values=tuple(reading.metrics[name] for reading in readings),
        epochs=tuple(reading.epoch for reading in readings),
        steps=tuple(find_step(reading.metrics) for reading in readings),
        parts=tuple(reading.part for reading in readings),
    )


def _is_likely(measure: Measure, last: int | None, *, ended: bool) -> bool:
    """Whether a number may be a metric: none of each batch, and none that only counts."""
    if not is_metric(measure.name) or not measure.values:
        return False
    named = [epoch for epoch in measure.epochs if epoch is not None]
    if len(named) > _ENOUGH * len(set(named)) and not is_held_out(measure.name):
        return False  # several of each epoch, as of batches
    steps = not named and last is not None and ended
    return not (steps and len(measure.values) > _PER_EPOCH * (last or 0))


def _key(
    measure: Measure, late: bool, order: int, *, ended: bool, folds: bool
) -> tuple[object, ...]:
    name = rank(measure.name)
    count = len(measure.values)
    constant = count > 1 and len(set(measure.values)) == 1
    once = count == 1 and ended
    # The reports of one fold say less than their mean, which is printed once.
    late_or_fold = once != folds
    per_epoch = None not in measure.epochs
    data = (name.unknown, late_or_fold, name.trains, constant, name.held_out)
    rounded = -max(map(_places, measure.values))
    return *data, not per_epoch, late, name.single, name.minimized, order, rounded, -count


def _places(value: float) -> int:
    return len(f"{value}".partition(".")[2])


def _pattern(path: PurePosixPath) -> str:
    """Return a path as a pattern: numbers, dates and marks of a run differ from trial to trial."""
    name = path.name
    if "tfevents" in name:
        name = "*tfevents*"
    elif path.suffix == ".wandb":
        name = "*.wandb"
    else:
        name = _VARIABLE.sub("*", path.stem) + path.suffix
    parts = [_VARIABLE.sub("*", part) for part in path.parts[:-1]]
    parts = ["*" if "*" in part and "wandb" in path.parts else part for part in parts]
    return "/".join([*parts, name])


def _has_numbers(name: str) -> bool:
    """Whether a file's name says that it may have numbers to report."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in PATTERNS)


def _is_data(path: PurePosixPath) -> bool:
    return any(part.lower() in {"data", "datasets", "dataset", ".cache"} for part in path.parts)


def _common_folder(saved: Sequence[PurePosixPath], source: Path, named: Sequence[str] = ()) -> str:
    """Return the folder of a program's own that has what it saved; "" if there is none.

    A folder that an option has `named` is the same for all trials, whatever digits are in its name.
    """
    if not saved:
        return ""
    for name in map(PurePosixPath, named):
        if name.parts and all(path.is_relative_to(name) for path in saved):
            return name.as_posix()
    common: list[str] = []
    for parts in zip(*(path.parts[:-1] for path in saved), strict=False):
        if len(set(parts)) > 1 or _VARIABLE.search(parts[0]):
            break
        common.append(parts[0])
    folder = "/".join(common)
    is_new = bool(folder) and not any((source / folder).rglob("*.py"))
    return folder if is_new else ""

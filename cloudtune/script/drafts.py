"""A first experiment for a script, as `cloudtune init` writes it.

A function is read from its text. A program is asked: its help names its options, and what it prints
and writes in its first minute has the metrics. Ranges are guesses by names and defaults.
"""

import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final

from cloudtune.errors import UsageError
from cloudtune.model.text import count_noun
from cloudtune.script.constants import explain_constants, find_constants
from cloudtune.script.guesses import (
    EPOCHS,
    GAP,
    RESUMES,
    STEPS,
    is_fraction,
    is_maximized,
    space,
    usual_space,
)
from cloudtune.script.invocation import Invocation
from cloudtune.script.options import Option
from cloudtune.script.printed_lines import EXAMPLE
from cloudtune.script.settings_files import is_settings_file

# The number of other metrics in a comment.
_OTHERS: Final = 6
# How many options are searched whose names say nothing.
_MAX_FRACTIONS: Final = 3
_GUESSED_EPOCHS: Final = 16
# Texts that are YAML as they stand, also within braces where they have none.
_PLAIN: Final = re.compile(r"(?:[A-Za-z_.][\w ./:={}@#-]*)?")
_ALONE: Final = ("trial: {gpus: {max: 1}}  # nothing in its folder trains on several GPUs",)


@dataclass(frozen=True)
class Gap:
    """Something that the script doesn't show: `what` ("lr", "metric", "epochs" or "reports")."""

    what: str
    question: str


@dataclass(frozen=True)
class Measure:
    """A number that a script printed or wrote, by name; `reports` is how an experiment reads it.

    `values` are in the order in which they came, `epochs` and `steps` those that the script named,
    `parts` how much of its epoch was over. `source` is a file's name, or "its output". `bar_steps`:
    those of the progress bar that it is in, if that shows each.
    """

    name: str
    reports: tuple[str, str]
    source: str
    values: tuple[float, ...]
    epochs: tuple[float | None, ...]
    steps: tuple[float | None, ...] = ()
    parts: tuple[float | None, ...] = ()
    bar_steps: int | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.values[-1]:g})"

    @property
    def reports_each(self) -> int:
        """How many reports an epoch has, by what they say; 1 where that isn't known."""
        named = [epoch for epoch in self.epochs if epoch is not None]
        if not named or len(named) < len(self.epochs) or self.rounds > 1:
            return 1
        if all(self.parts):
            return _count_places(part for part in self.parts if part is not None)
        if any(epoch % 1 for epoch in named):
            return _count_places(named)
        counts = Counter(named)
        return counts[named[0]] if len(counts) > 1 else 1

    @property
    def rounds(self) -> int:
        """How often its epochs begin: again for each fold of the data, or phase of a training."""
        named = [epoch for epoch in self.epochs if epoch is not None]
        return 1 + sum(after < before for before, after in itertools.pairwise(named))


def _count_places(places: Iterable[float]) -> int:
    """Return how many places there are in an epoch; 1 if their distances are no part of it."""
    return max(1, round(1 / _least_distance(places)))


def _least_distance(places: Iterable[float]) -> float:
    """Return the distance of the closest places, of which 0 is one; 1 if there are no others."""
    ordered = sorted({0.0, *places})
    return min([after - before for before, after in itertools.pairwise(ordered)], default=1.0)


@dataclass
class Draft:
    """A first experiment for a script: what it shows, what was given, and the gaps.

    `search` has spaces as YAML by parameter, which replace guessed ones. `mode` is guessed from the
    metric's name until it is given. `reads_reports` is False if the script calls no `report`, so
    that its metrics must be read from a file or from its output: `measures` are those that were
    seen, the most likely first. `notes` are lines on its checkpoints and GPUs. `every`: the epochs
    from report to report, or steps, as `unit` says, and `reports_each`: those of an epoch;
    `seen_epochs`: as many as it trains, by what it showed.
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
    measures: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = ()
    reports: tuple[str, str] | None = None
    every: int = 1
    reports_each: int = 1
    unit: str = "epoch"
    seen_epochs: int | None = None

    def __post_init__(self) -> None:
        self._find_reports()

    def gaps(self, *, guesses: bool = True) -> list[Gap]:
        """Return what is missing; without `guesses`, also the last epoch if it is a guess."""
        gaps = [
            Gap(value.name, f"a space for {value.name} ({_place(value)})")
            for value in self.tuned
            if value.name not in self.search and GAP in space(value)
        ]
        if not self.tuned and not self.search:
            gaps.append(Gap("search", "a parameter to search"))
        if not self.metric:
            gaps.append(Gap("metric", "the reported number that decides"))
        if not self.reads_reports and self.reports is None:
            gaps.append(Gap("reports", "the numbers that it prints or writes"))
        known = (self.last_epoch, self.epochs, self.seen_epochs)
        if not guesses and all(it is None for it in known):
            gaps.append(Gap("epochs", "the epochs of a full training"))
        return gaps

    def give_metric(self, name: str, mode: str) -> None:
        """Use this metric; an empty mode is guessed from the name."""
        self.metric = name
        self.metric_why = "given"
        self.mode = mode
        self._find_reports()

    def _find_reports(self) -> None:
        named = (it.reports for it in self.measures if it.name == self.metric)
        self.reports = next(named, None)

    def body(self) -> list[str]:
        """Return the lines about the tuning: train, metric, reports, search and epochs."""
        mode = self.mode or ("max" if is_maximized(self.metric) else "min")
        lines = [
            f"train: {_yaml(self.train)}{self.train_why and f'  # {self.train_why}'}",
            f"metric: {{name: {_yaml(self.metric)}, mode: {mode}}}  # {self.metric_why}",
        ]
        if self.reports is not None:
            kind, where = self.reports
            quoted = where.replace("'", "''")
            lines.append(f"reports: {{{kind}: '{quoted}'}}")
        elif not self.reads_reports:
            lines += _REPORTS
        lines += self.notes
        guessed = (value for value in self.tuned if value.name not in self.search)
        spaces = {value.name: space(value) for value in guessed} | self.search
        nothing = "" if spaces else f" {{}}  # {GAP}: no parameter was found"
        lines.append(f"search:{nothing}")
        lines += [f"  {name}: {space}" for name, space in spaces.items()]
        if self.unit == "step":
            lines.append(f"progress: {{unit: step, every: {self.every}}}  # compared so often")
        elif self.every > 1:
            lines.append(f"progress: {{every: {self.every}}}  # the epochs from report to report")
        elif self.reports_each > 1:
            part = f"1/{self.reports_each}"
            lines.append(f"progress: {{every: {part}}}  # the part from report to report")
        if self.last_epoch is not None:
            return [*lines, f"epochs: {{max: {self.last_epoch}}}"]
        last, source = self._guess_epochs()
        if self.reports_each > 1:
            return [*lines, f"epochs: {{max: {last}}}  # {source}; compared within epochs"]
        first = max(1, last // 8 // self.every) * self.every
        span = f"epochs: {{min: {min(first, last)}, max: {last}}}"
        return [*lines, f"{span}  # {source}; compared from min on"]

    def _guess_epochs(self) -> tuple[int, str]:
        """Return the last epoch, and where it comes from."""
        if self.seen_epochs is not None:
            return self.seen_epochs, "as many as it reports"
        default = self.epochs.default if self.epochs is not None else 0
        if self.epochs is not None and isinstance(default, int | float) and default >= 1:
            return max(1, int(default) // self.every) * self.every, _place(self.epochs)
        return _GUESSED_EPOCHS * self.every, "a guess"

    def text(self, name: str) -> str:
        body = self.body()
        count = sum(GAP in line for line in body)
        head = (
            f"# {count_noun(count, 'gap')}, marked {GAP}: until then `cloudtune plan` refuses it."
            if count
            else "# Ranges are guesses from the parameters' names: check them."
        )
        first = f"# An experiment for {self.script.name}, written by cloudtune."
        return "\n".join([first, head, "", f"name: {name}", *body, *_AFTER])


_REPORTS: Final = (
    f"reports: {{file: }}  # {GAP}: where it writes its numbers, a file of JSON lines;",
    f"# or what it prints, {{printed: '{EXAMPLE}'}}; or let it call",
    "# cloudtune.report({…}) once an epoch, and leave this out (cloudtune docs commands)",
)
_AFTER: Final = (
    "# trials: 16  # a cap; without it as many configurations as the limits allow",
    "",
    "# Limits are given here or on the command line, which overrides them:",
    "#   cloudtune run FILE --deadline 2h --budget '$40'",
    "# limits: {deadline: 2h, budget: $40}",
    "",
    "# cloud:",
    "#   provider: emulated  # EC2 emulated here, nothing is paid; local: this machine; aws",
    "#   instances: [g5.*]  # without it any type that the limits buy most on",
    "",
)


@dataclass(frozen=True)
class Shown:
    """What a program showed when it was tried: its metrics, the most likely first, and its files.

    `ended`: it trained to its end. `epochs` is the last one, where its lines say "epoch 1 of 10".
    `folder` has the files `saved`, relative to where it ran; "" if they are in no folder of their
    own.
    """

    measures: tuple[Measure, ...] = ()
    ended: bool = False
    epochs: int | None = None
    folder: str = ""
    saved: str = ""


def program_draft(
    program: Invocation,
    words: Sequence[str],
    options: Sequence[Option],
    shown: Shown,
    *,
    alone: bool,
) -> Draft:
    """Return the draft of a program that is called with these `words` besides its options.

    `alone`: nothing in its folder trains on several GPUs.
    """
    tuned = _with_parameters(usual_options(options))
    takes = [option for option in options if option.takes_value]
    epochs = next((option for option in takes if option.last_name in EPOCHS), None)
    steps = next((option for option in takes if option.last_name in STEPS), None)
    draft = Draft(
        script=program.script,
        train="",
        train_why="",
        metric="",
        metric_why=f"{GAP}: it showed none when it was tried; a number's name, and min or max",
        tuned=tuned,
        epochs=epochs,
        reads_reports=False,
        measures=shown.measures,
        notes=(
            *_notes(takes, shown),
            *_bools(options),
            *(_ALONE if alone else ()),
            *_variables(program),
        ),
    )
    if shown.measures:
        _decide(draft, shown, steps)
    filled = [option.words(f"{{{option.name}}}") for option in tuned]
    if draft.epochs is not None:
        words = _without(words, draft.epochs)
        filled.append(draft.epochs.words(f"{{{draft.unit}s}}"))
    filled += [it.words("{seed}") for it in takes if it.last_name == "seed"][:1]
    draft.train = " ".join(["python", *map(shlex.quote, program.call), *words, *filled])
    return draft


def _without(words: Sequence[str], option: Option) -> list[str]:
    """Return words without an option and its value."""
    kept: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not is_value and name not in option.names:
            kept.append(word)
        is_value = name in option.names and not equals and not is_value
    return kept


def usual_options(options: Sequence[Option]) -> list[Option]:
    """Return the options to search: those with usual names, or else a few fractions."""
    takes = [option for option in options if option.takes_value]
    tuned = [option for option in takes if usual_space(option) is not None]
    return tuned or [option for option in takes if is_fraction(option)][:_MAX_FRACTIONS]


def _variables(program: Invocation) -> Iterator[str]:
    for name, value in program.variables.items():
        modules = ", ".join(program.imports)
        why = (
            f"it imports {modules} from this folder" if modules else f"your {name}, in this folder"
        )
        yield f"env: {{{name}: {value}}}  # {why}"


def nothing_to_tune(program: Invocation, options: Sequence[Option]) -> UsageError:
    """Return the error of a program none of whose options could be searched."""
    if constants := find_constants(program.script):
        return UsageError(explain_constants(program.script, constants))
    takes = [option for option in options if option.takes_value]
    if _takes_pairs(takes):
        pairs = " ".join(["python", *program.call, "optim.lr {lr}"])
        return UsageError(
            f"{program.script}: nothing to tune: its --help doesn't name what {takes[-1].flag} may "
            f"have. Names and values that follow each other can be tuned as train: {pairs} "
            "(cloudtune docs commands)"
        )
    named = ", ".join(option.flag for option in takes[:_OTHERS])
    words = [*program.call, "{config}"]
    settings = (it for it in takes if is_settings_file(str(it.default)))
    if option := next(settings, None):
        words = [*program.call, option.words(f"{{config:{option.default}}}")]
    has = f"its options are {named}" if named else "its --help names no options with values"
    return UsageError(
        f"{program.script}: nothing to tune: no function that takes a configuration and calls "
        f"cloudtune.report({{…}}), and {has}; write def train(config) (cloudtune docs scripts). A "
        f"program that reads its settings from a file can be tuned as train: python "
        f"{' '.join(words)} (cloudtune docs commands)"
    )


def _takes_pairs(options: Sequence[Option]) -> bool:
    """Whether the last of a program's words may be names and values, as of yacs: opts LR 0.1."""
    return bool(options) and options[-1].flag in {"opts", "overrides"}


def _with_parameters(options: Sequence[Option]) -> list[Option]:
    """Return options with the names of their parameters: the last part of each, if it is unique."""
    last = Counter(option.last_name for option in options)
    named = []
    for option in options:
        name = option.last_name
        if last[name] > 1:
            name = re.sub(r"\W", "_", option.name.lower())
        named.append(replace(option, parameter=name))
    return named


def _decide(draft: Draft, shown: Shown, steps: Option | None) -> None:
    """Choose the metric among what a program showed, and read from it what an epoch is.

    `steps` is the option for its last step.
    """
    best = shown.measures[0]
    count = len(best.values)
    others = [f"{it}" for it in shown.measures[1 : 1 + _OTHERS] if it.name != best.name]
    draft.give_metric(best.name, "")
    last = f"{best.values[-1]:g} at last, of {count_noun(count, 'report')} in {best.source}"
    if best.rounds > 1:
        last += f", whose epochs begin {best.rounds} times"
    draft.metric_why = f"{last}; others: {', '.join(others)}" if others else last
    if draft.epochs is None and steps is not None and _counts_steps(best, steps):
        draft.epochs = steps
        draft.unit = "step"
        draft.every = _steps_between(best, int(steps.default))
        return
    draft.reports_each = best.reports_each
    count = max(1, count // draft.reports_each)
    shown_epochs = shown.epochs or best.bar_steps
    full = draft.epochs.default if draft.epochs is not None else shown_epochs
    full = int(full) if isinstance(full, int | float) and full >= 1 else None
    if full is not None and count == full + 1 and None in best.epochs:
        count = full  # a bar over epochs moves on after the last one, too
    if not shown.ended:
        seen = count if count > _GUESSED_EPOCHS else None
        draft.seen_epochs = (shown_epochs or seen) if draft.epochs is None else None
    elif count == 1 or best.rounds > 1:
        draft.epochs = None  # it reports at its end alone, or more than the option says
        draft.seen_epochs = count
    elif draft.reports_each > 1 and draft.epochs is not None:
        pass  # it trains as many as the option says
    elif None in best.epochs and full is not None and full % count == 0:
        draft.every = full // count
        draft.seen_epochs = full if draft.epochs is None else None
    elif None in best.epochs or draft.epochs is None:
        draft.epochs = None
        draft.seen_epochs = max(count, shown_epochs or 0)


def _steps_between(measure: Measure, last: int) -> int:
    """Return from how many to how many steps trials are compared: a multiple of its reports'."""
    guess = max(1, last // _GUESSED_EPOCHS)
    between = int(_least_distance(int(step) for step in measure.steps if step is not None))
    return math.ceil(guess / between) * between


def _counts_steps(measure: Measure, steps: Option) -> bool:
    """Whether a measure names the step of each report, up to the last one of an option."""
    named = [step for step in measure.steps if step is not None]
    last = steps.default
    is_number = isinstance(last, int | float) and not isinstance(last, bool)
    return bool(named) and len(named) == len(measure.steps) and is_number and last >= max(named)


def _notes(options: Sequence[Option], shown: Shown) -> Iterator[str]:
    """Yield what to write where a program saves checkpoints."""
    resumes = next((option for option in options if option.last_name in RESUMES), None)
    if not shown.saved:
        return
    folder = shown.folder or "."
    yield f"checkpoints: {{folder: {_yaml(folder)}, resumes: false}}  # {shown.saved}"
    if resumes is not None:
        words = resumes.words(_resume_placeholder(folder, shown.saved))
        yield f"# With `{words}` in train, and without resumes: false, trials can pause and move"


def _resume_placeholder(folder: str, saved: str) -> str:
    """Return the placeholder of a file that was saved in a folder, whatever its numbers are."""
    name = PurePosixPath(saved).relative_to(folder).as_posix()
    pattern = re.sub(r"\d+", "*", name)
    return f"{{resume}}/{name}" if pattern == name else f"{{resume:{pattern}}}"


def _bools(options: Sequence[Option]) -> Iterator[str]:
    """Yield a line for each option that can't be turned off by a text."""
    for option in options:
        if option.makes_bool:
            yield f"# {option.flag} has type=bool: any text is True there; to tune it, write"
            yield (
                f"#   action=argparse.BooleanOptionalAction there, and {{{option.name}:"
                f"{option.flag}}} in train"
            )


def _yaml(text: str) -> str:
    """Return a text as YAML, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and ": " not in text and " #" not in text:
        return text
    return "'" + text.replace("'", "''") + "'"


def _place(option: Option) -> str:
    return f"line {option.line}" if option.line else option.flag

"""One speed for each GPU, from published comparisons of pairs and from data sheets.

The logarithms x of the speeds solve log(ratio) = x_fast - x_slow for all rows of ratios.csv, by
least squares. A row's variance is

    spread^2 / programs + t^2

where t is how far sources differ beyond the programs that they chose: such that the weighted
squares of the residuals are as many as the degrees of freedom (Mandel and Paule, 1970). To these
speeds a line is fitted by specification (gpus.csv),

    x = a + b log sqrt(TFLOPS x GB/s)

whose error is that at GPUs that are left out of the fit, one after the other. Then the line counts
as one more row for each GPU, and all are solved again. So a GPU that nobody has compared is placed
by its data sheet alone, one that a single program compared by both, and one with many rows by them.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from statistics import fmean, pstdev

import numpy as np

from cloudtune.profiles.csv_table import rows

_BISECTIONS = 40
_SWEEPS = 200
# More than any two sources have differed by.
_MAX_BETWEEN = 2.0
# A GPU that fewer programs have compared is also compared by specification.
_ENOUGH = 10
# The name of the line by specification among GPUs.
_LINE = ""


@dataclass(frozen=True)
class Comparison:
    """A published row: how many times as fast one GPU trains as another.

    `ratio` is the median over `n` configurations of `programs` models, `spread` the standard
    deviation of its logarithm over them; None if there is only one. `precision` is fp16, fp32, or
    "" if it is mixed or not said.
    """

    slow: str
    fast: str
    ratio: float
    spread: float | None
    n: int
    programs: int
    precision: str
    date: str
    source: str


@dataclass(frozen=True)
class Specification:
    """What a data sheet says of a GPU: the logarithms of its TFLOPS and of its GB/s."""

    gpu: str
    flops: float
    bandwidth: float
    date: str

    @property
    def middle(self) -> float:
        """The logarithm of the geometric mean of both."""
        return (self.flops + self.bandwidth) / 2

    def distance(self, other: "Specification") -> float:
        """Return how far two GPUs are apart in both."""
        return math.hypot(self.flops - other.flops, self.bandwidth - other.bandwidth)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast the second GPU trains as the first.

    `spread` is how far it may be off for a single program, as a standard deviation of the
    logarithm. `n` is 0 if data sheets take part.
    """

    ratio: float
    spread: float
    n: int
    date: str
    source: str


@dataclass(frozen=True)
class GpuPair:
    """What is known of a pair: the variance of its ratio for one program, and the sources."""

    variance: float
    n: int
    programs: int
    date: str
    source: str


@dataclass(frozen=True)
class GpuSpeeds:
    """The speeds of GPUs on one scale.

    - `logs`: the logarithms of the speeds, against any unit.
    - `between_sources`: t of the module's formula.
    - `specification_error`: of the line, at GPUs that it wasn't fitted to.
    - `left_out`: that error of each GPU that was compared, with its sign.
    - `steps`: what is known of pairs, by one GPU and the other.
    """

    logs: Mapping[str, float]
    between_sources: float
    specification_error: float
    left_out: Mapping[str, float]
    steps: Mapping[str, Mapping[str, GpuPair]] = field(repr=False)

    def between(self, slow: str, fast: str) -> Ratio | None:
        """Return how many times as fast the second GPU is; None if one isn't known.

        The spread is that of the most certain chain of pairs.
        """
        if slow not in self.logs or fast not in self.logs:
            return None
        ratio = math.exp(self.logs[fast] - self.logs[slow])
        chains: list[tuple[float, tuple[str, ...]]] = [(0.0, (slow,))]
        done: set[str] = set()
        while chains:  # Dijkstra's: variances add up along a chain
            variance, chain = heapq.heappop(chains)
            last = chain[-1]
            if last == fast:
                return self._along(chain, ratio, math.sqrt(variance))
            if last in done:
                continue
            done.add(last)
            for gpu, step in self.steps[last].items():
                heapq.heappush(chains, (variance + step.variance, (*chain, gpu)))
        return None

    def _along(self, chain: Sequence[str], ratio: float, spread: float) -> Ratio:
        steps = [self.steps[one][other] for one, other in pairwise(chain)]
        over = f"over {', '.join(chain[1:-1])}: " if chain[1:-1] else ""
        return Ratio(
            ratio,
            spread,
            min((step.n for step in steps), default=0),
            min((step.date for step in steps), default=""),
            over + "; ".join(dict.fromkeys(step.source for step in steps)),
        )

    @cached_property
    def own_errors(self) -> Mapping[str, float]:
        """How far the speed of each GPU may be off on its own, as a deviation of the logarithm.

        The variance of a pair's ratio is about the sum of those of its two GPUs, by least squares
        of relative errors. So two GPUs that are each compared closely with a third are close, too.
        """
        gpus = list(self.logs)
        pairs = list(combinations(range(len(gpus)), 2))
        variances = [_spread_between(self, gpus[one], gpus[two]) ** 2 for one, two in pairs]
        matrix = np.zeros((len(gpus), len(gpus)))
        right = np.zeros(len(gpus))
        for (one, two), variance in zip(pairs, variances, strict=True):
            places = [one, two]
            matrix[np.ix_(places, places)] += 1 / variance**2
            right[places] += 1 / variance
        solved = np.zeros(len(gpus))
        for place in list(range(len(gpus))) * _SWEEPS:  # no variance is below 0
            others = matrix[place] @ solved - matrix[place, place] * solved[place]
            solved[place] = max(0.0, (right[place] - others) / matrix[place, place])
        return dict(zip(gpus, np.sqrt(solved).tolist(), strict=True))

    @property
    def spread_of_all(self) -> float:
        """How far the speeds of all GPUs differ, as a standard deviation of the logarithm."""
        return pstdev(self.logs.values())


def _spread_between(speeds: GpuSpeeds, slow: str, fast: str) -> float:
    """Return how far the ratio of two known GPUs may be off."""
    ratio = speeds.between(slow, fast)
    assert ratio is not None, f"{slow} and {fast} are both in the table"
    return ratio.spread


def published_comparisons() -> list[Comparison]:
    """Return the rows of ratios.csv."""
    return [
        Comparison(
            row["slow"],
            row["fast"],
            float(row["ratio"]),
            float(row["spread"]) if row["spread"] else None,
            int(row["n"]),
            int(row["programs"]),
            row["precision"],
            row["date"],
            row["source"],
        )
        for row in rows("ratios.csv")
    ]


def specifications() -> list[Specification]:
    """Return the rows of gpus.csv."""
    return [
        Specification(
            row["gpu"],
            math.log(float(row["tflops"])),
            math.log(float(row["gb_per_s"])),
            row["date"],
        )
        for row in rows("gpus.csv")
    ]


def solve(comparisons: Iterable[Comparison], specified: Iterable[Specification]) -> GpuSpeeds:
    """Return the speeds of all GPUs with a specification.

    Raises:
        KeyError: a GPU is compared, but not specified.
    """
    compared = list(comparisons)
    sheets = {one.gpu: one for one in specified}
    # A single program may be as unusual as those of the widest row.
    widest = max(row.spread for row in compared if row.spread is not None)
    known = [replace(row, spread=widest) if row.spread is None else row for row in compared]
    logs, between = _with_source_spread(known)
    line = _Line.fit(logs, sheets)
    left_out = {
        gpu: logs[gpu] - _Line.fit(_without(logs, gpu), sheets).at(sheets[gpu]) for gpu in logs
    }
    error = _root_mean_square(left_out.values())
    weighed = [_Row(r.slow, r.fast, math.log(r.ratio), _variance(r, between)) for r in known]
    weighed += [_Row(_LINE, gpu, line.at(sheet), error**2) for gpu, sheet in sheets.items()]
    solved, _ = _least_squares(weighed)
    steps = _compared_steps(known, solved)
    _add_specified_steps(steps, sheets, math.hypot(error, _root_mean_square(_spreads(known))))
    del solved[_LINE]
    return GpuSpeeds(solved, between, error, left_out, steps)


@dataclass(frozen=True)
class _Row:
    """An equation: the logarithm of `fast` over `slow`, with its variance."""

    slow: str
    fast: str
    log: float
    variance: float


@dataclass(frozen=True)
class _Line:
    """The logarithm of a speed by specification."""

    level: float
    slope: float

    @classmethod
    def fit(cls, logs: Mapping[str, float], sheets: Mapping[str, Specification]) -> "_Line":
        """Return the line through the speeds of these GPUs, by least squares."""
        slope, level = np.polyfit([sheets[gpu].middle for gpu in logs], list(logs.values()), 1)
        return cls(float(level), float(slope))

    def at(self, sheet: Specification) -> float:
        return self.level + self.slope * sheet.middle


def _with_source_spread(compared: Sequence[Comparison]) -> tuple[dict[str, float], float]:
    """Return speeds by comparisons alone, and how far sources differ."""
    low = 0.0
    high = _MAX_BETWEEN
    for _ in range(_BISECTIONS):
        between = (low + high) / 2
        equations = [
            _Row(r.slow, r.fast, math.log(r.ratio), _variance(r, between)) for r in compared
        ]
        logs, squares = _least_squares(equations)
        # Speeds have no unit, so one of them is free.
        if squares > len(compared) - (len(logs) - 1):
            low = between
        else:
            high = between
    return logs, between


def _least_squares(equations: Sequence[_Row]) -> tuple[dict[str, float], float]:
    """Return the logarithms that solve the equations best, and the weighted squares left."""
    gpus = list(dict.fromkeys(gpu for row in equations for gpu in (row.slow, row.fast)))
    places = {gpu: place for place, gpu in enumerate(gpus)}
    design = np.zeros((len(equations), len(gpus)))
    for number, row in enumerate(equations):
        design[number, places[row.fast]] = 1
        design[number, places[row.slow]] = -1
    weights = np.array([1 / math.sqrt(row.variance) for row in equations])
    observed = weights * np.array([row.log for row in equations])
    weighted = weights[:, None] * design
    solution = np.linalg.lstsq(weighted, observed, rcond=None)[0]
    squares = float(np.sum((observed - weighted @ solution) ** 2))
    return dict(zip(gpus, solution.tolist(), strict=True)), squares


def _variance(row: Comparison, between: float) -> float:
    """Return the variance of a row's median."""
    assert row.spread is not None
    return row.spread**2 / row.programs + between**2


def _spreads(compared: Iterable[Comparison]) -> list[float]:
    return [row.spread for row in compared if row.spread is not None]


def _root_mean_square(values: Iterable[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def _without(logs: Mapping[str, float], gpu: str) -> dict[str, float]:
    return {other: log for other, log in logs.items() if other != gpu}


def _compared_steps(
    compared: Iterable[Comparison], logs: Mapping[str, float]
) -> dict[str, dict[str, GpuPair]]:
    """Return what is published on each pair, in both directions.

    The variance for one program is that over the programs, that of their median, and that of the
    rows around the solved ratio.
    """
    pairs: dict[tuple[str, str], list[Comparison]] = {}
    for row in compared:
        pairs.setdefault((row.slow, row.fast), []).append(row)
    steps: dict[str, dict[str, GpuPair]] = {}
    for (slow, fast), published in pairs.items():
        variance = 0.0
        for row in published:
            off = math.log(row.ratio) - (logs[fast] - logs[slow])
            one_program = _variance(row, 0.0) * (row.programs + 1) + off**2
            variance += row.programs * one_program
        programs = sum(row.programs for row in published)
        step = GpuPair(
            variance / programs,
            sum(row.n for row in published),
            programs,
            min(row.date for row in published),
            "; ".join(dict.fromkeys(row.source for row in published)),
        )
        steps.setdefault(slow, {})[fast] = step
        steps.setdefault(fast, {})[slow] = step
    return steps


def _add_specified_steps(
    steps: dict[str, dict[str, GpuPair]], sheets: Mapping[str, Specification], spread: float
) -> None:
    """Add a step from each GPU that few have compared to the one most like it by specification."""
    compared = []
    for gpu, pairs in steps.items():
        if sum(step.programs for step in pairs.values()) >= _ENOUGH:
            compared.append(gpu)
    for gpu, sheet in sheets.items():
        if gpu in compared:
            continue
        nearest = min(compared, key=lambda other: sheet.distance(sheets[other]))
        known = steps.setdefault(gpu, {}).get(nearest)
        if known is None or known.variance > spread**2:
            step = GpuPair(spread**2, 0, 0, sheet.date, f"specifications of {gpu} and {nearest}")
            steps[gpu][nearest] = step
            steps[nearest][gpu] = step

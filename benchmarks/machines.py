"""What the choice of an instance type costs a program that none of its figures came from.

    python -m benchmarks.machines DATA

DATA is the folder with ec2_cnn_latency_profet.csv (nothing of it is committed); Lambda's figures
are in lambda_training.csv. A program is a model with its batch, image size, optimizer or precision,
timed on one GPU of each type. Prints, for each table and market, the dollars for a unit of work
over those of the type that is cheapest for the program: by choices that know nothing, by the prior
(profiles/gpu_speeds.py), fitted without the rows of the program's model, by a race of the types
that the prior puts first (which finds out the cheapest of them, and costs nothing here), and by an
oracle. Then the speeds themselves, with the error of the data sheets at each GPU that was left out.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles, stdev
from typing import TYPE_CHECKING

from benchmarks.runner import parser, print_table
from cloudtune.infra.aws import pricing
from cloudtune.profiles.csv_table import rows
from cloudtune.profiles.gpu_speeds import (
    Comparison,
    GpuSpeeds,
    published_comparisons,
    solve,
    specifications,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cloudtune.model.catalog import Market

PROFET, LAMBDA = "PROFET", "Lambda"
_LATENCIES = "ec2_cnn_latency_profet.csv"
_THROUGHPUTS = Path(__file__).with_name("lambda_training.csv")
# The types that have Lambda's GPUs, or those most like them: A10 for A10G, RTX 6000 Ada for L40S,
# the A100 PCIe for p4d's with 40 GB.
_TYPES = {
    "v100": "p3.2xlarge",
    "a10": "g5.xlarge",
    "rtx-6000-ada-generation": "g6e.xlarge",
    "a100-pcie": "p4d.24xlarge",
    "a100": "p4de.24xlarge",
    "h100": "p5.48xlarge",
}
# A choice that costs more times as much as the cheapest is wrong.
_WRONG = 1.15


@dataclass(frozen=True)
class Program:
    """A program that was timed on several GPUs: seconds for a unit of work, by GPU.

    Only programs of one `suite` and `precision` are compared. `precision` is "" if not said.
    """

    model: str
    suite: str
    precision: str
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Table:
    """A table of programs, by the source that their rows of ratios.csv have.

    `types` are the instance types by GPU.
    """

    source: str
    programs: Sequence[Program]
    types: Mapping[str, str]

    def compared(self, without: str) -> list[Comparison]:
        """Return all published rows, those of this table without a model."""
        found = []
        for row in published_comparisons():
            if not row.source.startswith(self.source):
                found.append(row)
            elif (again := self.again(row, without)) is not None:
                found.append(again)
        return found

    def again(self, row: Comparison, without: str = "") -> Comparison | None:
        """Return a row as computed from the programs; None if there are fewer than two."""
        models = set()
        logs = []
        for program in self.programs:
            known = row.slow in program.seconds and row.fast in program.seconds
            alike = program.precision in {row.precision, ""}
            if known and alike and program.model != without:
                models.add(program.model)
                logs.append(math.log(program.seconds[row.slow] / program.seconds[row.fast]))
        if len(logs) < 2:
            return None
        ratio = math.exp(median(logs))
        return replace(row, ratio=ratio, spread=stdev(logs), n=len(logs), programs=len(models))


def profet(data: Path) -> Table:
    """Return PROFET's programs: the median latency of a batch over its repeats."""
    repeats: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    kinds = pricing.instance_types()
    types = {}
    with (data / _LATENCIES).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            gpu = kinds[row["instance_name"]].gpu
            types[gpu] = row["instance_name"]
            key = (row["model"], row["optimizer"], row["batchsize"], row["image_size"])
            if row["batch_latency_raw"]:
                repeats[key][gpu].append(float(row["batch_latency_raw"]))
    programs = []
    for (model, *_), times in repeats.items():
        seconds = {gpu: median(values) for gpu, values in times.items()}
        programs.append(Program(model, "", "", seconds))
    return Table(PROFET, programs, types)


def lambdas() -> Table:
    """Return Lambda's programs: the inverse of their throughput."""
    programs = []
    for row in rows(_THROUGHPUTS):
        named = {"suite", "program", "precision"}
        seconds = {
            gpu: 1 / float(value) for gpu, value in row.items() if value and gpu not in named
        }
        programs.append(Program(row["program"], row["suite"], row["precision"], seconds))
    return Table(LAMBDA, programs, _TYPES)


def prices(table: Table, market: Market) -> dict[str, float]:
    """Return the dollars of a GPU-hour by GPU."""
    found = {}
    for listing in pricing.rentable():
        for gpu, name in table.types.items():
            price = listing.price(market)
            if listing.instance_type.name == name and price is not None:
                found[gpu] = price / listing.instance_type.gpus
    return found


def over_cheapest(table: Table, market: Market) -> dict[str, list[float]]:
    """Return each choice's dollars for a unit of work over the cheapest type's, by program."""
    usd = prices(table, market)
    programs = [it for it in table.programs if usd.keys() <= it.seconds.keys()]
    priors = {
        model: solve(table.compared(model), specifications())
        for model in {program.model for program in programs}
    }
    found: dict[str, list[float]] = defaultdict(list)
    for program in programs:
        costs = {gpu: usd[gpu] * program.seconds[gpu] for gpu in usd}
        cheapest = min(costs.values())
        for name, gpu in _choices(usd, costs, priors[program.model]):
            found[name].append(costs[gpu] / cheapest)
    return found


def _choices(
    usd: Mapping[str, float], costs: Mapping[str, float], prior: GpuSpeeds
) -> Iterator[tuple[str, str]]:
    """Yield what each choice is called, and its GPU."""

    def first(by: Callable[[str], float], among: Iterable[str] = usd) -> str:
        return min(among, key=by)

    expected = {gpu: usd[gpu] / math.exp(prior.logs[gpu]) for gpu in usd}
    sheets = {gpu: expected[gpu] * math.exp(_off_sheet(prior, gpu)) for gpu in usd}
    ranked = sorted(usd, key=expected.__getitem__)
    yield "the dearest", first(lambda gpu: -costs[gpu])
    yield "always V100", "v100"
    yield "cheapest by the GPU-hour", first(usd.__getitem__)
    yield "data sheets alone", first(sheets.__getitem__)
    yield "the prior alone", ranked[0]
    yield "a race of two", first(costs.__getitem__, ranked[:2])
    yield "a race of three", first(costs.__getitem__, ranked[:3])
    yield "oracle", first(costs.__getitem__)


def _off_sheet(prior: GpuSpeeds, gpu: str) -> float:
    """Return how far a GPU's speed is above that of the line that was fitted without it."""
    return prior.left_out.get(gpu, 0.0)


def summary(table: Table, market: Market) -> Iterator[dict[str, object]]:
    """Yield the rows that are printed for a table."""
    for name, ratios in over_cheapest(table, market).items():
        p90 = quantiles(ratios, n=10)[8]
        wrong = sum(ratio > _WRONG for ratio in ratios) / len(ratios)
        yield {
            "choice": name,
            "median": f"+{median(ratios) - 1:.1%}",
            "p90": f"+{p90 - 1:.1%}",
            f"over {_WRONG:g}": f"{wrong:.0%}",
        }


def main() -> None:
    known = parser(__doc__)
    known.add_argument("data", type=Path)
    tables = (profet(known.parse_args().data), lambdas())
    markets: tuple[Market, ...] = ("on-demand", "spot")
    for table in tables:
        for market in markets:
            usd = prices(table, market)
            count = sum(usd.keys() <= program.seconds.keys() for program in table.programs)
            names = ", ".join(f"{table.types[gpu]} ${price:.3f}" for gpu, price in usd.items())
            print(f"\n{table.source}, {market}: {count} programs; a GPU-hour of {names}\n")
            print_table(summary(table, market))
    speeds = solve(published_comparisons(), specifications())
    print(
        f"\nOff at a GPU that was left out: {speeds.specification_error:.1%} by its data sheet; "
        f"between sources {speeds.between_sources:.1%}\n"
    )
    print_table(_speeds(speeds))


def _speeds(speeds: GpuSpeeds) -> Iterator[dict[str, object]]:
    for gpu in sorted(speeds.logs, key=lambda gpu: speeds.logs[gpu]):
        ratio = speeds.between("v100", gpu)
        assert ratio is not None
        off = speeds.left_out.get(gpu)
        yield {
            "GPU": gpu,
            "times a V100": f"{ratio.ratio:.2f}",
            "spread": f"{ratio.spread:.0%}",
            "n": ratio.n or "",
            "off by data sheet": "" if off is None else f"{off:+.0%}",
        }


if __name__ == "__main__":
    main()

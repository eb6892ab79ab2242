"""`cloudtune simulate EXPERIMENT`: the run in virtual time, on drawn or on recorded spot pools."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtune.api.experiments import limits_of, load_experiment, load_problem, plan_or_forced
from cloudtune.catalog import pool
from cloudtune.cli.exports import HTML, check_page, save_page
from cloudtune.cli.options import (
    OUTPUT,
    PROFILE,
    STRATEGY,
    USUAL,
    GroupedCommand,
    experiment_options,
    plan_options_of,
    planning_options,
    search_options,
)
from cloudtune.cli.plan import show_infeasible, tell_insisted
from cloudtune.display.terminal import console
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.jobs.plan_file import job_of
from cloudtune.planners.base import InfeasibleError
from cloudtune.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudtune.catalog import Offer, PoolName
    from cloudtune.engine.spot_pools import PoolTrace
    from cloudtune.experiment import Experiment
    from cloudtune.jobs.job import Job
    from cloudtune.jobs.planning import Planned
    from cloudtune.jobs.report import Report
    from cloudtune.jobs.stages import PlanOptions, Problem
    from cloudtune.simulation.spot_replay import Replayed


class _Simulate(GroupedCommand):
    """`simulate EXPERIMENT` and `simulate --curves FILE`: each has options of its own."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the one that the arguments ask for."""
        if any(arg.partition("=")[0] == "--curves" for arg in args):
            from cloudtune.cli.compare import simulate_curves

            return simulate_curves.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=_Simulate, first=USUAL)
@click.argument("experiment", type=click.Path(path_type=Path))
@experiment_options
@search_options
@STRATEGY
@planning_options
@PROFILE
@click.option("--force", is_flag=True, help="Simulate even if no plan meets the limits.")
@click.option(
    "--spot-trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Table of spot availability, losses and prices to replay (docs/spot.md).",
)
@click.option(
    "--spot-where", metavar="COLUMN=VALUE", multiple=True, help="Use only rows with this value."
)
@click.option(
    "--spot-from",
    metavar="TIME",
    help="Start this far into the trace, such as 36h (default: at its beginning).",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With a trace: number of runs, started at even intervals.",
)
@HTML
@OUTPUT
def simulate(
    *,
    experiment: Path,
    profile: str | None,
    force: bool,
    spot_trace: Path | None,
    spot_where: tuple[str, ...],
    spot_from: str | None,
    seeds: int,
    html: Path | None,
    output: str,
    **given: Any,
) -> int:
    """Play the run in virtual time: the same policy, made-up learning curves, no cloud.

    With --spot-trace FILE spot instances can be had, and are taken back, as that table says, and
    the bill stands beside what it would have been for whoever knew the table.

    With --curves FILE instead, compare strategies on recorded learning curves: options of its own,
    that `cloudtune simulate --curves FILE --help` shows.
    """
    from cloudtune.display.report_screen import show_report
    from cloudtune.jobs.report import simulate as simulate_job
    from cloudtune.jobs.report import to_json

    asked = _asked(spot_trace, spot_where, spot_from, seeds, html)
    wanted, options = load_experiment(experiment, given), plan_options_of(given)
    problem = load_problem(wanted, profile)
    traces: Mapping[PoolName, PoolTrace] = {}
    if asked is not None:
        traces, problem = _traced(problem, asked)
    try:
        limits = limits_of(wanted)
        planned = plan_or_forced(problem, limits, options, force=force, insists=tell_insisted)
    except InfeasibleError as error:
        return show_infeasible(error, output, problem)
    if asked is not None:
        return _on_traces(planned, traces, asked, options, output=output, html=html)
    played = simulate_job(job_of(planned, 0.0, paced=False))
    _draw(html, played)
    if output == "json":
        click.echo(json.dumps(to_json(played), indent=1))
    else:
        console().print(
            "Simulated: the metrics are made up, seconds and dollars are the profile's."
        )
        show_report(console(), played)
    ending = played.policy.ending
    return ending.exit_code if ending else 1


def _check_page(html: Path | None, seeds: int) -> None:
    check_page(html)
    if html is not None and seeds > 1:
        raise UsageError("--html: draws one run; leave --seeds out")


def _draw(html: Path | None, played: Report) -> None:
    """Write the page of a simulated run, if one is asked for."""
    if html is not None:
        from cloudtune.display.pages.reports import run_page

        save_page(html, lambda: run_page(played))


# ---- on spot traces ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """Which trace, from which second of it on, how often."""

    file: Path
    where: tuple[str, ...]
    start: float
    seeds: int


def _asked(
    file: Path | None, where: tuple[str, ...], begin: str | None, seeds: int, html: Path | None
) -> _Asked | None:
    """Return what is asked of a trace; None where none is.

    Raises:
        UsageError: an option that needs a trace, without one; no duration; or a page that can't be.
    """
    _check_page(html, seeds)
    if file is None:
        given = {"--spot-where": where, "--spot-from": begin, "--seeds": seeds > 1}
        needless = [name for name, value in given.items() if value]
        if needless:
            raise UsageError(f"{needless[0]}: is for --spot-trace FILE; give one, or leave it out")
        return None
    try:
        return _Asked(file, where, 0.0 if begin is None else parse_seconds(begin), seeds)
    except UsageError as error:
        raise UsageError(f"--spot-from: {error}") from None


def _traced(problem: Problem, asked: _Asked) -> tuple[dict[PoolName, PoolTrace], Problem]:
    """Return the trace of each pool, and the problem with what they tell of prices and losses.

    Raises:
        UsageError: a mistake in the file, or it isn't clear which trace is of which offer.
    """
    from cloudtune.simulation.spot_replay import on_traces
    from cloudtune.simulation.trace_file import matched, read_traces

    found = read_traces(asked.file, asked.where)
    by_offer: Mapping[Offer, PoolTrace] = matched(
        found, [each.offer for each in problem.rentables], asked.file
    )
    rentables = on_traces(problem.rentables, by_offer)
    traces = {pool(offer): trace for offer, trace in by_offer.items()}
    return traces, replace(problem, rentables=tuple(rentables))


def _on_traces(
    planned: Planned,
    traces: Mapping[PoolName, PoolTrace],
    asked: _Asked,
    options: PlanOptions,
    *,
    output: str,
    html: Path | None,
) -> int:
    """Play the plan on the traces, from one start or several, and show what it came to."""
    from cloudtune.display import spot_tables
    from cloudtune.display.report_screen import show_report
    from cloudtune.jobs.report import build
    from cloudtune.simulation.spot_replay import starts

    job = job_of(planned, 0.0, paced=False)
    length = max(trace.length for trace in traces.values())
    begins = starts(length, asked.seeds, asked.start)
    runs = _replays(job, traces, begins)
    alone = _on_demand_alone(planned, options, begins)
    if len(runs) == 1:
        _draw(html, build(job, runs[0].entries))
    told = spot_tables.Told(planned.plan, planned.limits, tuple(traces.values()), runs, alone)
    if output == "json":
        click.echo(json.dumps(spot_tables.to_json(told), indent=1, allow_nan=False))
    else:
        console().print(
            "Simulated: the metrics are made up, seconds and dollars are the profile's, and spot "
            f"pools those of {asked.file}."
        )
        for remark in planned.remarks:
            console().print(f"mind: {remark}")
        if len(runs) == 1:
            show_report(console(), build(job, runs[0].entries))
        spot_tables.show(console(), told)
    broken = [text for each in (*runs, *(alone or ())) for text in each.violations]
    if broken:
        raise CloudtuneError(f"runs passed their limits (a bug in cloudtune): {'; '.join(broken)}")
    return runs[0].exit_code if len(runs) == 1 else 0


def _replays(
    job: Job, traces: Mapping[PoolName, PoolTrace], begins: list[float]
) -> tuple[Replayed, ...]:
    from cloudtune.simulation.spot_replay import replay

    rentables, seed = (*job.rentables, *job.standins), job.experiment.seed
    return tuple(
        replay(
            job.policy(heartbeat=False, checked=False),
            rentables,
            traces,
            start=begin,
            seed=seed + number,
        )
        for number, begin in enumerate(begins)
    )


def _on_demand_alone(
    planned: Planned, options: PlanOptions, begins: list[float]
) -> tuple[Replayed, ...] | None:
    """Return the same runs of the same experiment without spot; None where that isn't allowed."""
    problem = planned.problem
    rentables = tuple(r for r in problem.rentables if r.offer.market == "on-demand")
    if not rentables:
        return None
    without = replace(problem, rentables=rentables, experiment=_without_spot(problem.experiment))
    try:
        other = plan_or_forced(without, planned.limits, options, force=True, insists=lambda: None)
    except InfeasibleError:
        return None
    return _replays(job_of(other, 0.0, paced=False), {}, begins)


def _without_spot(experiment: Experiment) -> Experiment:
    cloud = experiment.cloud.model_copy(update={"market": "on-demand"})
    return experiment.model_copy(update={"cloud": cloud})

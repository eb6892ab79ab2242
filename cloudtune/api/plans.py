"""`cloudtune.plan`: a run's plan, duration and cost, as values and tables."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtune.api import experiments
from cloudtune.api.tables import frame, notebook_table
from cloudtune.forecast import alternatives, make, plan_file, proposal
from cloudtune.forecast.staged_plans import PlanOptions
from cloudtune.lifecycle import heads
from cloudtune.lifecycle.planning import load_problem, read_limits
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.model.text import cost_format
from cloudtune.model.units import format_seconds
from cloudtune.planners.base import InfeasibleError
from cloudtune.private_files import a_guest
from cloudtune.runs import home
from cloudtune.runs.job import read_choice

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from cloudtune.experiment import Experiment
    from cloudtune.experiment.defaults import Objective
    from cloudtune.forecast.make import Planned
    from cloudtune.forecast.proposal import Proposal

_SPREADS = ("seconds", "dollars", "trials", "epochs", "gpu_hours", "instances")
_STAGES = (
    *("trials", "start_epoch", "end_epoch", "instance_type", "market", "instances", "width"),
    *("begin", "seconds", "dollars"),
)


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of a run, with its duration and cost; pass it to `cloudtune.run` to execute it.

    Its figures are those of `cloudtune plan`. Create one with `cloudtune.plan`.
    """

    planned: Planned = field(repr=False)

    @property
    def experiment(self) -> Experiment:
        """The experiment, with the options applied."""
        return self.planned.problem.experiment

    @property
    def strategy(self) -> str:
        """The name of the strategy, which decides how far each trial trains."""
        return self.planned.plan.strategy

    @property
    def seconds(self) -> float:
        """The expected duration in seconds, from the first request on."""
        return self.planned.plan.estimate.seconds

    @property
    def dollars(self) -> float:
        """The expected cost in dollars."""
        return self.planned.plan.estimate.dollars

    @property
    def within(self) -> float | None:
        """The probability, 0 to 1, of meeting all limits; None without limits."""
        return self.planned.plan.forecast.within

    @property
    def basis(self) -> str:
        """The basis of its seconds and dollars, such as "measured today on g5.xlarge"."""
        return self.proposal.basis.text

    @cached_property
    def forecast(self) -> pd.DataFrame:
        """The results of simulated runs: one row per figure, columns `p5`, `p50` and `p95`.

        `seconds`, `dollars`, `trials` (started), `epochs` (of the best trial), `gpu_hours` (billed)
        and `instances` (maximum at a time).
        """
        forecast = self.planned.plan.forecast
        quantiles = ("p5", "p50", "p95")
        rows = [vars(getattr(forecast, name)) for name in _SPREADS]
        return frame(rows, quantiles, numbers=quantiles).set_axis(_SPREADS, axis="index")

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row per group of instances of each stage; empty for strategies without stages.

        `trials`, `start_epoch` (trained before), `end_epoch`, `instance_type`, `market`,
        `instances`, `width` (GPUs per trial; less than 1 is a share of one), `begin` and `seconds`
        (of the stage, from the plan's start), `dollars` (of the stage, all groups together).
        """
        staged = self.planned.plan.staged
        rows = [
            {
                "trials": group.trials,
                "start_epoch": stage.stage.start_epoch,
                "end_epoch": stage.stage.end_epoch,
                "instance_type": group.offer.instance_type.name,
                "market": group.offer.market,
                "instances": group.instances,
                "width": group.width,
                "begin": stage.begin,
                "seconds": stage.seconds,
                "dollars": stage.dollars,
            }
            for stage in (() if staged is None else staged.stages)
            for group in stage.groups
        ]
        return frame(rows, _STAGES, numbers=("width", "begin", "seconds", "dollars"))

    @cached_property
    def front(self) -> pd.DataFrame:
        """The Pareto front of plans: `seconds` and `dollars`, one row per plan."""
        rows = [
            {"seconds": point.plan.estimate.seconds, "dollars": point.plan.estimate.dollars}
            for point in self.proposal.front
        ]
        return frame(rows, ("seconds", "dollars"), numbers=("seconds", "dollars"))

    @cached_property
    def alternatives(self) -> pd.DataFrame:
        """Alternatives: `name`, expected `seconds` and `dollars`, `within` as above."""
        rows = [
            {
                "name": alternative.name,
                "seconds": alternative.plan.estimate.seconds,
                "dollars": alternative.plan.estimate.dollars,
                "within": alternative.plan.forecast.within,
            }
            for alternative in self.proposal.alternatives
        ]
        columns = ("name", "seconds", "dollars", "within")
        return frame(rows, columns, numbers=columns[1:])

    @cached_property
    def proposal(self) -> Proposal:
        """Everything that `cloudtune plan` shows; its fields aren't part of the public interface.

        Computed on first access, as it plans the alternatives.
        """
        return proposal.propose(self.planned)

    def save(self, path: str | Path) -> None:
        """Save the plan to a file, for `cloudtune run PATH`.

        Raises:
            UsageError: the file can't be written.
        """
        plan_file.save_plan(Path(path), self.planned)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the page that `cloudtune plan --html` writes; with `path`, also write it there.

        Raises:
            UsageError: plotly isn't installed, or the file can't be written.
        """
        from cloudtune.display.pages import document, plans  # noqa: PLC0415

        page = plans.plan_page(self.proposal)
        if path is not None:
            document.write(Path(path), page, "to_html")
        return document.Page(page)

    def to_json(self) -> dict[str, Any]:
        """Return the output of `cloudtune plan -o json`."""
        return {"feasible": True, **proposal.to_json(self.proposal)}

    def __repr__(self) -> str:
        lines = (f"  {name}: {text}" for name, text in self._lines())
        return "\n".join([f"Plan of {self.experiment.name}", *lines])

    def __str__(self) -> str:
        """Return the plan as `cloudtune plan` prints it, in 100 columns."""
        from rich.console import Console  # noqa: PLC0415

        from cloudtune.display.plan_screen import show_plan  # noqa: PLC0415

        text = io.StringIO()
        # In a notebook rich would make each line an output of its own.
        out = Console(file=text, width=100, highlight=False, color_system=None, force_jupyter=False)
        show_plan(out, self.proposal)
        return text.getvalue()

    def _repr_html_(self) -> str:
        """Return the plan for a notebook: its figures and its stages."""
        figures = notebook_table(f"Plan of {self.experiment.name}", self._lines())
        stages = "" if self.stages.empty else self.stages.to_html(index=False)
        return f"<div>{figures}{stages}</div>"

    def _lines(self) -> Iterable[tuple[str, str]]:
        forecast = self.planned.plan.forecast
        plan = self.planned.plan
        yield "strategy", plan.strategy
        low = format_seconds(forecast.seconds.p5)
        high = format_seconds(forecast.seconds.p95)
        yield "takes", f"{format_seconds(self.seconds)} ({low} to {high})"
        cost = cost_format(plan.offers)
        low = cost(forecast.dollars.p5)
        high = cost(forecast.dollars.p95)
        if not self.proposal.plan.free:
            yield "costs", f"{cost(self.dollars)} ({low} to {high})"
        if self.within is not None:
            yield "keeps its limits", f"in {self.within:.0%} of {forecast.samples} simulated runs"
        fleet = ", ".join(
            f"{row.instances} x {row.offer.instance_type.name} {row.offer.market}"
            for row in plan.fleet
        )
        yield "rents at most", fleet or f"{plan.max_instances} instances"
        for remark in self.planned.remarks:
            yield "mind", remark
        if self.planned.problem.unsaved:
            yield "model", self.planned.problem.unsaved
        yield "figures", self.basis


@a_guest()
def plan(
    experiment: experiments.Source,
    *,
    profile: str | None = None,
    objective: Objective | None = None,
    planner: str | None = None,
    confidence: float | None = None,
    point: int | None = None,
    reporter: Reporter | None = None,
    **given: Any,
) -> Plan:
    """Return a run's plan, duration and cost. Rents nothing.

    `experiment` is a YAML file, a training script, the fields of an experiment as a mapping, or a
    `cloudtune.Experiment`. In a mapping, `train` may be a function at the top level of a file.
    `given` overrides its fields: `deadline` ("2h", or seconds), `budget` ("$40", or dollars),
    `trials`, `initial` (configurations to try first), `like` (an earlier run to begin with
    the five best configurations of), `strategy`, `max_instances`, `provider`, `instances`,
    `market`, `epochs`, `search`, `metric` ("accuracy:max"), `seed`, `storage`,
    `history` and `try_first`. `profile` is the file of a measured profile, or the name of a
    published one; `objective` ("best", "cost", "time" or "trials"), `planner` and `confidence` (0.5
    to 0.999) are those of `cloudtune plan`. `point` chooses a plan of the front by its number,
    from 1. `reporter` hears of the plan, or of why there is none.

        plan = cloudtune.plan("experiment.yaml", deadline="2h", budget="$40")
        plan.dollars, plan.seconds, plan.within
        result = cloudtune.run(plan)

    Raises:
        ExperimentError: mistakes in the experiment, each with its line.
        UsageError: the script has no profile, or the options can't be combined.
        InfeasibleError: no plan meets the limits; its attributes have the nearest plans.
    """
    home.close()
    reporter = reporter or Reporter()
    options = PlanOptions(objective, planner, confidence)
    overrides = {**experiments.checked_options(given), "objective": objective}
    wanted = experiments.for_renting(experiment, overrides, profile, options)
    wanted = heads.with_head(wanted, heads.offer_head(wanted))
    options.check(read_choice(wanted))
    with home.with_module(wanted):
        problem = load_problem(wanted, profile)
        try:
            planned = make.make_plan(
                problem, read_limits(wanted), options, wanted.charges.head_start
            )
        except InfeasibleError as error:
            reporter.on_infeasible(error, problem)
            raise
        if point is not None:
            planned = alternatives.at_point(planned, point)
        reporter.on_planned(planned)
        return Plan(planned)

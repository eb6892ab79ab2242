"""The result of a run for scripts and notebooks, as values and tables read from its ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloudtune.api.tables import frame, notebook_table
from cloudtune.display.pages import document, reports
from cloudtune.engine.record.gpu_series import gpu_uses
from cloudtune.errors import UsageError
from cloudtune.model.text import cost_format
from cloudtune.model.trial import better, flat, nest
from cloudtune.model.units import format_seconds
from cloudtune.private_files import a_guest
from cloudtune.runs import home, report

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd
    from plotly.graph_objects import Figure

    from cloudtune.engine.record.timeline import EpochSpan
    from cloudtune.model.progress import TrialProgress
    from cloudtune.runs.report import Report

_TRIALS = ("trial", "status", "epochs")
_TRIAL_ENDS = ("best_epoch", "seconds", "gpu_seconds", "dollars", "checkpoint", "error")
_EPOCHS = ("trial", "epoch", "seconds", "took", "width", "instance", "checkpoint")
_INSTANCES = (
    *("intent", "instance", "type", "market", "zone", "gpus", "requested", "launched", "joined"),
    *("gone", "dollars", "busy_share"),
)
_USES = ("instance", "gpu", "begin", "end", "trial", "share", "use")
_STAGES = (
    *("trials", "start_epoch", "end_epoch", "instances", "planned_seconds", "seconds"),
    *("planned_dollars", "dollars"),
)


@dataclass(frozen=True)
class Best:
    """The best epoch of a run, among epochs with a checkpoint if there are any.

    `config` is the configuration of its trial, by parameter. `metrics` has every number that the
    script reported with that epoch, by name. `checkpoint` is, after the end of the run, the folder
    or URI with the files as the script wrote them; before, that of a stored checkpoint of the
    trial, which `Checkpoint` reads; None if there is none.
    """

    trial: str
    config: Mapping[str, object]
    metrics: Mapping[str, float]
    epoch: int
    checkpoint: str | None


@dataclass(frozen=True)
class Cost:
    """The cost of a run, so far if it is still running.

    `dollars` is the bill, the sum of `by_category`: dollars for each category of "Where the money
    went", such as training, start_up and idle. `gpu_seconds` has the same categories, in billed
    GPU-seconds. `billed_by_cloud` is the cost of the instances in dollars by the cloud's records,
    if the ledger doesn't have their ends; else None.
    """

    dollars: float
    by_category: Mapping[str, float]
    gpu_seconds: Mapping[str, float]
    billed_by_cloud: float | None = None


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """The plan of a run: `seconds` from its first request on, and `dollars`.

    `stages` has one row per stage, planned versus actual: `trials`, `start_epoch`, `end_epoch`,
    `instances`, `planned_seconds`, `seconds`, `planned_dollars`, `dollars`. Actual values are NaN
    for a stage that never began; a run without stages has no rows.
    """

    seconds: float
    dollars: float
    stages: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome, history and cost of a run, from its ledger; so far, if it is still running.

    Its figures are those of `cloudtune report`. All tables are pandas DataFrames; their times are
    seconds since the start of the run. Create one with `cloudtune.load_run`.
    """

    report: Report = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the run, as `cloudtune runs` lists it."""
        return self.report.job.run

    @property
    def metric(self) -> str:
        """The name of the metric that the run optimized."""
        return self.report.metric

    @property
    def ended(self) -> str | None:
        """Why the run ended: done, failed, budget, deadline, no capacity or interrupted.

        None while it is running, and if its controller died (see `cloudtune resume`).
        """
        return self.report.ended and self.report.ended.value

    @property
    def exit_code(self) -> int | None:
        """The exit code of `cloudtune run`; None if the run hasn't ended."""
        return self.report.exit_code

    @property
    def seconds(self) -> float:
        """Duration in seconds, from the first request on; so far, if the run is still running."""
        return self.report.seconds

    @cached_property
    def best(self) -> Best | None:
        """The best epoch and its checkpoint; None if no epoch was reported.

        If that checkpoint can't be read, the epoch that was delivered instead.
        """
        best = self.report.policy.best
        if best is None:
            return None
        delivery = self.report.delivery
        trial, number, checkpoint = best.trial, best.epoch, self.report.kept
        if delivery is not None:
            trial, number, checkpoint = delivery.trial, delivery.epoch, delivery.path
        epoch = self._epochs.get((trial, number))
        metrics = {self.metric: best.metric} if epoch is None else dict(epoch.report.metrics)
        config = nest(self.report.policy.trials[trial].trial.config)
        return Best(trial, config, metrics, number, checkpoint)

    @cached_property
    def cost(self) -> Cost:
        """The bill in dollars, and where the money went."""
        amounts = {
            name.replace("-", "_"): amount
            for name, amount in self.report.accounting.amounts.items()
        }
        return Cost(
            dollars=self.report.dollars,
            by_category={name: amount.dollars for name, amount in amounts.items()},
            gpu_seconds={name: amount.gpu_seconds for name, amount in amounts.items()},
            billed_by_cloud=self.report.billed,
        )

    @cached_property
    def plan(self) -> PlannedRun:
        """The plan of the run, versus its actual course."""
        rows = [
            {
                "trials": stage.plan.stage.trials,
                "start_epoch": stage.plan.stage.start_epoch,
                "end_epoch": stage.plan.stage.end_epoch,
                "instances": stage.plan.instances,
                "planned_seconds": stage.plan.seconds,
                "seconds": stage.seconds,
                "planned_dollars": stage.plan.dollars,
                "dollars": stage.dollars,
            }
            for stage in self.report.stages
        ]
        stages = frame(rows, _STAGES, numbers=("seconds", "dollars"))
        planned = self.report.job.plan.estimate
        return PlannedRun(planned.seconds, planned.dollars, stages)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial, best first.

        `trial`, `status`, `epochs` (trained), the metric by its name (the trial's best value; NaN
        if none), `best_epoch`, `config/NAME` for each parameter, `seconds` (of its sessions),
        `gpu_seconds` and `dollars` (of the bill), `checkpoint` (its last), `error`.
        """
        rows = [self._trial(trial) for trial in self.report.best_first()]
        parameters = dict.fromkeys(key for row in rows for key in row if key.startswith("config/"))
        metric = _column(self.metric, (*_TRIALS, *_TRIAL_ENDS))
        columns = (*_TRIALS, metric, "best_epoch", *parameters, *_TRIAL_ENDS[1:])
        return frame(rows, columns, numbers=(metric,), counts=("best_epoch",))

    def _trial(self, trial: TrialProgress) -> dict[str, Any]:
        mode = self.report.policy.state.mode
        epoch: int | None = None
        for number, value in trial.history.items():
            if better(mode, value, None if epoch is None else trial.history[epoch]):
                epoch = number
        spent = self.report.accounting.trials.get(trial.id, {}).values()
        return {
            "trial": trial.id,
            "status": trial.status,
            "epochs": trial.epoch,
            _column(self.metric, (*_TRIALS, *_TRIAL_ENDS)): None
            if epoch is None
            else trial.history[epoch],
            "best_epoch": epoch,
            **{f"config/{name}": value for name, value in trial.trial.config.items()},
            "seconds": trial.seconds,
            "gpu_seconds": sum(share.gpu_seconds for share in spent),
            "dollars": sum(share.dollars for share in spent),
            "checkpoint": trial.checkpoint,
            "error": trial.error or None,
        }

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per epoch of each trial, in the order in which they ended.

        `trial`, `epoch` (from 1), one column per reported metric (NaN where missing) or text,
        `seconds` (of
        the run, when the epoch ended), `took` (seconds), `width` (GPUs; less than 1 is a share of
        one), `instance` (comma-separated if there are several) and `checkpoint`. If an epoch was
        trained again, the last result counts. A metric with the name of one of these columns is in
        `metric/NAME`.
        """
        epochs = sorted(self._epochs.values(), key=lambda epoch: epoch.report.at)
        metrics = dict.fromkeys(name for epoch in epochs for name in epoch.report.metrics)
        texts = dict.fromkeys(name for epoch in epochs for name in epoch.report.texts)
        named = {name: _column(name, _EPOCHS) for name in (*metrics, *texts)}
        rows = [_epoch_row(epoch, named) for epoch in epochs]
        columns = dict.fromkeys(named.values())
        numbers = [named[name] for name in metrics if name not in texts]
        return frame(rows, (*_EPOCHS[:2], *columns, *_EPOCHS[2:]), numbers=numbers)

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """GPU utilisation: one row per use of a GPU by a trial, by instance, GPU and time.

        `instance`, `gpu` (from 0; the physical index is unknown), `begin`, `end` (seconds of the
        run), `trial`, `share` of the GPU, and `use`: training, checkpoint, start-up, barrier
        (waiting for other trials) or lost. Between the rows, the GPU is idle, or its instance is
        booting or being returned.
        """
        uses = gpu_uses(self.report.timeline, self.report.accounting)
        return frame([vars(use) for use in uses], _USES)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row: the best result, and how far trials were trained.

        `best`, `best_trial`, `best_epoch`; `trials`, `epochs` of all, `shortest`, `median` and
        `longest` of a trial (epochs); `seconds`, `dollars`; `target`, and `target_at`, the second
        at which the run reached it.
        """
        summary = self.report.summary
        target = self.report.target
        row = {
            **vars(summary),
            "seconds": self.report.seconds,
            "dollars": self.report.dollars,
            "target": target and target.value,
            "target_at": target and target.reached_at,
        }
        return frame([row], row, numbers=("best", "target", "target_at"))

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per instance that was, or may have been, rented, in the order of the requests.

        `intent` (the name of its request), `instance` (the cloud's id), `type`, `market`, `zone`,
        `gpus`; `requested`, `launched`, `joined` (accepts trials) and `gone` (no longer billed), in
        seconds of the run, NaN if it hasn't happened; `dollars`, and `busy_share` (0 to 1) of its
        GPU-seconds in which trials trained. Only `cost` includes hourly charges of the run.
        """
        rows = []
        for account in self.report.accounting.instances:
            instance = self.report.timeline.instances[account.intent]
            rows.append(
                {
                    "intent": account.intent,
                    "instance": account.instance,
                    "type": account.offer.instance_type.name,
                    "market": account.offer.market,
                    "zone": instance.launch.zone,
                    "gpus": account.offer.gpus,
                    "requested": instance.requested_at,
                    "launched": instance.launched_at,
                    "joined": instance.joined_at,
                    "gone": instance.gone_at,
                    "dollars": account.whole.dollars,
                    "busy_share": account.busy_share,
                }
            )
        return frame(rows, _INSTANCES, numbers=("launched", "joined", "gone"))

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the page that `cloudtune report --html` writes; with `path`, also write it there.

        The page works offline, as it includes plotly.js (5 MB).

        Raises:
            UsageError: plotly isn't installed, or the file can't be written.
        """
        page = reports.run_page(self.report)
        if path is not None:
            document.write(Path(path), page, "to_html")
        return document.Page(page)

    def plot_metric(self, against: Literal["time", "dollars"] = "time") -> Figure:
        """Return the metric of every trial and the best so far as a plotly figure.

        `against` chooses the horizontal axis: time, or dollars spent.

        Raises:
            UsageError: plotly isn't installed, or there is nothing to draw yet.
        """
        return self._plot("metric" if against == "time" else "metric_by_dollars")

    def plot_gpus(self) -> Figure:
        """Return the GPUs as a Gantt chart: trials, widths, boots, idle time; as `plot_metric`."""
        return self._plot("gpus")

    def plot_spend(self) -> Figure:
        """Return fleet and dollars over time, against plan and limits; as `plot_metric`."""
        return self._plot("spend")

    def plot_configs(self) -> Figure:
        """Return the configurations across an axis for each parameter; as `plot_metric`."""
        return self._plot("configurations")

    def _plot(self, name: str) -> Figure:
        figures = reports.figures(self.report)
        if name not in figures:
            raise UsageError(f"nothing to plot yet: run {self.name} has just begun")
        return figures[name].to_plotly()

    def to_json(self) -> dict[str, Any]:
        """Return the output of `cloudtune report -o json`, without the cloud's records."""
        return report.to_json(self.report)

    def __repr__(self) -> str:
        return "\n".join([f"Result of {self.name}", *(f"  {a}: {b}" for a, b in self._lines())])

    def _repr_html_(self) -> str:
        """Return the run for a notebook: its figures and its ten best trials."""
        figures = notebook_table(f"Result of {self.name}", self._lines())
        table = self.trials.dropna(axis="columns", how="all").head(10).to_html(index=False)
        rest = len(self.trials) - 10
        more = f"<p>{rest} more in <code>.trials</code></p>" if rest > 0 else ""
        return f"<div>{figures}{table}{more}</div>"

    def _lines(self) -> Iterable[tuple[str, str]]:
        yield "ended", self.ended or "not yet (it is running, or its controller died)"
        best = self.best
        plan = self.plan
        if best is None:
            yield "best", "nothing was reported"
        else:
            config = ", ".join(f"{name}={value}" for name, value in flat(best.config).items())
            value = best.metrics.get(self.metric)
            yield "best", f"{self.metric} {value} ({best.trial}, epoch {best.epoch})"
            yield "config", config
            yield "checkpoint", best.checkpoint or "none"
        took = format_seconds(self.seconds)
        planned = format_seconds(plan.seconds)
        yield "took", f"{took} (planned {planned})"
        cost = cost_format(self.report.job.plan.offers)
        yield "cost", f"{cost(self.cost.dollars)} (planned {cost(plan.dollars)})"
        yield "trials", f"{len(self.trials)}, {len(self.history)} epochs in all"

    @cached_property
    def _epochs(self) -> dict[tuple[str, int], EpochSpan]:
        """The counted epochs, by trial and number: the last result of each."""
        return self.report.timeline.final_epochs()


@a_guest()
def load_run(name: str | None = None) -> Result:
    """Return the result of a run of this machine, whether it ended, is running, or died.

    `name` is the run's, or an unambiguous prefix of it; by default, the last run.

        result = cloudtune.load_run()
        result.best.config, result.best.checkpoint
        result.history.pivot(index="epoch", columns="trial", values="accuracy").plot()

    Raises:
        UsageError: no run matches, or several do.
        CloudtuneError: its ledger is damaged, or from another version of cloudtune.
    """
    return Result(report.load(home.find_run(name)))


def _epoch_row(epoch: EpochSpan, columns: Mapping[str, str]) -> dict[str, object]:
    """Return a row of `Result.history`; `columns` are those of the reported names."""
    report = epoch.report
    values = {**report.texts, **report.metrics}
    instances = dict.fromkeys(piece.instance for piece in epoch.session.start.placement)
    return {
        "trial": epoch.trial,
        "epoch": epoch.number,
        **{columns[name]: value for name, value in values.items()},
        "seconds": report.at,
        "took": report.seconds,
        "width": epoch.width,
        "instance": ",".join(instances),
        "checkpoint": report.checkpoint,
    }


def _column(metric: str, taken: Iterable[str]) -> str:
    """Return the column of a metric, whose name may clash with one of ours."""
    return f"metric/{metric}" if metric in taken else metric

"""The result of a run for a script or a notebook: what its ledger tells, as values and tables."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloudtune.api.tables import frame
from cloudtune.display.pages import document, reports
from cloudtune.engine.record.gpu_series import gpu_uses
from cloudtune.errors import UsageError
from cloudtune.model.trial import better, flat, nested
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.private_files import a_guest
from cloudtune.runs import home, report

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd
    from plotly.graph_objects import Figure

    from cloudtune.engine.record.timeline import Epoch
    from cloudtune.runs.report import Report

_TRIALS = ("trial", "status", "epochs")
_TOLD = ("best_epoch", "seconds", "gpu_seconds", "dollars", "checkpoint", "error")
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
    """The best epoch of a run: among epochs with a checkpoint, where there are such.

    `config` is the configuration of its trial, by parameter. `metrics` is every number that the
    script reported with that epoch, by name. `checkpoint` is the folder or URI with the files as
    the script wrote them, where the run has come to its end; else that of a stored checkpoint of
    the trial, which `Checkpoint` reads. None where none is there.
    """

    trial: str
    config: Mapping[str, object]
    metrics: Mapping[str, float]
    epoch: int
    checkpoint: str | None


@dataclass(frozen=True)
class Cost:
    """What a run cost, so far if it goes on.

    `dollars` is the bill, and what `by_category` adds up to: dollars for each category of "Where
    the money went", such as training, start_up and idle. `gpu_seconds` has the same categories, in
    GPU-seconds that were billed. `billed_by_cloud` is what the cloud says that the instances came
    to, in dollars, where the ledger doesn't know their ends; else None.
    """

    dollars: float
    by_category: Mapping[str, float]
    gpu_seconds: Mapping[str, float]
    billed_by_cloud: float | None = None


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """What was planned before a run: `seconds` from its first request on, and `dollars`.

    `stages` has a row a stage, planned against actual: `trials`, `start_epoch`, `end_epoch`,
    `instances`, `planned_seconds`, `seconds`, `planned_dollars`, `dollars`. The actual ones are NaN
    for a stage that never began; a run that doesn't go by stages has no rows.
    """

    seconds: float
    dollars: float
    stages: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found, did and cost, as its ledger tells it; so far, if it goes on.

    Its figures are those of `cloudtune report`. All tables are pandas DataFrames; times in them are
    seconds of the run, where 0 is its beginning. Make one with `cloudtune.load_run`.
    """

    report: Report = field(repr=False)

    # ---- the run ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the run, as `cloudtune runs` lists it."""
        return self.report.job.run

    @property
    def metric(self) -> str:
        """The name of the metric that the run tuned."""
        return self.report.job.experiment.metric.name

    @property
    def ended(self) -> str | None:
        """Why the run ended: done, failed, budget, deadline, no capacity or interrupted.

        None while it goes on, and where its controller died: `cloudtune resume` goes on with it.
        """
        return self._told["ended"]  # type: ignore[no-any-return]

    @property
    def exit_code(self) -> int | None:
        """What `cloudtune run` returned; None where the run hasn't ended."""
        return self._told["exit_code"]  # type: ignore[no-any-return]

    @property
    def seconds(self) -> float:
        """Seconds that the run took, from its first request on; so far, if it goes on."""
        return self.report.seconds

    @cached_property
    def best(self) -> Best | None:
        """The best epoch and its checkpoint; None where no epoch was reported."""
        found = self.report.policy.best
        if found is None:
            return None
        epoch = self._epochs.get((found.trial, found.epoch))
        return Best(
            trial=found.trial,
            config=nested(self.report.policy.trials[found.trial].trial.config),
            metrics={self.metric: found.metric} if epoch is None else dict(epoch.told.metrics),
            epoch=found.epoch,
            checkpoint=self.report.best_folder or self.report.kept,
        )

    @cached_property
    def cost(self) -> Cost:
        """The bill in dollars, and where the money went."""
        found = self._told["accounting"]
        return Cost(
            dollars=self.report.dollars,
            by_category={name: each["dollars"] for name, each in found["categories"].items()},
            gpu_seconds={name: each["gpu_seconds"] for name, each in found["categories"].items()},
            billed_by_cloud=self.report.billed,
        )

    @cached_property
    def plan(self) -> PlannedRun:
        """What was planned before the run, against what it took."""
        rows = [
            {
                "trials": each["trials"],
                "start_epoch": each["epochs"][0],
                "end_epoch": each["epochs"][1],
                "instances": each["instances"],
                "planned_seconds": each["seconds"]["planned"],
                "seconds": each["seconds"]["actual"],
                "planned_dollars": each["dollars"]["planned"],
                "dollars": each["dollars"]["actual"],
            }
            for each in self._told["stages"]
        ]
        told = self._told
        stages = frame(rows, _STAGES, numbers=("seconds", "dollars"))
        return PlannedRun(told["seconds"]["planned"], told["dollars"]["planned"], stages)

    # ---- tables ----------------------------------------------------------------------------

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row a trial, the best first.

        `trial`, `status`, `epochs` (trained), the metric by its name (the best that the trial
        reported; NaN where none), `best_epoch`, `config/NAME` for each parameter, `seconds` (of its
        sessions), `gpu_seconds` and `dollars` (of the bill), `checkpoint` (its last), `error`.
        """
        rows = [self._trial(each) for each in self._told["trials"]]
        parameters = dict.fromkeys(key for row in rows for key in row if key.startswith("config/"))
        metric = _column(self.metric, (*_TRIALS, *_TOLD))
        columns = (*_TRIALS, metric, "best_epoch", *parameters, *_TOLD[1:])
        return frame(rows, columns, numbers=(metric,), counts=("best_epoch",))

    def _trial(self, told: Mapping[str, Any]) -> dict[str, Any]:
        trial, mode = self.report.policy.trials[told["trial"]], self.report.policy.state.mode
        epoch: int | None = None
        for number, value in trial.history.items():
            if better(mode, value, None if epoch is None else trial.history[epoch]):
                epoch = number
        spent = self.report.accounting.trials.get(trial.id, {}).values()
        return {
            "trial": trial.id,
            "status": told["status"],
            "epochs": told["epoch"],
            _column(self.metric, (*_TRIALS, *_TOLD)): None
            if epoch is None
            else trial.history[epoch],
            "best_epoch": epoch,
            **{f"config/{name}": value for name, value in told["config"].items()},
            "seconds": trial.seconds,
            "gpu_seconds": sum(each.gpu_seconds for each in spent),
            "dollars": sum(each.dollars for each in spent),
            "checkpoint": told["checkpoint"],
            "error": told["error"],
        }

    @cached_property
    def history(self) -> pd.DataFrame:
        """A row for each epoch of each trial, in the order in which they ended.

        `trial`, `epoch` (from 1), a column for every metric that the script ever reported (NaN
        where it didn't), `seconds` (of the run, when it ended), `took` (seconds), `width` (GPUs;
        less than 1 is a share of one), `instance` (comma-separated where there are several) and
        `checkpoint`. Of an epoch that was trained again the last counts. A metric that is called as
        one of these columns stands in `metric/NAME`.
        """
        found = sorted(self._epochs.values(), key=lambda each: each.told.at)
        metrics = dict.fromkeys(name for each in found for name in each.told.metrics)
        named = {name: _column(name, _EPOCHS) for name in metrics}
        rows = [
            {
                "trial": each.trial,
                "epoch": each.number,
                **{named[name]: value for name, value in each.told.metrics.items()},
                "seconds": each.told.at,
                "took": each.told.seconds,
                "width": each.width,
                "instance": ",".join(
                    dict.fromkeys(piece.instance for piece in each.session.start.placement)
                ),
                "checkpoint": each.told.checkpoint,
            }
            for each in found
        ]
        return frame(rows, (*_EPOCHS[:2], *named.values(), *_EPOCHS[2:]), numbers=named.values())

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """A row for each use of a GPU by a trial, by instance, GPU and time: its utilisation.

        `instance`, `gpu` (from 0; which physical one that is, no event tells), `begin`, `end`
        (seconds of the run), `trial`, `share` of the GPU, and `use`: training, checkpoint,
        start-up, barrier (it waits for others) or lost. Between the rows the GPU idles, or its
        instance boots or is given back.
        """
        found = gpu_uses(self.report.timeline, self.report.accounting)
        return frame([vars(each) for each in found], _USES)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row: what was found, and how far trials were trained.

        `best`, `best_trial`, `best_epoch`; `trials`, `epochs` of all, `shortest`, `median` and
        `longest` of a trial (epochs); `seconds`, `dollars`; `target`, and `target_at`, the second
        at which it was reached.
        """
        told, target = self.report.summary, self.report.target
        row = {
            **vars(told),
            "seconds": self.report.seconds,
            "dollars": self.report.dollars,
            "target": target and target.value,
            "target_at": target and target.reached_at,
        }
        return frame([row], row, numbers=("best", "target", "target_at"))

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """A row for each instance that was rented, or may have been, in the order of the requests.

        `intent` (the name of its request), `instance` (the cloud's id), `type`, `market`, `zone`,
        `gpus`; `requested`, `launched`, `joined` (took trials) and `gone` (bills no more), seconds
        of the run, NaN where that hasn't happened; `dollars`, and `busy_share` (0 to 1) of its
        GPU-seconds in which trials trained. What a run is charged by the hour is in `cost` alone.
        """
        rows = []
        for account in self.report.accounting.instances:
            known = self.report.timeline.instances[account.intent]
            rows.append(
                {
                    "intent": account.intent,
                    "instance": account.instance,
                    "type": account.offer.instance_type.name,
                    "market": account.offer.market,
                    "zone": known.launch.zone,
                    "gpus": account.offer.gpus,
                    "requested": known.requested_at,
                    "launched": known.launched_at,
                    "joined": known.joined_at,
                    "gone": known.gone_at,
                    "dollars": account.whole.dollars,
                    "busy_share": account.busy_share,
                }
            )
        return frame(rows, _INSTANCES, numbers=("launched", "joined", "gone"))

    # ---- shown -----------------------------------------------------------------------------

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the page that `cloudtune report --html` writes; with `path`, write it there too.

        The page needs nothing else, and no network: plotly.js is in it (5 MB).

        Raises:
            UsageError: plotly isn't installed, or the file can't be written.
        """
        page = reports.run_page(self.report)
        if path is not None:
            document.write(Path(path), page, "to_html")
        return document.Page(page)

    def plot_metric(self, against: Literal["time", "dollars"] = "time") -> Figure:
        """Return the metric of every trial, and the best so far, as a plotly figure.

        `against` the time of the run, or the dollars that it had spent by then.

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
        found = reports.figures(self.report)
        if name not in found:
            raise UsageError(f"{self.name}: nothing to draw yet: the run has just begun")
        return found[name].to_plotly()

    def to_json(self) -> dict[str, Any]:
        """Return what `cloudtune report -o json` tells, the records of the cloud aside."""
        return report.to_json(self.report)

    def __repr__(self) -> str:
        """Return the run in a few lines."""
        return "\n".join([f"Result of {self.name}", *(f"  {a}: {b}" for a, b in self._lines())])

    def _repr_html_(self) -> str:
        """Return the run as a notebook shows it: its figures, and its ten best trials."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(a)}</th>"
            f"<td style='text-align:left'>{html.escape(b)}</td></tr>"
            for a, b in self._lines()
        )
        told = self.trials.dropna(axis="columns", how="all").head(10).to_html(index=False)
        rest = len(self.trials) - 10
        more = f"<p>{rest} more in <code>.trials</code></p>" if rest > 0 else ""
        title = html.escape(self.name)
        return f"<div><b>Result of {title}</b><table>{rows}</table>{told}{more}</div>"

    def _lines(self) -> Iterable[tuple[str, str]]:
        yield "ended", self.ended or "not yet (it goes on, or its controller died)"
        best, plan = self.best, self.plan
        if best is None:
            yield "best", "nothing was reported"
        else:
            config = ", ".join(f"{name}={value}" for name, value in flat(best.config).items())
            value = best.metrics.get(self.metric)
            yield "best", f"{self.metric} {value} ({best.trial}, epoch {best.epoch})"
            yield "config", config
            yield "checkpoint", best.checkpoint or "none"
        took, planned = format_seconds(self.seconds), format_seconds(plan.seconds)
        yield "took", f"{took} (planned {planned})"
        cost, planned = format_dollars(self.cost.dollars), format_dollars(plan.dollars)
        yield "cost", f"{cost} (planned {planned})"
        yield "trials", f"{len(self.trials)}, {len(self.history)} epochs in all"

    @cached_property
    def _told(self) -> dict[str, Any]:
        return self.to_json()

    @cached_property
    def _epochs(self) -> dict[tuple[str, int], Epoch]:
        """The epochs that count, by trial and number: the last, where one was trained again."""
        return self.report.timeline.counted()


@a_guest()
def load_run(name: str | None = None) -> Result:
    """Return the result of a run of this machine: one that ended, goes on, or died.

    `name` is the run's, or an unambiguous beginning of it; without one, the last run.

        result = cloudtune.load_run()
        result.best.config, result.best.checkpoint
        result.history.pivot(index="epoch", columns="trial", values="accuracy").plot()

    Raises:
        UsageError: there is no such run, or several.
        CloudtuneError: its ledger is damaged, or of another version of cloudtune.
    """
    return Result(report.load(home.find_run(name)))


def _column(metric: str, taken: Iterable[str]) -> str:
    """Return the column of a metric, which may be called as one of ours."""
    return f"metric/{metric}" if metric in taken else metric

"""Trials logged while they train: to Weights & Biases, MLflow or TensorBoard.

A reporter like the others. Each library is called on a thread of its own, as it may wait for its
server, which no run waits for.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloudtune.api.exports import scalar_config
from cloudtune.errors import need
from cloudtune.lifecycle.reporter import Reporter
from cloudtune.model.events import EpochDone, TrialFailed, TrialStopped
from cloudtune.model.progress import OVER, trial_of
from cloudtune.runs.control import to_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudtune.model.commands import Command
    from cloudtune.model.events import Event
    from cloudtune.model.progress import TrialProgress
    from cloudtune.policy.run import RunPolicy
    from cloudtune.runs.job import Job

# Seconds for what isn't logged yet when a run has ended.
_LAST_SECONDS = 60.0


def make_live_logs(names: Sequence[str]) -> list[LiveLog]:
    """Return a reporter for each library by its name.

    Raises:
        UsageError: one isn't installed.
    """
    for name in names:
        need(name, f"log_to: [{name}]", name)
    return [LiveLog(name) for name in names]


class TrialLog(Protocol):
    """A library that keeps a run of its own for each trial."""

    where: str

    def begin(self, trial: str, config: Mapping[str, Any]) -> None:
        """Begin the run of a trial, or continue it."""

    def log(self, trial: str, epoch: int, metrics: Mapping[str, float], at: float) -> None:
        """Log the metrics of an epoch; `at` is a Unix time."""

    def end(self, trial: str, status: str, error: str) -> None:
        """End the run of a trial."""

    def close(self) -> None:
        """End what the library has started."""


class LiveLog(Reporter):
    """Logs each epoch's metrics to one library; a failure ends the logging, never the run."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._calls: queue.SimpleQueue[tuple[str, Sequence[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._policy: RunPolicy | None = None
        self._run = ""
        self._began = 0.0
        self._epochs: dict[str, int] = {}

    def on_run_start(self, job: Job, policy: RunPolicy) -> None:
        self.on_run_end()  # of a run that found no room in its region, and goes to the next
        self._policy = policy
        self._run = job.run
        self._began = job.began
        self._epochs = {}
        words = (job.experiment.name, job.run)
        self._thread = threading.Thread(target=self._work, args=words, daemon=True)
        self._thread.start()

    def on_event(self, event: Event, commands: tuple[Command, ...]) -> None:  # noqa: ARG002
        if self._policy is None or not isinstance(event, EpochDone | TrialFailed | TrialStopped):
            return
        trial = self._policy.trials[trial_of(event.session)]
        if isinstance(event, EpochDone):
            self._log_epoch(trial, event)
        if trial.status in OVER:
            self._end_trial(trial)

    def on_run_end(self) -> None:
        if self._thread is None or self._policy is None:
            return
        for name in list(self._epochs):
            self._end_trial(self._policy.trials[name])
        self._calls.put(("", ()))
        self._thread.join(_LAST_SECONDS)
        if self._thread.is_alive():
            self._warn(f"not everything was logged within {_LAST_SECONDS:.0f} s of the run's end")
        self._thread = None

    def _log_epoch(self, trial: TrialProgress, event: EpochDone) -> None:
        """Log an epoch once: one that is trained again, after a loss, was logged before."""
        if trial.id not in self._epochs:
            self._calls.put(("begin", (trial.id, scalar_config(trial))))
            # A resumed run's earlier epochs were logged by the process before this one.
            self._epochs[trial.id] = 0
        if event.epoch > self._epochs[trial.id]:
            self._epochs[trial.id] = event.epoch
            at = self._began + event.at
            self._calls.put(("log", (trial.id, event.epoch, dict(event.metrics), at)))

    def _end_trial(self, trial: TrialProgress) -> None:
        if self._epochs.pop(trial.id, None) is not None:
            self._calls.put(("end", (trial.id, str(trial.status), trial.error)))

    def _work(self, experiment: str, run: str) -> None:
        """Call the library until the run has ended, or a call fails."""
        log: TrialLog | None = None
        try:
            log = _LOGS[self._kind](experiment, run)
            to_stderr(f"Logging to {self._kind}: {log.where}")
            while True:
                method, words = self._calls.get()
                if not method:
                    break
                getattr(log, method)(*words)
        except Exception as error:  # noqa: BLE001  a library may raise anything, and decides nothing
            self._warn(f"{type(error).__name__}: {error}")
        if log is not None:
            with contextlib.suppress(Exception):
                log.close()

    def _warn(self, reason: str) -> None:
        to_stderr(
            f"warning: logging to {self._kind} has ended ({reason}); the run goes on, and "
            f"`cloudtune export {self._run} --to {self._kind}` writes all of it afterwards"
        )


class _Wandb:
    def __init__(self, experiment: str, run: str) -> None:
        import wandb  # noqa: PLC0415  takes a second

        offline = "WANDB_MODE" not in os.environ and not wandb.login(anonymous="never", timeout=0)
        self._wandb = wandb
        self._project = os.environ.get("WANDB_PROJECT", experiment)
        self._run = run
        self._runs: dict[str, Any] = {}
        self._settings = wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False
        )
        if offline:
            self._settings.mode = "offline"
        self.where = f"project {self._project}, group {run}"
        if offline or os.environ.get("WANDB_MODE") == "offline":
            self.where += ", offline: wandb sync wandb/offline-run-*"

    def begin(self, trial: str, config: Mapping[str, Any]) -> None:
        self._runs[trial] = self._wandb.init(
            project=self._project,
            group=self._run,
            name=trial,
            id=f"{self._run}-{trial}",
            config=dict(config),
            settings=self._settings,
            reinit="create_new",
            resume="allow",
        )

    def log(self, trial: str, epoch: int, metrics: Mapping[str, float], at: float) -> None:
        self._runs[trial].log({**metrics, "epoch": epoch, "_timestamp": at}, step=epoch)

    def end(self, trial: str, status: str, error: str) -> None:
        run = self._runs.pop(trial)
        run.config.update({"status": status, "error": error}, allow_val_change=True)
        run.finish(exit_code=1 if error else 0)

    def close(self) -> None:
        self._wandb.teardown()  # its service is a process


class _Mlflow:
    def __init__(self, experiment: str, run: str) -> None:
        from mlflow.tracking import MlflowClient  # noqa: PLC0415  takes seconds

        self.where = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/mlflow.db")
        self._client = MlflowClient(self.where)
        name = f"{experiment}/{run}"
        known = self._client.get_experiment_by_name(name)
        self._experiment = (
            self._client.create_experiment(name) if known is None else known.experiment_id
        )
        self._runs: dict[str, str] = {}
        self.where += f", experiment {name}"

    def begin(self, trial: str, config: Mapping[str, Any]) -> None:
        by_name = f"tags.mlflow.runName = '{trial}'"
        found = self._client.search_runs([self._experiment], by_name)
        if found:
            self._runs[trial] = found[0].info.run_id
            self._client.update_run(self._runs[trial], "RUNNING")
            return
        run = self._client.create_run(self._experiment, run_name=trial).info.run_id
        self._runs[trial] = run
        for name, value in config.items():
            self._client.log_param(run, name, value)

    def log(self, trial: str, epoch: int, metrics: Mapping[str, float], at: float) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._runs[trial], name, value, round(1000 * at), epoch)

    def end(self, trial: str, status: str, error: str) -> None:
        run = self._runs.pop(trial)
        self._client.set_tag(run, "status", status)
        if error:
            self._client.set_tag(run, "error", error)
        self._client.set_terminated(run, "FAILED" if error else "FINISHED")

    def close(self) -> None:
        pass


class _Tensorboard:
    def __init__(self, experiment: str, run: str) -> None:  # noqa: ARG002
        self._folder = Path("tensorboard", run).absolute()
        self._writers: dict[str, Any] = {}
        self.where = f"tensorboard --logdir {self._folder}"

    def begin(self, trial: str, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  torch takes seconds

        writer = SummaryWriter(str(self._folder / trial), flush_secs=5)
        self._writers[trial] = writer
        lines = [f"    {name}: {value}" for name, value in config.items()]
        writer.add_text("config", "\n".join(lines))

    def log(self, trial: str, epoch: int, metrics: Mapping[str, float], at: float) -> None:
        for name, value in metrics.items():
            self._writers[trial].add_scalar(name, value, epoch, walltime=at)

    def end(self, trial: str, status: str, error: str) -> None:
        writer = self._writers.pop(trial)
        writer.add_text("status", f"{status} {error}".strip())
        writer.close()

    def close(self) -> None:
        for writer in self._writers.values():  # each has a thread
            writer.close()


_LOGS: Mapping[str, Callable[[str, str], TrialLog]] = {
    "wandb": _Wandb,
    "mlflow": _Mlflow,
    "tensorboard": _Tensorboard,
}

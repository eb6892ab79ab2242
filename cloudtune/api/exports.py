"""Export a run's trials, with every metric of every epoch, to other programs.

Each format is written by its own library, which is imported on first use.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cloudtune.api.results import Result
from cloudtune.engine.record.timeline import EpochSpan
from cloudtune.errors import CloudtuneError, UsageError, need
from cloudtune.model.plain_text import clean_output
from cloudtune.model.progress import TrialProgress
from cloudtune.model.text import count_noun
from cloudtune.model.trial import flat
from cloudtune.private_files import for_others

# Formats that need an extra of cloudtune, by the name of its module.
_OPTIONAL = ("tensorboard", "mlflow", "wandb")
# The tables of a `Result` that are exported.
_TABLES = ("trials", "history", "gpus", "summary")
# Maximum number of metrics per request to MLflow.
_BATCH = 1000


def export_run(result: Result, kind: str, target: str) -> str:
    """Export a run to a folder; return a sentence that says where.

    `kind` is csv, parquet, tensorboard, mlflow or wandb. `target` is a folder, which is created;
    for mlflow it may be the URI of a store. In tensorboard, mlflow and wandb each trial becomes a
    run: its configuration as hyperparameters, its metrics by epoch, and how it ended.

    Raises:
        UsageError: unknown format, its library isn't installed, or the folder can't be written.
    """
    if kind not in _WRITERS:
        raise UsageError(f"unknown format {kind}; choose one of {', '.join(_WRITERS)}")
    if kind in _OPTIONAL:
        need(kind, f"--to {kind}", kind)
    try:
        with for_others():
            if "://" not in target:
                Path(target).mkdir(parents=True, exist_ok=True)
            elif kind != "mlflow":
                raise UsageError(f"--out {target} must be a folder; only mlflow accepts a URI")
            return _WRITERS[kind](result, target)
    except OSError as error:
        raise UsageError(
            f"can't write to --out {target} ({error.strerror or error}); choose a folder that you "
            "own"
        ) from None


def _trials(result: Result) -> Sequence[TrialProgress]:
    return result.report.best_first()


def _config(trial: TrialProgress) -> dict[str, bool | int | float | str]:
    """Return the configuration with flat names such as `optimizer/lr` and scalar values."""
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in flat(trial.trial.config).items()
    }


def _about(result: Result, trial: TrialProgress) -> dict[str, str]:
    tags = {"cloudtune.run": result.name, "cloudtune.trial": trial.id, "status": str(trial.status)}
    if trial.error:
        tags["error"] = trial.error
    if trial.checkpoint:
        tags["checkpoint"] = trial.checkpoint
    return tags


def _csv(result: Result, target: str) -> str:
    for name in _TABLES:
        frame = getattr(result, name).copy()
        for column in frame.select_dtypes(exclude="number").columns:
            frame[column] = frame[column].map(_cell)
        frame.rename(columns=_cell).to_csv(Path(target, f"{name}.csv"), index=False)
    return _wrote("csv", target)


def _cell(value: Any) -> Any:
    """Return a cell without escapes that spreadsheets don't take for a formula, as UTF-8 can be."""
    if not isinstance(value, str):
        return value
    text = clean_output(value).encode(errors="backslashreplace").decode()
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _wrote(suffix: str, target: str) -> str:
    *first, last = (f"{name}.{suffix}" for name in _TABLES)
    return f"Wrote {', '.join(first)} and {last} to {target}"


def _has_mixed_types(column: Any) -> bool:
    types = {type(value) for value in column.dropna()}
    return column.dtype == object and len(types) > 1


def _parquet(result: Result, target: str) -> str:
    for name in _TABLES:
        frame = getattr(result, name)
        # A column of mixed types, as from a choice of "none" and 3, becomes text.
        mixed = [name for name in frame.columns if _has_mixed_types(frame[name])]
        table = frame.astype(dict.fromkeys(mixed, "string"))
        table.to_parquet(Path(target, f"{name}.parquet"), index=False)
    return _wrote("parquet", target)


def _tensorboard(result: Result, target: str) -> str:
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  torch takes seconds
    from torch.utils.tensorboard.summary import hparams  # noqa: PLC0415

    began = result.report.job.began
    epochs = result.report.epochs_by_trial
    frame = result.trials.set_index("trial")
    own = f"metric/{result.metric}"  # if it has the name of one of our columns
    column = own if own in frame.columns else result.metric
    best = {str(trial): float(best) for trial, best in frame[column].dropna().items()}
    for trial in _trials(result):
        folder = Path(target, trial.id)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()  # of an earlier export; TensorBoard would show both
        with SummaryWriter(str(folder)) as writer:
            for epoch in epochs.get(trial.id, ()):
                for name, value in epoch.report.metrics.items():
                    writer.add_scalar(name, value, epoch.number, walltime=began + epoch.report.at)
            figures = {f"best/{result.metric}": best[trial.id]} if trial.id in best else {}
            for part in hparams(_config(trial), figures):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(part)
            for name, value in figures.items():
                writer.add_scalar(name, value, 0)
            if trial.error:
                writer.add_text("error", trial.error)
    return f"Wrote {count_noun(len(_trials(result)), 'trial')}: tensorboard --logdir {target}"


def _mlflow(result: Result, target: str) -> str:
    remote = "://" in target
    store = target if remote else f"sqlite:///{Path(target).absolute()}/mlflow.db"
    files = None if remote else Path(target).absolute().joinpath("artifacts").as_uri()
    # Creates its tables without log lines, and sends no telemetry.
    with _variables(
        MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true", MLFLOW_LOGGING_LEVEL="WARNING"
    ):
        from mlflow.exceptions import MlflowException  # noqa: PLC0415
        from mlflow.tracking import MlflowClient  # noqa: PLC0415

        try:
            client = MlflowClient(store)
            if client.get_experiment_by_name(result.name) is not None:
                raise UsageError(f"--out {target} already has an export of {result.name}")
            experiment = client.create_experiment(result.name, artifact_location=files)
            epochs = result.report.epochs_by_trial
            for trial in _trials(result):
                _log(result, client, experiment, trial, epochs.get(trial.id, []))
        except MlflowException as error:
            raise CloudtuneError(f"MLflow at {store}: {error}") from error
    shown = store if remote else f"mlflow ui --backend-store-uri {store}"
    return f"Wrote {count_noun(len(_trials(result)), 'trial')}: {shown}"


def _log(
    result: Result, client: Any, experiment: str, trial: TrialProgress, epochs: Sequence[EpochSpan]
) -> None:
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

    times = [_millis(result, epoch.report.at) for epoch in epochs]
    run = client.create_run(
        experiment, start_time=min(times, default=_millis(result, 0.0)), run_name=trial.id
    ).info.run_id
    metrics = [
        Metric(name, value, at, epoch.number)
        for epoch, at in zip(epochs, times, strict=True)
        for name, value in epoch.report.metrics.items()
    ]
    params = [Param(name, str(value)) for name, value in _config(trial).items()]
    tags = [RunTag(name, value) for name, value in _about(result, trial).items()]
    client.log_batch(run, params=params, tags=tags)
    for begin in range(0, len(metrics), _BATCH):
        client.log_batch(run, metrics=metrics[begin : begin + _BATCH])
    client.set_terminated(run, "FAILED" if trial.error else "FINISHED", max(times, default=None))


def _millis(result: Result, at: float) -> int:
    return round(1000 * (result.report.job.began + at))


def _wandb(result: Result, target: str) -> str:
    epochs = result.report.epochs_by_trial
    with tempfile.TemporaryDirectory() as scratch, _wandb_in(scratch):
        import wandb  # noqa: PLC0415

        settings = wandb.Settings(
            mode="offline", silent=True, console="off", disable_git=True, save_code=False
        )
        try:
            for trial in _trials(result):
                run = wandb.init(
                    project=result.report.job.experiment.name,
                    group=result.name,
                    name=trial.id,
                    id=f"{result.name}-{trial.id}",
                    dir=target,
                    config=_config(trial),
                    settings=settings,
                    reinit="finish_previous",
                )
                run.config.update(_about(result, trial))
                for epoch in epochs.get(trial.id, ()):
                    values = {**epoch.report.texts, **epoch.report.metrics, "epoch": epoch.number}
                    run.log(values, step=epoch.number)
                run.finish(exit_code=1 if trial.error else 0)
        finally:
            wandb.teardown()  # its service is a process
    count = count_noun(len(_trials(result)), "trial")
    return f"Wrote {count}, offline: wandb sync {target}/wandb/offline-run-*"


def _wandb_in(scratch: str) -> contextlib.AbstractContextManager[None]:
    """Point the library's caches to a temporary folder, and turn off its error reports."""
    names = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    return _variables(**dict.fromkeys(names, scratch), WANDB_ERROR_REPORTING="false")


@contextlib.contextmanager
def _variables(**own: str) -> Iterator[None]:
    """Set environment variables that the user hasn't set, for the duration of the context."""
    new = {name: value for name, value in own.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


_WRITERS: dict[str, Callable[[Result, str], str]] = {
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}

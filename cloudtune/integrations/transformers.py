"""Hugging Face's Trainer under cloudtune: cloudtune.integrations.transformers.Trainer.

It replaces `transformers.Trainer`; `prepare(trainer)` does the same for other classes. It keeps the
total batch of all workers, and reports each epoch with the metrics of the evaluation. The
checkpoint is Hugging Face's own folder: model, optimizer, schedule and state.
"""

import contextlib
import functools
import tempfile
from pathlib import Path
from typing import Any, Final, TypeVar

from cloudtune.errors import UsageError
from cloudtune.train.calls import epochs, get_checkpoint, get_context, report
from cloudtune.train.checkpoint import Checkpoint

try:
    import transformers
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy
except ImportError as error:
    raise UsageError(
        f"cloudtune.integrations.transformers needs transformers and accelerate ({error}): "
        "pip install 'cloudtune[transformers]'"
    ) from error

_OF_NO_INTEREST: Final = ("epoch", "_runtime", "_per_second")
TrainerT = TypeVar("TrainerT", bound=transformers.Trainer)


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """transformers' Trainer, prepared: see `prepare`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        prepare(self)


def prepare(trainer: TrainerT) -> TrainerT:
    """Make a trainer report to cloudtune and resume from checkpoints; return it.

    `per_device_train_batch_size` becomes the total of all workers: each takes its share, at least
    1. A step's loss is the mean of the workers' means. The epochs are the experiment's
    `epochs.max`; each ends with an evaluation, if there is an evaluation set, and a save. The
    metrics are those of the last evaluation (`eval_loss`, `eval_…` of compute_metrics) and of the
    last log (`loss`, …).
    """
    args = trainer.args
    context = get_context()
    batch = max(1, args.per_device_train_batch_size // context.get_world_size())
    args.per_device_train_batch_size = batch
    trainer._train_batch_size = args.train_batch_size  # noqa: SLF001  as its own search does
    # transformers multiplies a worker's loss by the number of workers, and trusts the model to have
    # divided by the items of all. Many (BERT's classifier) don't, and would learn wrongly.
    args.average_tokens_across_devices = False
    args.num_train_epochs = context.get_max_epochs()
    args.max_steps = -1
    args.save_strategy = SaveStrategy.EPOCH
    args.save_only_model = False
    args.save_total_limit = 1
    args.output_dir = tempfile.mkdtemp(prefix="cloudtune-")  # each worker's own
    if trainer.eval_dataset is not None:
        args.eval_strategy = IntervalStrategy.EPOCH
    if context.get_trial_id() != "alone":  # a bar makes no good log
        trainer.remove_callback(transformers.ProgressCallback)
    trainer.add_callback(ReportCallback())
    trainer.train = functools.partial(_train, trainer.train)
    return trainer


def _train(train: Any, resume_from_checkpoint: Any = None, **named: Any) -> Any:
    """Train, from the trial's checkpoint where it has one."""
    checkpoint = get_checkpoint()
    with contextlib.ExitStack() as stack:
        if checkpoint is not None:
            resume_from_checkpoint = stack.enter_context(checkpoint.as_directory())
        return train(resume_from_checkpoint=resume_from_checkpoint, **named)


class ReportCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Reports each save with the metrics of the last evaluation; `prepare` adds it.

    On its own it needs `save_strategy="epoch"` and, for metrics, `eval_strategy="epoch"`.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin the first epoch: what came before is set-up."""
        next(epochs(), None)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Take note of what is logged, which is what evaluations give as well."""
        for name, value in (logs or {}).items():
            if isinstance(value, int | float) and not name.endswith(_OF_NO_INTEREST):
                self._metrics[name] = float(value)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Report; unwinds `train()` where the trial stops here."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        is_first = state.is_world_process_zero
        checkpoint = Checkpoint.from_directory(folder) if is_first else None
        report(self._metrics, checkpoint)

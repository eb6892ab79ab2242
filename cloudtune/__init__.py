"""The best model that a deadline and a dollar budget can buy, on GPUs rented by the second.

Here stand the names that a training script uses. A name is imported when it is first asked for, so
`import cloudtune` costs a worker nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtune.errors import CloudtuneError
    from cloudtune.experiment import Experiment
    from cloudtune.train.batch_scaling import batch_and_lr
    from cloudtune.train.checkpoint import Checkpoint
    from cloudtune.train.session import (
        StopTraining,
        epochs,
        get_checkpoint,
        get_context,
        is_leaving,
        prepare_data_loader,
        prepare_model,
        report,
        save,
    )

__all__ = [
    "Checkpoint",
    "CloudtuneError",
    "Experiment",
    "StopTraining",
    "batch_and_lr",
    "epochs",
    "get_checkpoint",
    "get_context",
    "is_leaving",
    "prepare_data_loader",
    "prepare_model",
    "report",
    "save",
]

_HOMES = {
    "Checkpoint": "cloudtune.train.checkpoint",
    "CloudtuneError": "cloudtune.errors",
    "Experiment": "cloudtune.experiment",
    "batch_and_lr": "cloudtune.train.batch_scaling",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'cloudtune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "cloudtune.train.session")), name)
    globals()[name] = value
    return value

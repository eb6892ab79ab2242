"""The best model that a deadline and a dollar budget can buy, on GPUs rented by the second.

It has the names for training scripts, and those with which a program plans and runs. A name is
imported on first use, so `import cloudtune` costs a worker nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtune import fused as fused
    from cloudtune import models as models
    from cloudtune.api.optimize import optimize
    from cloudtune.api.plans import Plan, plan
    from cloudtune.api.results import Result, load_run
    from cloudtune.api.runs import resume, run
    from cloudtune.errors import CloudtuneError, DetachedError
    from cloudtune.experiment import Experiment
    from cloudtune.lifecycle.reporter import Reporter
    from cloudtune.planners.base import InfeasibleError
    from cloudtune.train.batch_scaling import GrowingBatch, batch_and_lr
    from cloudtune.train.calls import (
        epochs,
        get_checkpoint,
        get_context,
        is_leaving,
        report,
        save,
        save_due,
    )
    from cloudtune.train.checkpoint import Checkpoint
    from cloudtune.train.models.inheriting import inherit
    from cloudtune.train.session import StopTraining
    from cloudtune.train.torch import (
        backward,
        enable_reproducibility,
        get_device,
        prepare_data_loader,
        prepare_model,
        prepare_optimizer,
    )

__all__ = [
    "Checkpoint",
    "CloudtuneError",
    "DetachedError",
    "Experiment",
    "GrowingBatch",
    "InfeasibleError",
    "Plan",
    "Reporter",
    "Result",
    "StopTraining",
    "__version__",
    "backward",
    "batch_and_lr",
    "enable_reproducibility",
    "epochs",
    "fused",
    "get_checkpoint",
    "get_context",
    "get_device",
    "inherit",
    "is_leaving",
    "load_run",
    "models",
    "optimize",
    "plan",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
    "report",
    "resume",
    "run",
    "save",
    "save_due",
]

_HOMES = {
    "Checkpoint": "cloudtune.train.checkpoint",
    "CloudtuneError": "cloudtune.errors",
    "DetachedError": "cloudtune.errors",
    "Experiment": "cloudtune.experiment",
    "InfeasibleError": "cloudtune.planners.base",
    "Plan": "cloudtune.api.plans",
    "Reporter": "cloudtune.lifecycle.reporter",
    "Result": "cloudtune.api.results",
    "StopTraining": "cloudtune.train.session",
    "backward": "cloudtune.train.torch",
    "GrowingBatch": "cloudtune.train.batch_scaling",
    "batch_and_lr": "cloudtune.train.batch_scaling",
    "enable_reproducibility": "cloudtune.train.torch",
    "get_device": "cloudtune.train.torch",
    "inherit": "cloudtune.train.models.inheriting",
    "load_run": "cloudtune.api.results",
    "fused": "cloudtune.fused",
    "models": "cloudtune.models",
    "optimize": "cloudtune.api.optimize",
    "plan": "cloudtune.api.plans",
    "prepare_data_loader": "cloudtune.train.torch",
    "prepare_model": "cloudtune.train.torch",
    "prepare_optimizer": "cloudtune.train.torch",
    "resume": "cloudtune.api.runs",
    "run": "cloudtune.api.runs",
}


# The installed version, as in "0.2.0".
__version__: str


def __getattr__(name: str) -> Any:
    if name in ("fused", "integrations", "models", "train"):  # `import cloudtune` is enough
        return importlib.import_module(f"cloudtune.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'cloudtune' has no attribute {name!r}")
    if name == "__version__":
        value = importlib.import_module("importlib.metadata").version("cloudtune")
    else:
        value = getattr(importlib.import_module(_HOMES.get(name, "cloudtune.train.calls")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "integrations", "train"})

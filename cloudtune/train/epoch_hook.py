"""What is called at the end of each epoch, where the environment names something."""

import importlib
import os
from collections.abc import Callable
from typing import Final, cast

from cloudtune.errors import UsageError

HOOK_VARIABLE: Final = "CLOUDTUNE_EPOCH_HOOK"


def load_epoch_hook() -> Callable[..., object] | None:
    """Return what the environment names as module:factory; None where it names nothing.

    It is called on every rank at the end of each epoch, before the epoch's report is delivered, as
    `hook(trial=, epoch=, width=, nodes=, elapsed=)`: `elapsed` is in seconds since the epoch began,
    and epoch 0 is the set-up of the worker.

    Raises:
        UsageError: it is written in another way.
    """
    spec = os.environ.get(HOOK_VARIABLE)
    if spec is None:
        return None
    module, _, factory = spec.partition(":")
    if not module or not factory:
        raise UsageError(f"{HOOK_VARIABLE} is {spec!r}; write it as module:factory")
    return cast("Callable[..., object]", getattr(importlib.import_module(module), factory)())

"""What is called at the end of each epoch, where the environment names something."""

import importlib
import os
from typing import Final, Protocol, cast

from cloudtune.errors import UsageError

HOOK_VARIABLE: Final = "CLOUDTUNE_EPOCH_HOOK"


class EpochHook(Protocol):
    """Called on every rank at the end of each epoch, before the epoch's report is delivered."""

    def __call__(
        self, *, trial: str, epoch: int, width: float, nodes: int, elapsed: float
    ) -> object:
        """`elapsed` is in seconds since the epoch began; epoch 0 is the set-up of the worker."""


def load_epoch_hook() -> EpochHook | None:
    """Return what the environment names as module:factory; None where it names nothing.

    Raises:
        UsageError: it is written in another way.
    """
    spec = os.environ.get(HOOK_VARIABLE)
    if spec is None:
        return None
    module, _, factory = spec.partition(":")
    if not module or not factory:
        raise UsageError(f"{HOOK_VARIABLE} is {spec!r}; write it as module:factory")
    return cast("EpochHook", getattr(importlib.import_module(module), factory)())

"""What a script takes of cloudtune to train trials of one shape as one batched model.

The names of `cloudtune.train.fused`, imported when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtune.train.fused import SGD, Adam, AdamW, Group, dropout, train

__all__ = ["SGD", "Adam", "AdamW", "Group", "dropout", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'cloudtune.fused' has no attribute {name!r}")
    return getattr(importlib.import_module("cloudtune.train.fused"), name)

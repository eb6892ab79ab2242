"""Models that differ only in numbers, trained as one batched model: docs/fused.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtune.train.fused.dropping import dropout
    from cloudtune.train.fused.group import Group
    from cloudtune.train.fused.optimizers import SGD, Adam, AdamW
    from cloudtune.train.fused.state import MemberState

__all__ = ["SGD", "Adam", "AdamW", "Group", "MemberState", "dropout"]

_HOMES = {"dropout": "dropping", "Group": "group", "MemberState": "state"}


def __getattr__(name: str) -> Any:
    # On first use: a plan looks at the names here without importing torch.
    if name not in __all__:
        raise AttributeError(f"module 'cloudtune.fused' has no attribute {name!r}")
    module = importlib.import_module(f"cloudtune.train.fused.{_HOMES.get(name, 'optimizers')}")
    return getattr(module, name)

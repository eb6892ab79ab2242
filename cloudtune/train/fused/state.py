"""A member's state: that of an ordinary model and of torch's own optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map_only


@dataclass(frozen=True)
class MemberState:
    """The state of one member: all that it needs to continue elsewhere.

    `model` is the state_dict of an ordinary model, `optimizer` that of torch's own optimizer, empty
    before the first step. `settings` are buffers outside the state_dict (the rate of a dropout).
    """

    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> "MemberState":
        """Return the present state of a model that trains alone."""
        persistent = model.state_dict()
        settings = {
            name: buffer for name, buffer in model.named_buffers() if name not in persistent
        }
        return cls(
            model=_copy(persistent),
            optimizer=_copy({} if optimizer is None else optimizer.state_dict()),
            settings=_copy(settings),
        )

    def load_into(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Load this member into a model and its optimizer, including its numbers."""
        model.load_state_dict(dict(self.model))
        if optimizer is not None and self.optimizer:
            optimizer.load_state_dict(_copy(self.optimizer))


def _copy(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), value)

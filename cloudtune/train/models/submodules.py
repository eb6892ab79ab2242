"""Changes the submodules of a network, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def put(network: torch.nn.Module, name: str, block: torch.nn.Module) -> None:
    """Put a block where a submodule is."""
    above, _, last = name.rpartition(".")
    setattr(network.get_submodule(above), last, block)

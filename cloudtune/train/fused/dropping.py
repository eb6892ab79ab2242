"""Dropout with a rate for each member."""

import torch


class Dropout(torch.nn.Module):
    """Dropout with its rate in a buffer; a group has one for each member."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"a dropout rate of {p} isn't from 0 to below 1")
        self.p: torch.Tensor
        self.register_buffer("p", torch.tensor(float(p)), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the input of any shape, with parts of it zeroed in training."""
        if not self.training:
            return inputs
        keep_rate = 1 - self.p.to(inputs.dtype)
        return inputs * (torch.rand_like(inputs) < keep_rate) / keep_rate


def dropout(p: float = 0.5) -> torch.nn.Module:
    """Return a dropout module whose rate may differ between members.

    It works like `torch.nn.Dropout`. Its state doesn't have the rate: the configuration does.

    Raises:
        ValueError: the rate isn't from 0 to below 1.
    """
    return Dropout(p)

"""Optimizers as numbers: torch's own for a single trial, and the same steps for many at once.

The steps are those of torch.optim (SGD; Adam: Kingma and Ba, ICLR 2015; AdamW: Loshchilov and
Hutter, ICLR 2019), in its order of operations. A number there is a tensor of shape (members,) here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class _Numbers:
    """The numbers of one of torch's optimizers, `TORCH`; its state has tensors called `SLOTS`."""

    TORCH: ClassVar[type[torch.optim.Optimizer]]
    SLOTS: ClassVar[tuple[str, ...]]

    @property
    def kind(self) -> str:
        """What members of a group have in common."""
        return type(self).__name__

    def options(self) -> dict[str, Any]:
        """Return these numbers as in the parameter groups of torch's optimizer."""
        return asdict(self)

    def alone(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return self.TORCH(parameters, **self.options())

    def keeps(self, slot: str) -> bool:
        """Whether torch's optimizer has that tensor in its state."""
        return slot in self.SLOTS


@dataclass(frozen=True)
class SGD(_Numbers):
    """Stochastic gradient descent, as `torch.optim.SGD` without dampening.

    Members may differ in all but `nesterov`.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    TORCH = torch.optim.SGD
    SLOTS = ("momentum_buffer",)

    @property
    def kind(self) -> str:
        return f"SGD nesterov={self.nesterov}"

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers in which members may differ."""
        return {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}

    def keeps(self, slot: str) -> bool:
        return super().keeps(slot) and self.momentum != 0

    def step(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        slots: Tensors,
        numbers: Tensors,
        steps: torch.Tensor,  # noqa: ARG002  its first step is like the others
    ) -> None:
        """Change a parameter of all members, of shape (members, …), in place."""
        number = _broadcast(numbers, parameter)
        gradient = gradient + number["weight_decay"] * parameter
        buffer = slots["momentum_buffer"]
        buffer.mul_(number["momentum"]).add_(gradient)
        step = gradient + number["momentum"] * buffer if self.nesterov else buffer
        parameter.sub_(number["lr"] * step)


@dataclass(frozen=True)
class Adam(_Numbers):
    """Adam, as `torch.optim.Adam` without amsgrad. Members may differ in all numbers."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    TORCH: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    SLOTS = ("exp_avg", "exp_avg_sq")
    DECOUPLED: ClassVar[bool] = False

    @property
    def numbers(self) -> dict[str, float]:
        beta1, beta2 = self.betas
        others = {"lr": self.lr, "eps": self.eps, "weight_decay": self.weight_decay}
        return {**others, "beta1": beta1, "beta2": beta2}

    def step(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        slots: Tensors,
        numbers: Tensors,
        steps: torch.Tensor,
    ) -> None:
        """Change a parameter of all members, of shape (members, …), in place.

        `steps` is how many each has taken, including this one.
        """
        beta1 = numbers["beta1"]
        beta2 = numbers["beta2"]
        scale = numbers["lr"] / (1 - beta1**steps)
        number = _broadcast(
            {**numbers, "scale": scale, "root": (1 - beta2**steps).sqrt()}, parameter
        )
        if self.DECOUPLED:
            parameter.mul_(1 - number["lr"] * number["weight_decay"])
        else:
            gradient = gradient + number["weight_decay"] * parameter
        mean = slots["exp_avg"]
        square = slots["exp_avg_sq"]
        mean.lerp_(gradient, (1 - number["beta1"]).expand_as(mean))
        square.mul_(number["beta2"]).add_((1 - number["beta2"]) * gradient * gradient)
        below = (square.sqrt() / number["root"]).add_(number["eps"])
        parameter.sub_(number["scale"] * mean / below)


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW, as `torch.optim.AdamW` without amsgrad. Members may differ in all numbers."""

    weight_decay: float = 1e-2

    TORCH = torch.optim.AdamW
    DECOUPLED = True


Optimizer = SGD | Adam


def _broadcast(numbers: Tensors, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return numbers of shape (members,) with axes that broadcast over a parameter's own.

    They are computed in 64 bits, as torch computes with Python's numbers, and rounded last.
    """
    shape = (-1, *(1,) * (parameter.dim() - 1))
    return {name: number.to(parameter.dtype).view(shape) for name, number in numbers.items()}


def stacked_numbers(members: Sequence[Mapping[str, float]], device: str) -> dict[str, torch.Tensor]:
    """Return each number of all members as a tensor of shape (members,), in 64 bits."""
    stacked = {}
    for name in members[0] if members else ():
        numbers = [member[name] for member in members]
        stacked[name] = torch.tensor(numbers, dtype=torch.float64, device=device)
    return stacked

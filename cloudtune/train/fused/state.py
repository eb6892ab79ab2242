"""A member's state: that of an ordinary model and of torch's own optimizer, and as bytes."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cloudtune.train.fused.optimizers import Optimizer

FILE = "state.pt"
"""The file of a checkpoint: what `torch.load` gives is {"model": …, "optimizer": …}."""


@dataclass(frozen=True)
class MemberState:
    """What one member is made of: all that it needs to train anywhere else.

    `model` is the state_dict of an ordinary model, `optimizer` that of torch's own optimizer, empty
    before the first step. `settings` are buffers that no state_dict has (the rate of a dropout).
    """

    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> MemberState:
        """Return the state of a model that trains alone, as it is now."""
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
        """Make a model and its optimizer this member, to train on alone; numbers included."""
        model.load_state_dict(dict(self.model))
        if optimizer is not None and self.optimizer:
            optimizer.load_state_dict(_copy(self.optimizer))

    def to_bytes(self) -> bytes:
        """Return model and optimizer as `torch.save` writes them, on the CPU."""
        return to_bytes({"model": dict(self.model), "optimizer": dict(self.optimizer)})

    @classmethod
    def from_bytes(cls, data: bytes) -> MemberState:
        """Return the state that `to_bytes` was given.

        Raises:
            pickle.UnpicklingError: there is anything else in it than tensors, numbers and names.
        """
        return cls(**from_bytes(data))


def to_bytes(tree: Mapping[str, Any]) -> bytes:
    """Return tensors, numbers and names, nested or not, as `torch.save` writes them, on the CPU."""
    file = io.BytesIO()
    torch.save(_copy(tree, "cpu"), file)
    return file.getvalue()


def from_bytes(data: bytes) -> dict[str, Any]:
    """Return what `to_bytes` was given, on the CPU.

    Raises:
        pickle.UnpicklingError: it has other objects.
    """
    tree: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return tree


def with_numbers(optimizer: torch.optim.Optimizer, numbers: Optimizer) -> None:
    """Give an optimizer that was restored the numbers of this configuration again."""
    for group in optimizer.param_groups:
        group.update(numbers.options())


def _copy(value: Any, device: str | None = None) -> Any:
    if isinstance(value, dict):
        return {key: _copy(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(part, device) for part in value)
    if isinstance(value, torch.Tensor):
        return value.detach().to(device or value.device, copy=True)
    return value


# ---- what members have in common -----------------------------------------------------------


class Watched(dict[str, Any]):
    """A configuration that notes in `read` which of its values are read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.read: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        self.read[key] = super().get(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read[key] = super().get(key)
        return super().get(key, default)

    def _all(self) -> dict[str, Any]:
        self.read = dict(zip(super().keys(), super().values(), strict=True))
        return self.read

    def __iter__(self) -> Any:
        return iter(self._all())

    def items(self) -> Any:
        """Return all keys and values, as a dict does."""
        return self._all().items()

    def values(self) -> Any:
        return self._all().values()


def signature(
    model: torch.nn.Module,
    optimizer: Optimizer,
    read: Mapping[str, Any],
    functions: Iterable[Callable[..., Any] | None],
) -> str:
    """Return what members of one group must have in common, as a short digest.

    Shapes and kinds of all parameters and buffers; of each module its class and what it was made
    with; the optimizer's kind; what the data was `read` by from the configuration; and what
    `functions` have taken from around them. What can't be compared by its text makes trials differ:
    they then train beside each other, as packed trials do.
    """
    usual = set(vars(torch.nn.Module()))
    parts: list[object] = [
        optimizer.kind,
        sorted(_plain(dict(read))),
        [_plain(function) for function in functions],
    ]
    for name, module in model.named_modules():
        options = {key: value for key, value in vars(module).items() if key not in usual}
        parts += [name, type(module).__qualname__, module.training, _plain(options)]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        parts += [name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return a value as what compares by its text."""
    if isinstance(value, partial):
        return ["partial", _plain(value.func), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, FunctionType):
        around = [_plain(cell.cell_contents) for cell in value.__closure__ or ()]
        return [value.__module__, value.__qualname__, around, _plain(value.__defaults__)]
    if isinstance(value, dict):
        return [[str(key), _plain(part)] for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().numpy().tobytes()
        return [tuple(value.shape), hashlib.sha256(data).hexdigest()]
    return repr(value)

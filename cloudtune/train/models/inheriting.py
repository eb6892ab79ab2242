"""Weights that a network inherits from another, by name and shape, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError, quote
from cloudtune.train.models.ready import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Inherited:
    """Tensors by name: `taken` from the other network, `new` as initialised, or `left` unused."""

    taken: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether it is the same network, so that the optimizer's state fits too."""
        return not (self.new or self.left)

    def __str__(self) -> str:
        text = f"{len(self.taken)} tensors taken over"
        more = (("new", self.new), ("left", self.left))
        return ", ".join([text, *(f"{len(names)} {word}" for word, names in more if names)])


def inherit(model: torch.nn.Module, state_dict: Mapping[str, Any]) -> Inherited:
    """Load another model's weights where names and shapes agree; return what was taken.

    Tensors with another shape, or without a counterpart, keep their initialisation.

    Raises:
        UsageError: nothing fits at all.
    """
    import torch  # noqa: PLC0415

    own = {name: value for name, value in model.state_dict().items() if torch.is_tensor(value)}
    theirs = {name: value for name, value in state_dict.items() if torch.is_tensor(value)}
    partners = dict(_partners(own, theirs))
    taken = []
    with torch.no_grad():
        for name, partner in partners.items():
            source = theirs[partner]
            tensor = own[name]
            if source.shape == tensor.shape:
                tensor.copy_(source)
                taken.append(name)
    used = {partners[name] for name in taken}
    if not used and own:
        raise UsageError(
            f"nothing of it fits the model: the state has {_some(state_dict)}, the model "
            f"{_some(own)}; give the state_dict() of a model"
        )
    return Inherited(
        tuple(taken),
        tuple(name for name in own if name not in taken),
        tuple(name for name in theirs if name not in used),
    )


def _some(names: Mapping[str, Any]) -> str:
    return quote(", ".join(names)) if names else "nothing"


def _partners(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yield matching names; a module wrapped by an insertion matches by its old name."""
    bare: dict[str, list[str]] = {}
    for name in theirs:
        bare.setdefault(_plain_name(name), []).append(name)
    for name in own:
        candidates = [name] if name in theirs else bare.get(_plain_name(name), [])
        free = [candidate for candidate in candidates if candidate == name or candidate not in own]
        if len(free) == 1:
            yield name, free[0]


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != KEPT)

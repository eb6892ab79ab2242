"""Weights that a network takes over from another, by name and shape, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtune.errors import UsageError, shown
from cloudtune.train.models.ready import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Inherited:
    """What became of each tensor, by its name.

    `taken` as they were, `resized` to another width, `new` as they were initialised, `left` in the
    other network's state, which has no use for them here.
    """

    taken: tuple[str, ...]
    resized: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether it is the same network, so that the optimizer's state fits as well."""
        return not (self.resized or self.new or self.left)

    def __str__(self) -> str:
        text = f"{len(self.taken)} tensors taken over"
        more = (("resized", self.resized), ("new", self.new), ("left", self.left))
        return ", ".join([text, *(f"{len(names)} {word}" for word, names in more if names)])


def inherit(
    model: torch.nn.Module, state_dict: Mapping[str, Any], *, resize: bool = False
) -> Inherited:
    """Have a model begin from another's weights where names and shapes agree; tell what was taken.

    What has another shape, or no counterpart, stays as it was initialised. With `resize` the layers
    that are wider or narrower than the other's (Linear, convolutions without groups, BatchNorm)
    take over what fits as well: of a narrower layer's inputs and outputs the first, and in a wider
    one each repeats in turn. What takes the repeated ones shares the old weight out among them, in
    unequal shares, the same on every worker: the network computes what the other did, if all that
    takes a widened layer's outputs is such a layer, and the repeated ones learn different things.
    Source of the repeating: Chen et al., "Net2Net" (2016), section 2.2, with a fixed order in place
    of a drawn one, so that layers agree by their sizes alone, also where channels are flattened.

    Raises:
        UsageError: nothing fits at all.
    """
    import torch  # noqa: PLC0415

    own = {name: value for name, value in model.state_dict().items() if torch.is_tensor(value)}
    theirs = {name: value for name, value in state_dict.items() if torch.is_tensor(value)}
    partners = dict(_partners(own, theirs))
    kinds = _resizable(model) if resize else {}
    taken = []
    resized = []
    chance = torch.Generator().manual_seed(0)  # workers must not draw differently
    with torch.no_grad():
        for name, partner in partners.items():
            source = theirs[partner]
            tensor = own[name]
            if source.shape == tensor.shape:
                tensor.copy_(source)
                taken.append(name)
            elif name in kinds and _alike(source, tensor, convolves=kinds[name]):
                tensor.copy_(_resize(source.to(tensor), tensor.shape, chance))
                resized.append(name)
    used = {partners[name] for name in (*taken, *resized)}
    if not used and own:
        raise UsageError(
            f"nothing of it fits the model: the state has {_some(state_dict)}, the model "
            f"{_some(own)}; give the state_dict() of a model"
        )
    return Inherited(
        tuple(taken),
        tuple(resized),
        tuple(name for name in own if name not in {*taken, *resized}),
        tuple(name for name in theirs if name not in used),
    )


def _some(names: Mapping[str, Any]) -> str:
    return shown(", ".join(names)) if names else "nothing"


def _partners(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yield the names in both; what was wrapped with something inserted is found by its old one."""
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


def _resizable(model: torch.nn.Module) -> dict[str, bool]:
    """Give the names of the tensors that `resize` can fit, and whether they are a convolution's."""
    from torch import nn  # noqa: PLC0415

    kinds: dict[str, bool] = {}
    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    for name, module in model.named_modules():
        plain = isinstance(module, convolutions) and module.groups == 1
        if plain or isinstance(module, (nn.Linear, *norms)):
            for part in ("weight", "bias", "running_mean", "running_var"):
                kinds[f"{name}.{part}" if name else part] = plain
    return kinds


def _alike(source: Tensor, tensor: Tensor, *, convolves: bool) -> bool:
    """Whether two tensors differ in inputs and outputs alone, and not in the kernel."""
    if source.dim() != tensor.dim() or not source.dim() or not source.is_floating_point():
        return False
    return not convolves or source.shape[2:] == tensor.shape[2:]


def _resize(source: Tensor, shape: torch.Size, chance: torch.Generator) -> Tensor:
    """Give a tensor with outputs (the first dimension) and inputs (the second) of other sizes."""
    import torch  # noqa: PLC0415

    resized = source[torch.arange(shape[0], device=source.device) % source.shape[0]]
    if source.dim() == 1 or source.shape[1] == shape[1]:
        return resized
    origins = torch.arange(shape[1], device=source.device) % source.shape[1]
    shares = 0.5 + torch.rand(shape[1], generator=chance).to(source.device)
    sums = torch.zeros(source.shape[1], device=source.device).index_add_(0, origins, shares)
    shares = (shares / sums[origins]).to(source.dtype)
    return resized[:, origins] * shares.reshape(1, -1, *[1] * (source.dim() - 2))

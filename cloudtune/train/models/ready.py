"""Ready-made changes of a network, by the names of its submodules, to build mutators from.

They change the network in place and return it. Unchanged parts keep their names, so that their
weights can be inherited. In a plain `nn.Sequential` a new module becomes a neighbour, `block_then`
or `block_2`; anywhere else the two are wrapped, as `kept` and `then`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, cast

from cloudtune.errors import UsageError, nearest, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

# The name of the original module within the wrapper of an insertion.
KEPT: Final = "kept"


def replace(
    network: torch.nn.Module, name: str, block: torch.nn.Module | Callable[[Any], torch.nn.Module]
) -> torch.nn.Module:
    """Replace a submodule by a block; a function gets the old submodule as its argument.

    Raises:
        UsageError: no such submodule.
    """
    from torch import nn  # noqa: PLC0415

    old = submodule(network, name)
    if not isinstance(block, nn.Module):
        block = block(old)
    _put(network, name, block)
    return network


def insert_after(network: torch.nn.Module, name: str, block: torch.nn.Module) -> torch.nn.Module:
    """Insert a block after a submodule; its input is the submodule's output, a single tensor.

    Raises:
        UsageError: no such submodule.
    """
    submodule(network, name)
    _follow(network, name, {"then": block})
    return network


def repeat(network: torch.nn.Module, name: str, times: int) -> torch.nn.Module:
    """Repeat a submodule `times` times in a row, each with its own weights.

    Its output must have the shape of its input. The others are copies, initialised again by
    `reset_parameters` where modules have it; other parameters begin as copies.

    Raises:
        UsageError: no such submodule, less than once, or a layer that changes the width.
    """
    block = submodule(network, name)
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise UsageError(f"repeat({name!r}): {quote(times)} times; write a whole number from 1 on")
    inputs, outputs = (getattr(block, f"{way}_features", None) for way in ("in", "out"))
    inputs, outputs = (
        getattr(block, f"{way}_channels", size) for way, size in (("in", inputs), ("out", outputs))
    )
    if times > 1 and inputs != outputs:
        raise UsageError(
            f"repeat({name!r}): it takes {inputs} and gives {outputs}, so it can't follow itself"
        )
    _follow(network, name, {str(number): _fresh_copy(block) for number in range(2, times + 1)})
    return network


def submodule(network: torch.nn.Module, name: str) -> torch.nn.Module:
    """Return a submodule.

    Raises:
        UsageError: there is none of that name.
    """
    modules = dict(network.named_modules())
    if name not in modules or not name:
        names = [path for path in modules if path]
        raise UsageError(
            f"the network has no submodule {name!r}; it has {', '.join(names[:12])}"
            f"{', …' if len(names) > 12 else ''}.{nearest(name, names)}"
        )
    module: torch.nn.Module = modules[name]
    return module


def _put(network: torch.nn.Module, name: str, block: torch.nn.Module) -> None:
    above, _, last = name.rpartition(".")
    setattr(network.get_submodule(above), last, block)


def _follow(network: torch.nn.Module, name: str, blocks: dict[str, torch.nn.Module]) -> None:
    """Insert blocks after a submodule, in order."""
    from torch import nn  # noqa: PLC0415

    if not blocks:
        return
    above, _, last = name.rpartition(".")
    parent = network.get_submodule(above)
    if not isinstance(parent, nn.Sequential) or type(parent).forward is not nn.Sequential.forward:
        wrapped = OrderedDict({KEPT: network.get_submodule(name), **blocks})
        _put(network, name, nn.Sequential(cast("Any", wrapped)))
        return
    children = list(parent.named_children())
    order: list[tuple[str, torch.nn.Module]] = []
    for key, child in children:
        order.append((key, child))
        if key == last:
            taken = [child_name for child_name, _ in children]
            order += [
                (_free(taken, f"{last}_{child_name}"), new) for child_name, new in blocks.items()
            ]
    for key, _ in children:
        delattr(parent, key)
    for key, child in order:
        parent.add_module(key, child)


def _free(taken: list[str], name: str) -> str:
    """Return a name that no child has."""
    return _free(taken, f"{name}_") if name in taken else name


def _fresh_copy(block: torch.nn.Module) -> torch.nn.Module:
    copied = copy.deepcopy(block)
    for module in copied.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return copied

"""A layer made wider, and what comes behind it fitted to that, by the graph that torch.fx traces.

Retiarii's mutators work on such a graph as well (Zhang et al., OSDI 2020); here it only tells who
takes a layer's outputs, and the network stays the module that it is.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from torch import fx, nn

from cloudtune.errors import UsageError
from cloudtune.train.models.submodules import put

_BY_ELEMENT: Final = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.Identity,
    nn.Dropout, nn.Dropout2d, nn.AlphaDropout,
)  # fmt: skip
_POOLS: Final = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_CALLS: Final = (
    "relu", "relu_", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "sigmoid", "tanh",
    "softplus", "hardswish", "hardtanh", "dropout", "dropout2d", "alpha_dropout", "contiguous",
)  # fmt: skip
_POOLINGS: Final = ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d")
"""Functions and methods that leave the channels as they are, as `_BY_ELEMENT` and `_POOLS` do."""


@dataclass
class _Change:
    """What becomes wider: new layers by the names of those that they replace."""

    name: str
    old: int
    new: int
    modules: dict[str, nn.Module]
    calls: dict[str, int]
    replaced: dict[str, nn.Module] = field(default_factory=dict)

    def follow(self, node: fx.Node, *, last: bool) -> None:
        """Fit all that takes what a node gives; `last`: its width is in the last dimension."""
        for user in node.users:
            if user.op == "call_module":
                self._module(user, last=last)
            elif user.op in ("call_function", "call_method"):
                self._call(user, last=last)
            else:
                self._refuse("the network gives its outputs away as they are")

    def _module(self, node: fx.Node, *, last: bool) -> None:
        name = str(node.target)
        module = self.modules[name]
        if self.calls[name] > 1:
            self._refuse(f"{name}, behind it, is used more than once")
        if isinstance(module, _BY_ELEMENT) or (isinstance(module, _POOLS) and not last):
            self.follow(node, last=last)
        elif isinstance(module, nn.Flatten):
            self._flatten(node, module.start_dim)
        elif self._fit(name, module, last=last):
            self.follow(node, last=last)

    def _fit(self, name: str, module: nn.Module, *, last: bool) -> bool:
        """Have a layer take the new width; whether it gives that on."""
        fitted: nn.Module
        if type(module) is nn.Linear and last:
            fitted = linear(module, self._new_size(name, module.in_features), None)
        elif type(module) is nn.Conv2d and module.groups == 1 and not last:
            fitted = conv(module, self._new_size(name, module.in_channels), None)
        elif type(module) is (nn.BatchNorm1d if last else nn.BatchNorm2d):
            fitted = _batch_norm(module, self._new_size(name, module.num_features))
        elif type(module) is nn.LayerNorm and last and len(module.normalized_shape) == 1:
            fitted = _layer_norm(module, self._new_size(name, module.normalized_shape[0]))
        else:
            grouped = " with groups" if isinstance(module, nn.Conv2d) and not last else ""
            self._refuse(f"{name}, behind it, is a {type(module).__name__}{grouped}")
        self.replaced[name] = fitted
        return not isinstance(fitted, nn.Linear | nn.Conv2d)

    def _call(self, node: fx.Node, *, last: bool) -> None:
        called = node.target if isinstance(node.target, str) else node.target.__name__
        if called in _CALLS or (called in _POOLINGS and not last):
            self.follow(node, last=last)
        elif called == "flatten":
            first = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
            self._flatten(node, first)
        elif called in ("view", "reshape") and _keeps_batch(node):
            self.follow(node, last=True)
        elif not _reads_shape(node):
            self._refuse(f"{called}() is behind it")

    def _flatten(self, node: fx.Node, first: object) -> None:
        if first != 1:
            self._refuse("what is behind it is flattened from another dimension than 1")
        self.follow(node, last=True)

    def _new_size(self, name: str, size: int) -> int:
        """Give the new size of what was so large: as many times as wide as before."""
        if size % self.old:
            self._refuse(f"{name}, behind it, takes {size}, which is no multiple of {self.old}")
        return size // self.old * self.new

    def _refuse(self, why: str) -> NoReturn:
        raise UsageError(
            f"widen({self.name!r}): {why}, and widen() can't fit that; give the width to the base, "
            "or put other layers there with replace()"
        )


def _reads_shape(node: fx.Node) -> bool:
    """Whether a node asks for sizes, which are what they are when the network runs."""
    return node.target == "size" or (node.target is getattr and node.args[1] == "shape")


def _keeps_batch(node: fx.Node) -> bool:
    """Whether it is `x.view(x.size(0), -1)`, or the same by `x.shape[0]`."""
    match node.args:
        case (_, fx.Node(target="size", args=(_, 0)), -1):
            return True
        case (_, fx.Node(target=operator.getitem, args=(fx.Node() as shape, 0)), -1):
            return _reads_shape(shape)
    return False


def widen_layer(network: nn.Module, name: str, layer: nn.Module, width: int) -> nn.Module:
    """Give the network, in which a layer has `width` outputs; see `models.widen`.

    Raises:
        UsageError: it can't be done.
    """
    wider: nn.Module
    if type(layer) is nn.Linear:
        old = layer.out_features
        wider = linear(layer, None, width)
    elif type(layer) is nn.Conv2d and layer.groups == 1:
        old = layer.out_channels
        wider = conv(layer, None, width)
    else:
        raise UsageError(
            f"widen({name!r}): it is a {type(layer).__name__}; name a Linear, or a Conv2d without "
            "groups"
        )
    if old == width:
        return network
    try:
        graph = fx.Tracer().trace(network)
    except Exception as error:
        raise UsageError(
            f"widen({name!r}): torch.fx can't follow this network's forward(): {error}"
        ) from error
    called = [node for node in graph.nodes if node.op == "call_module"]
    calls: dict[str, int] = {}
    for node in called:
        calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    if calls.get(name) != 1:
        raise UsageError(f"widen({name!r}): forward() uses it {calls.get(name, 0)} times, not once")
    modules = dict(network.named_modules())
    change = _Change(name, old, width, modules, calls)
    first = next(node for node in called if node.target == name)
    change.follow(first, last=type(layer) is nn.Linear)
    for path, module in {name: wider, **change.replaced}.items():
        put(network, path, module)
    return network


# ---- new layers ----------------------------------------------------------------------------


def linear(old: nn.Linear, inputs: int | None, outputs: int | None) -> nn.Linear:
    """Give a Linear like one, of another size."""
    inputs = inputs or old.in_features
    outputs = outputs or old.out_features
    return nn.Linear(inputs, outputs, bias=old.bias is not None, **_where(old.weight))


def conv(old: nn.Conv2d, inputs: int | None, outputs: int | None) -> nn.Conv2d:
    """Give a Conv2d like one, of another size."""
    options: dict[str, Any] = {
        name: getattr(old, name)
        for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
    }
    inputs = inputs or old.in_channels
    outputs = outputs or old.out_channels
    return nn.Conv2d(inputs, outputs, bias=old.bias is not None, **options, **_where(old.weight))


def _batch_norm(old: Any, size: int) -> nn.Module:
    options = {
        name: getattr(old, name) for name in ("eps", "momentum", "affine", "track_running_stats")
    }
    tensor = old.weight if old.weight is not None else old.running_mean
    fitted: nn.Module = type(old)(size, **options, **({} if tensor is None else _where(tensor)))
    return fitted


def _layer_norm(old: nn.LayerNorm, size: int) -> nn.Module:
    affine = old.elementwise_affine
    options = {"bias": old.bias is not None, **_where(old.weight)} if affine else {}
    return nn.LayerNorm(size, eps=old.eps, elementwise_affine=affine, **options)


def _where(tensor: Any) -> dict[str, Any]:
    return {"device": tensor.device, "dtype": tensor.dtype}

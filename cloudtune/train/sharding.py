"""Models whose parameters are sharded over a trial's workers, by torch's `fully_shard`.

A worker holds its part of each parameter. The states of such a model and of its optimizers are
still complete, plain tensors on the CPU, so a checkpoint can be loaded at any width, sharded or
not.
"""

import functools
import gc
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils import _pytree as trees

from cloudtune.errors import UsageError
from cloudtune.train.calls import current_session
from cloudtune.train.session import Session


def shard(
    model: nn.Module, device: torch.device, session: Session, options: Mapping[str, Any]
) -> None:
    """Shard a model in place, block by block: a device has one whole block at a time.

    All workers get the parameters and buffers of rank 0. `options` are those of `fully_shard`.

    Raises:
        UsageError: an optimizer has the parameters that this replaces, and would have no effect.
    """
    uses = _uses(model)
    # By type: asking other objects for their class may run code.
    for item in (item for item in gc.get_objects() if issubclass(type(item), Optimizer)):
        if any(parameter in uses for group in item.param_groups for parameter in group["params"]):
            raise UsageError(
                'prepare_model(parallel_strategy="fsdp") replaces the parameters of the model; '
                "create the optimizer after it"
            )
    if session.world_size == 1:
        model.to(device)
        return
    workers: Any = distributed.group.WORLD
    options = {"mesh": DeviceMesh.from_group(workers, device.type), **options}
    for part in (*_blocks(model, uses), model):
        part.to(device)
        for tensor in itertools.chain(part.parameters(), part.buffers()):
            if not isinstance(tensor, DTensor):
                distributed.broadcast(tensor.detach(), 0)
        fully_shard(part, **options)
    session.sharded = True
    root: Any = model  # torch gives these methods no types
    root.register_state_dict_pre_hook(_meet)
    for module in root.modules():
        module.register_state_dict_post_hook(_gather)
        module.register_load_state_dict_pre_hook(_spread)
    _make_optimizer_states_whole()


def _uses(model: nn.Module) -> Counter[nn.Parameter]:
    """Count the places where a model uses each of its parameters."""
    return Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))


def _blocks(module: nn.Module, uses: Counter[nn.Parameter]) -> Iterator[nn.Module]:
    """Yield the outermost modules in lists and sequences that share no parameter with others."""
    for child in module.children():
        own = _uses(child)
        in_list = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        called = not isinstance(child, nn.ModuleList | nn.ModuleDict)
        if in_list and called and own and all(own[item] == uses[item] for item in own):
            yield child
        else:
            yield from _blocks(child, uses)


def _meet(*_: object) -> None:
    """Wait for the other workers, if there are any: a state is gathered from all."""
    session = current_session()
    if session.ranks is not None:
        session.ranks.wait_for_states(session.epoch + 1)


def _whole(value: Any) -> Any:
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def _local_part(value: Any, parameter: torch.Tensor) -> Any:
    """Return this worker's part of a parameter's state; a step count unchanged."""
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor):
        return value
    if getattr(value, "shape", None) != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def _gather(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    for name in (prefix + name for name, _ in module.named_parameters(recurse=False)):
        if name in state:
            state[name] = _whole(state[name])


def _spread(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if prefix + name in state:
            state[prefix + name] = _local_part(state[prefix + name], parameter)


@functools.cache
def _make_optimizer_states_whole() -> None:
    """Make every optimizer of this process save and load whole tensors.

    The script creates its optimizers later, and torch only has state hooks per optimizer.
    """
    save, load = Optimizer.state_dict, Optimizer.load_state_dict

    def state_dict(self: Optimizer) -> dict[str, Any]:
        state = save(self)
        if any(isinstance(leaf, DTensor) for leaf in trees.tree_leaves(state)):
            _meet()
        whole: dict[str, Any] = trees.tree_map(_whole, state)
        return whole

    def load_state_dict(self: Optimizer, state_dict: Mapping[str, Any]) -> None:
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        state = dict(state_dict["state"])
        for index, parameter in zip(saved, own, strict=False):  # torch reports differences
            if index in state:
                state[index] = {k: _local_part(v, parameter) for k, v in state[index].items()}
        load(self, {**state_dict, "state": state})

    Optimizer.state_dict = state_dict  # type: ignore[method-assign]
    Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]

"""A group of members: models of one shape that take each step together, as one batched model.

Parameters, buffers and optimizer state of all members are stacked along a first axis, and
`torch.func.vmap` runs the script's own functions over it. Members share each batch and nothing
else. The idea, with operators fused by hand, is HFTA's (Wang et al., MLSys 2021).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cloudtune.train.fused.optimizers import Optimizer, stacked_numbers
from cloudtune.train.fused.state import MemberState

Function = Callable[[Any, Any], Any]


class Group:
    """Members of one shape on one device, in the order of their states.

    Args:
        model: has the shape of all members; it is copied, and its values aren't used.
        states: the state of each member.
        optimizers: the optimizer of each member, all of one kind. Their numbers replace those in
            the states.
        device: where they train.

    Raises:
        ValueError: the optimizers are of several kinds.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        states: Sequence[MemberState],
        optimizers: Sequence[Optimizer],
        device: str = "cpu",
    ) -> None:
        if len({optimizer.kind for optimizer in optimizers}) != 1:
            raise ValueError(f"{', '.join(it.kind for it in optimizers)} can't train as one model")
        self._device = device
        self._optimizers = optimizers
        self._kind = optimizers[0]
        self._numbers = stacked_numbers([each.numbers for each in optimizers], device)
        self._model = copy.deepcopy(model).to(device)
        self._parameters = [name for name, _ in self._model.named_parameters()]
        parameters = dict(self._model.named_parameters())
        self._trained = [name for name in parameters if parameters[name].requires_grad]
        self._model.requires_grad_(requires_grad=False)  # the stacked ones are trained
        own = {id(tensor): name for name, tensor in self._model.named_buffers()}
        own |= {id(tensor): name for name, tensor in parameters.items()}
        persistent = self._model.state_dict(keep_vars=True)
        # Including tied weights.
        self._keys = {key: own[id(tensor)] for key, tensor in persistent.items()}
        values = []
        for state in states:
            tensors = {self._keys[key]: tensor for key, tensor in state.model.items()}
            values.append({**state.settings, **tensors})
        self._values = {}
        for name in own.values():
            parts = [each[name].detach().to(device) for each in values]
            self._values[name] = torch.stack(parts)
        slots = [state.optimizer.get("state", {}) for state in states]
        self._slots = {}
        for name in self._trained:
            stacked = {slot: self._stack_slot(name, slot, slots) for slot in self._kind.SLOTS}
            self._slots[name] = stacked
        steps = list(map(_last_step, slots))
        self._steps = torch.tensor(steps, dtype=torch.float64, device=device)

    def _stack_slot(self, name: str, slot: str, slots: Sequence[dict[int, Any]]) -> torch.Tensor:
        """Return a tensor of the optimizers' state for all members; zeros if one has none."""
        number = self._parameters.index(name)
        stack = torch.zeros_like(self._values[name])
        for at, member in enumerate(slots):
            tensor = member.get(number, {}).get(slot)
            if tensor is not None:
                stack[at] = tensor
        return stack

    def states(self) -> list[MemberState]:
        """Return the members' present states: ordinary state_dicts, as if trained alone."""
        return [self._state(at) for at in range(len(self._optimizers))]

    def _state(self, at: int) -> MemberState:
        one = {key: tensor[at].detach().clone() for key, tensor in self._values.items()}
        optimizer = self._optimizers[at]
        groups = optimizer.alone(list(self._model.parameters())).state_dict()["param_groups"]
        slots = [slot for slot in self._kind.SLOTS if optimizer.keeps(slot)]
        state: dict[int, dict[str, Any]] = {}
        for number, name in enumerate(self._parameters):
            if self._steps[at] and name in self._slots and slots:
                state[number] = {slot: self._slots[name][slot][at].clone() for slot in slots}
                if "exp_avg" in slots:
                    state[number]["step"] = torch.tensor(float(self._steps[at]))
        return MemberState(
            model={key: one[own] for key, own in self._keys.items()},
            optimizer={"state": state, "param_groups": groups},
            settings={key: value for key, value in one.items() if key not in self._keys.values()},
        )

    def step(self, loss: Function, batch: Any) -> torch.Tensor:
        """Take a step of all members on one batch; return their losses, of shape (members,).

        `loss` takes a model, which it may call, and the batch.
        """
        self._model.train()
        leaves = [self._values[name].requires_grad_() for name in self._trained]
        losses: torch.Tensor = self._each(loss, batch)
        gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        self._steps += 1
        with torch.no_grad():
            for name, leaf, gradient in zip(self._trained, leaves, gradients, strict=True):
                leaf.requires_grad_(False)
                if gradient is not None:
                    parts = (self._slots[name], self._numbers, self._steps)
                    self._kind.step(leaf, gradient, *parts)
        return losses.detach()

    def measure(self, metrics: Function, batch: Any) -> dict[str, torch.Tensor]:
        """Return the results of `metrics` for a model and a batch, each of shape (members,)."""
        self._model.eval()
        with torch.no_grad():
            values: dict[str, torch.Tensor] = self._each(metrics, batch)
            return values

    def _each(self, function: Function, batch: Any) -> Any:
        """Return a function's result for each member, with separate random numbers."""

        def of_one(values: dict[str, torch.Tensor]) -> Any:
            def net(*arguments: Any, **named: Any) -> Any:
                return torch.func.functional_call(self._model, values, arguments, named)

            return function(net, batch)

        if len(self._optimizers) == 1:  # without vmap: faster
            value = of_one({name: part[0] for name, part in self._values.items()})
            if isinstance(value, dict):
                return {name: part.unsqueeze(0) for name, part in value.items()}
            return value.unsqueeze(0)
        # No other attention can be batched: the CPU's has no batching rule, and the GPU's refuses
        # its own gradient ("LSE is not correctly aligned").
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.vmap(of_one, randomness="different")(self._values)


def _last_step(state: Mapping[int, Mapping[str, Any]]) -> float:
    """Return how many steps an optimizer has taken, by its state of each parameter."""
    steps = [float(each.get("step", 0)) for each in state.values()]
    return max(steps, default=0.0)

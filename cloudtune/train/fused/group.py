"""A group of members: models of one shape that take each step together, as one batched model.

Parameters, buffers and optimizer state of all members are stacked along a first axis, and
`torch.func.vmap` runs the script's own functions over it. Members share each batch; everything else
is each member's own. The idea, with operators fused by hand, is HFTA's (Wang et al., MLSys 2021).
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from cloudtune.train.fused.optimizers import stacked_numbers
from cloudtune.train.fused.state import MemberState

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch

    from cloudtune.train.fused.optimizers import Optimizer

    Function = Callable[[Any, Any], Any]


class Group:
    """So many members of one shape on one device, by name.

    Args:
        model: of the shape that all members have; its values are nobody's.
        optimizer: of the kind that all members have; its numbers are nobody's.
        device: where they train.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Optimizer, device: str = "cpu") -> None:
        self._device = device
        self._model = copy.deepcopy(model).to(device)
        self._kind = optimizer
        own = {id(tensor): name for name, tensor in self._named(self._model).items()}
        kept = self._model.state_dict(keep_vars=True)
        self._keys = {key: own[id(tensor)] for key, tensor in kept.items()}  # of tied weights too
        self._parameters = [name for name, _ in self._model.named_parameters()]
        wanted = dict(self._model.named_parameters())
        self._trained = [name for name in self._parameters if wanted[name].requires_grad]
        for parameter in self._model.parameters():
            parameter.requires_grad_(False)  # the stacked ones are trained
        self.members: list[str] = []
        """Their names, in the order in which they are stacked."""
        self._optimizers: list[Optimizer] = []
        self._values: dict[str, torch.Tensor] = {}
        self._slots: dict[str, dict[str, torch.Tensor]] = {}
        self._steps = stacked_numbers([{"steps": 0.0}], device)["steps"][:0]
        self._numbers: dict[str, torch.Tensor] = {}

    # ---- who is in it ----------------------------------------------------------------------

    def add(self, name: str, state: MemberState, optimizer: Optimizer) -> None:
        """Add a member with its state; the numbers are those of `optimizer`, not of the state.

        Raises:
            ValueError: there is one of that name, or its optimizer is of another kind, or its
                tensors have other names.
        """
        if name in self.members:
            raise ValueError(f"{name} is a member already")
        if optimizer.kind != self._kind.kind:
            raise ValueError(f"{name} has {optimizer.kind}, and the group {self._kind.kind}")
        self._append(self._values, self._given(name, state))
        states = state.optimizer.get("state", {})
        for number, parameter in enumerate(self._parameters):
            if parameter in self._trained:
                like = self._values[parameter][-1]
                mine = self._slots.setdefault(parameter, {})
                self._append(mine, self._slots_of(states.get(number, {}), like))
        taken = max(
            (float(each["step"]) for each in states.values() if "step" in each), default=0.0
        )
        self._steps = _joined(self._steps, self._steps.new_tensor(taken))
        self.members.append(name)
        self._optimizers.append(optimizer)
        self._refresh()

    def remove(self, name: str) -> MemberState:
        """Take a member out; returns its state. The others are as they were."""
        state, at = self.state(name), self.members.index(name)
        for tensors in (self._values, *self._slots.values()):
            for key, tensor in tensors.items():
                tensors[key] = _without(tensor, at)
        self._steps = _without(self._steps, at)
        del self.members[at], self._optimizers[at]
        self._refresh()
        return state

    def state(self, name: str) -> MemberState:
        """Return a member's state, as it is now: ordinary state_dicts, equal to those alone."""
        at = self.members.index(name)
        one = {key: tensor[at].detach().clone() for key, tensor in self._values.items()}
        model = {key: one[own] for key, own in self._keys.items()}
        settings = {key: each for key, each in one.items() if key not in self._keys.values()}
        return MemberState(model, self._optimizer_state(at), settings)

    def set_optimizer(self, name: str, optimizer: Optimizer) -> None:
        """Give a member other numbers: what a schedule changes."""
        self._optimizers[self.members.index(name)] = optimizer
        self._refresh()

    # ---- training --------------------------------------------------------------------------

    def step(self, loss: Function, batch: Any) -> torch.Tensor:
        """Take a step of all members on one batch; returns their losses, of shape (members,).

        `loss` takes a model, which it may call, and the batch.
        """
        import torch  # noqa: PLC0415

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
        """Return what `metrics` gives of a model and a batch, each of shape (members,)."""
        import torch  # noqa: PLC0415

        self._model.eval()
        with torch.no_grad():
            found: dict[str, torch.Tensor] = self._each(metrics, batch)
            return found

    def _each(self, function: Function, batch: Any) -> Any:
        """Return what a function gives for each member; chance is each member's own."""
        import torch  # noqa: PLC0415

        def of_one(values: dict[str, torch.Tensor]) -> Any:
            def net(*given: Any, **named: Any) -> Any:
                return torch.func.functional_call(self._model, values, given, named)

            return function(net, batch)

        if len(self.members) == 1:
            found = of_one({name: each[0] for name, each in self._values.items()})
            if isinstance(found, dict):
                return {name: value.unsqueeze(0) for name, value in found.items()}
            return found.unsqueeze(0)
        with self._attention():
            return torch.func.vmap(of_one, randomness="different")(self._values)

    def _attention(self) -> AbstractContextManager[None]:
        """Return what chooses among torch's attentions: the CPU's own is one member at a time."""
        from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415

        if self._device == "cpu":
            return sdpa_kernel(SDPBackend.MATH)
        return contextlib.nullcontext()

    # ---- inside ----------------------------------------------------------------------------

    @staticmethod
    def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def _refresh(self) -> None:
        self._numbers = stacked_numbers([each.numbers for each in self._optimizers], self._device)

    def _given(self, name: str, state: MemberState) -> dict[str, torch.Tensor]:
        """Return a new member's tensors by the names that the group has for them."""
        found = {self._keys.get(key, key): each for key, each in state.model.items()}
        found |= {key: each for key, each in state.settings.items() if key not in found}
        wanted = set(self._named(self._model))
        if set(found) != wanted:
            odd = ", ".join(sorted(set(found) ^ wanted))
            raise ValueError(f"{name} has other tensors than the group: {odd}")
        return {key: found[key].detach().to(self._device) for key in sorted(wanted)}

    def _slots_of(self, state: dict[str, Any], like: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch  # noqa: PLC0415

        found = {slot: state.get(slot) for slot in self._kind.SLOTS}
        return {
            slot: torch.zeros_like(like) if each is None else each.to(self._device)
            for slot, each in found.items()
        }

    def _append(self, tensors: dict[str, torch.Tensor], more: dict[str, torch.Tensor]) -> None:
        for key, each in more.items():
            tensors[key] = _joined(tensors.get(key), each)

    def _optimizer_state(self, at: int) -> dict[str, Any]:
        """Return the state_dict that torch's own optimizer would have of a member."""
        import torch  # noqa: PLC0415

        optimizer = self._optimizers[at]
        groups = optimizer.alone(list(self._model.parameters())).state_dict()["param_groups"]
        steps = float(self._steps[at])
        state: dict[int, dict[str, Any]] = {}
        for number, name in enumerate(self._parameters):
            slots = [slot for slot in self._kind.SLOTS if optimizer.keeps(slot)]
            if steps and name in self._slots and slots:
                state[number] = {slot: self._slots[name][slot][at].clone() for slot in slots}
                if "exp_avg" in slots:
                    state[number]["step"] = torch.tensor(steps)
        return {"state": state, "param_groups": groups}


def _joined(stack: torch.Tensor | None, one: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415

    fresh = one.detach().clone().unsqueeze(0)
    return fresh if stack is None else torch.cat([stack.detach(), fresh])


def _without(stack: torch.Tensor, at: int) -> torch.Tensor:
    import torch  # noqa: PLC0415

    return torch.cat([stack[:at], stack[at + 1 :]]).detach()

"""Models, data and optimizers of a trial, under the names of `ray.train.torch`."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from cloudtune.errors import UsageError
from cloudtune.train.calls import current_session
from cloudtune.train.data import DeviceLoader, split
from cloudtune.train.torch_state import seed_everything

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch.utils.data import DataLoader

    from cloudtune.train.session import Session

ModelT = TypeVar("ModelT", bound="torch.nn.Module")


def get_device() -> torch.device:
    """Return this worker's device: its own GPU, or the CPU if there is none."""
    import torch  # noqa: PLC0415

    return torch.device(current_session().device)


def get_devices() -> list[torch.device]:
    """Return this worker's devices: always one."""
    return [get_device()]


def prepare_model(
    model: ModelT,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Literal["ddp", "fsdp", "auto"] | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
) -> ModelT:
    """Return the model on this worker's device, data-parallel if the trial has several workers.

    The state has the same names at every width, whether you save that of the model passed in (which
    is moved in place) or of the returned one. `parallel_strategy=None` only moves the model.

    `find_unused_parameters` is for models with parts that a step may skip: without it torch waits
    for their gradients, and raises in the next step. `static_graph` says that each step uses the
    same parts, for models that checkpoint activations or use a parameter twice. Pass other options
    of torch's DistributedDataParallel in `parallel_strategy_kwargs`, as in Ray; with "fsdp", those
    of its `fully_shard`. With one worker they have no effect.

    "fsdp" shards the model in place. Create the optimizer afterwards. Call the model, state_dict()
    and load_state_dict() on all ranks: states are complete, on the CPU.

    "auto" takes the strategy that `cloudtune profile --parallel ddp,fsdp` measured to be faster
    with this number of GPUs, or "ddp" without a measurement. `parallel_strategy_kwargs` then has
    the options of each strategy, by name.

    Raises:
        UsageError: an unknown strategy; or "fsdp" for a model that has an optimizer already.
    """
    import torch  # noqa: PLC0415

    session = current_session()
    strategy, own_options = _chosen(parallel_strategy, parallel_strategy_kwargs or {}, session)
    device = get_device() if isinstance(move_to_device, bool) else torch.device(move_to_device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if strategy == "fsdp":
        from cloudtune.train import sharding  # noqa: PLC0415

        sharding.shard(model, device, session, own_options)
    elif move_to_device:
        model = model.to(device)
    if strategy is None:
        return model
    session.models.append(model)
    if session.world_size == 1:
        return model
    # The ranks begin with equal parameters, but must have different dropout.
    torch.manual_seed(session.derived_seed + session.rank)
    if strategy == "fsdp":
        model.register_forward_hook(lambda *of: _weight_gradients(of[-1], session.batch_weight))
        return model
    options = {
        "device_ids": [device] if device.type == "cuda" else None,
        "find_unused_parameters": find_unused_parameters,
        "static_graph": static_graph,
    }
    wrapped = _data_parallel()(model, **{**options, **own_options})
    return cast("ModelT", wrapped)


def _chosen(
    strategy: str | None, options: Mapping[str, Any], session: Session
) -> tuple[str | None, Mapping[str, Any]]:
    """Return a strategy and its options; for "auto" those that the run has chosen."""
    if strategy not in ("ddp", "fsdp", "auto", None):
        message = f"prepare_model() knows no parallel_strategy {strategy!r}"
        raise UsageError(f'{message}; give it "ddp", "fsdp", "auto" or None')
    if strategy != "auto":
        return strategy, options
    session.leaves_parallel = True
    chosen = session.parallel or "ddp"
    return chosen, options.get(chosen, {})


@functools.cache
def _data_parallel() -> type[torch.nn.parallel.DistributedDataParallel]:
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    class DataParallel(DistributedDataParallel):
        """DistributedDataParallel with the state names of the model itself.

        Its outputs scale gradients by this worker's share of the batch.
        """

        def forward(self, *inputs: Any, **named: Any) -> Any:
            outputs = super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
            return _weight_gradients(outputs, current_session().batch_weight)

        def state_dict(self, *arguments: Any, **named: Any) -> Any:
            return self.module.state_dict(*arguments, **named)

        def load_state_dict(
            self, state_dict: Mapping[str, Any], *arguments: Any, **named: Any
        ) -> Any:
            return self.module.load_state_dict(state_dict, *arguments, **named)

    return DataParallel


def _weight_gradients(outputs: Any, weight: float) -> Any:
    """Scale gradients that flow back through a model's outputs by a weight."""
    from torch.utils import _pytree as trees  # noqa: PLC0415

    for tensor in trees.tree_leaves(outputs) if weight != 1.0 else ():
        if getattr(tensor, "requires_grad", False):
            tensor.register_hook(lambda gradient: gradient * weight)
    return outputs


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,  # noqa: ARG001
    *,
    shared: bool | str = False,
) -> DataLoader[Any]:
    """Return a loader of this worker's share of each batch, on its device.

    `batch_size` is the total of all workers, which share its samples: a step uses the same samples
    at every width. If it doesn't divide evenly, some workers have one sample more, and the
    gradients of a prepared model are weighted accordingly. If the loader shuffles, every epoch is
    shuffled anew. `auto_transfer` has no effect: batches in pinned memory are always copied while
    the GPU computes.

    With `shared`, all trials read the same batches in the same order. Trials with at most one GPU
    that train on one machine and read the same batches at about the same time then have them loaded
    once, by `num_workers` processes (at least one), through shared memory. Trials read the same if
    their datasets are equal (including transforms and collate function); for a dataset that can't
    be pickled, pass a name instead of True. A trial that can't share loads the same batches itself,
    and says why in its log.

    Raises:
        UsageError: the loader can't be split over several workers, or can't be `shared`.
    """
    if shared and not add_dist_sampler:
        raise UsageError(
            "prepare_data_loader(): shared=… gives each worker its part of the batches that all "
            "trials have; leave add_dist_sampler=False out"
        )
    session = current_session()
    session.batch_size = session.batch_size or data_loader.batch_size
    prepared: Any = data_loader
    if shared:
        from cloudtune.train import shared_loader  # noqa: PLC0415

        prepared = shared_loader.share_loader(prepared, session, "" if shared is True else shared)
    elif add_dist_sampler:
        prepared = split(prepared, session)
    loader = DeviceLoader(prepared, session, session.device if move_to_device else None)
    return cast("DataLoader[Any]", loader)


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer unchanged; for mixed precision use torch's own GradScaler."""
    return optimizer


def backward(tensor: torch.Tensor) -> None:
    """Compute the gradients of `tensor`: `tensor.backward()`."""
    tensor.backward()  # type: ignore[no-untyped-call]


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, NumPy and torch, and make torch deterministic.

    Without it every trial has its own seed, the same in each attempt, but its GPU may sum in a
    different order each time.
    """
    import torch  # noqa: PLC0415

    seed_everything(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it, torch refuses on a GPU

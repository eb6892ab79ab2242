"""`fused.train`: one training function for a trial alone, on several GPUs, or in a group."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtune.train.calls import current_session
from cloudtune.train.checkpoint import Checkpoint
from cloudtune.train.fused.member import Member
from cloudtune.train.fused.script import Alone, Functions, Script
from cloudtune.train.fused.state import FILE, MemberState, with_numbers
from cloudtune.train.shared_input.place import FUSED_VARIABLE, Meeting
from cloudtune.train.torch import prepare_model
from cloudtune.train.torch_state import count_memory_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from cloudtune.train.fused.optimizers import Optimizer
    from cloudtune.train.session import Session


def train(
    config: Mapping[str, Any],
    *,
    model: Callable[[Any], torch.nn.Module],
    loss: Callable[[Any, Any], Any],
    optimizer: Callable[..., Optimizer],
    data: Callable[[Any], Any],
    metrics: Callable[[Any, Any], Any] | None = None,
    test_data: Callable[[Any], Any] | None = None,
) -> None:
    """Train the trial to its end, with a report and a checkpoint at the end of each epoch.

    Trials on shares of one GPU train as one batched model, where they have the same shape; on whole
    GPUs each trains as any other. The functions are the same:

    `model(config)` gives a model. `loss(net, batch)` gives a scalar; `net` may be called, and no
    more. `optimizer(config)`, or `optimizer(config, epoch)` for numbers that change, gives
    `fused.SGD`, `Adam` or `AdamW`. `data(config)` gives a loader, `test_data(config)` one for
    `metrics(net, batch)`: scalars by name, of which the mean over the samples is reported, beside
    `loss`, that of the training. The checkpoint is a file state.pt with "model" and "optimizer",
    the state_dicts of the model and of torch's own optimizer.

    Raises:
        UsageError: an optimizer that isn't ours; metrics without test_data.
    """
    session = current_session()
    functions = Functions(model, loss, optimizer, data, metrics, test_data)
    script = Script(functions, config, session)
    folder = os.environ.get(FUSED_VARIABLE)
    if folder and session.share < 1:
        _in_a_group(script, session, Path(folder))
    else:
        _alone(script, session)


def _alone(script: Script, session: Session) -> None:
    module = script.model()
    restored = _load_checkpoint(session)
    if restored is not None:
        restored.load_into(module, None)
    net = prepare_model(module)
    optimizer = script.optimizer(session.epoch + 1).alone(module.parameters())
    if restored is not None:
        restored.load_into(module, optimizer)
    for epoch in session.epochs():
        with_numbers(optimizer, script.optimizer(epoch))
        metrics = script.epoch(Alone(module, net, optimizer), epoch)
        numbers = {name: float(value) for name, value in metrics.items()}
        _report(session, numbers, MemberState.of(module, optimizer))


def _in_a_group(script: Script, session: Session, folder: Path) -> None:
    module = script.model()
    place = Meeting(folder, script.signature(module), socket.SOCK_STREAM)
    script.forget_data()  # the host has it
    state = MemberState.of(module)
    restored = _load_checkpoint(session)
    if restored is not None:
        restored.load_into(module, None)  # what doesn't fit is this trial's mistake, and no other's
        state = replace(restored, settings=state.settings)
    member = Member(place, script, session.device)
    members = 0
    try:
        for epoch in session.epochs():
            trained = member.train(epoch, state, script.optimizer(epoch))
            state = trained.state
            count_memory_as(trained.mib)
            if trained.members != members:
                members = trained.members
                others = f"{members - 1} other{'s' * (members != 2)}"
                sys.stderr.write(
                    f"fused: trains as one model with {others} from epoch {epoch} on\n"
                )
            _report(session, trained.metrics, state)
    finally:
        member.close()


def _load_checkpoint(session: Session) -> MemberState | None:
    """Return the state of the checkpoint to go on from; None where the trial begins."""
    if session.restore is None:
        return None
    with Checkpoint(session.restore, session.start_epoch).as_directory() as folder:
        return MemberState.from_bytes((Path(folder) / FILE).read_bytes())


def _report(session: Session, metrics: Mapping[str, float], state: MemberState) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = state.to_bytes() if session.rank == 0 else b""
        (Path(folder) / FILE).write_bytes(data)
        session.report(metrics, Checkpoint.from_directory(folder))

"""Who may train as one model, what a schedule changes, and what is told of a wrong contract."""

import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from cloudtune import fused
from cloudtune.errors import UsageError
from cloudtune.model.events import EpochReport
from cloudtune.script.names import check_names, trains_fused
from cloudtune.train.checkpoint import CheckpointStore
from cloudtune.train.session import Session
from cloudtune.train.shared_input.place import Meeting


def model(config: Any) -> nn.Module:
    act = nn.ReLU() if config.get("act", "relu") == "relu" else nn.GELU()
    drop = fused.dropout(config["drop"]) if "drop" in config else nn.Dropout(config["fixed"])
    return nn.Sequential(nn.Linear(4, config.get("hidden", 3)), act, drop)


def loss(net: Any, batch: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return scale * functional.mse_loss(net(batch), batch[:, :3])


def optimizer(config: Any) -> Any:
    if config.get("kind") == "adam":
        return fused.Adam(config["lr"])
    return fused.SGD(config["lr"], nesterov=config.get("nesterov", False), momentum=0.5)


def data(config: Any) -> DataLoader[Any]:
    samples: Any = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(samples, batch_size=config.get("batch", 4))


def session() -> Session:
    return Session("t", lambda _report: None, "loss", "min", 9)


def key(config: dict[str, Any], **other: Any) -> str:
    from cloudtune.train.fused.script import Functions, Script

    given = {"loss": loss, "optimizer": optimizer, "data": data, **other}
    script = Script(
        Functions(model=model, metrics=None, test_data=None, **given), config, session()
    )
    return script.signature(script.model())


def test_numbers_may_differ_within_a_group() -> None:
    assert key({"lr": 0.1, "drop": 0.1}) == key({"lr": 0.2, "drop": 0.3, "unread": 5})


@pytest.mark.parametrize(
    "other", [{"act": "gelu"}, {"hidden": 5}, {"kind": "adam"}, {"nesterov": True}, {"batch": 2}]
)
def test_whatever_else_makes_a_trial_may_not(other: dict[str, Any]) -> None:
    """Each would train by what the group's host was given."""
    assert key({"lr": 0.1, "drop": 0.1}) != key({"lr": 0.1, "drop": 0.1, **other})


def test_what_functions_have_taken_from_around_them_may_not_differ() -> None:
    config = {"lr": 0.1, "drop": 0.1}

    def smoothed(by: float) -> Any:
        return lambda net, batch: loss(net, batch) + by

    assert key(config, loss=smoothed(0.1)) == key(config, loss=smoothed(0.1))
    assert key(config, loss=smoothed(0.1)) != key(config, loss=smoothed(0.2))
    assert key(config, loss=partial(loss, scale=1.0)) != key(config, loss=partial(loss, scale=2.0))
    assert key({"lr": 0.1, "fixed": 0.1}) != key({"lr": 0.1, "fixed": 0.2})


def test_alone_a_schedule_counts(tmp_path: Path) -> None:
    rates: list[float] = []

    def by_epoch(config: Any, epoch: int) -> Any:
        rates.append(config["lr"] / epoch)
        return fused.SGD(rates[-1])

    told: list[EpochReport] = []
    trains = Session("t", told.append, "loss", "min", 3, store=CheckpointStore(str(tmp_path)))
    trains.grant(4)
    functions: dict[str, Any] = {"model": model, "loss": loss, "data": data}
    trains.run(
        lambda config: fused.train(config, optimizer=by_epoch, **functions),
        {"lr": 0.6, "drop": 0.0},
    )
    assert [each.epoch for each in told] == [1, 2, 3]
    assert told[2].metrics["loss"] < told[0].metrics["loss"]
    (kept,) = Path(told[2].checkpoint or "").rglob("state.pt")
    (group,) = torch.load(kept)["optimizer"]["param_groups"]
    assert group["lr"] == pytest.approx(0.2)


def test_the_order_of_samples_is_the_epochs_whoever_asks_and_how_often() -> None:
    from cloudtune.train.fused.script import Functions, Script

    functions = Functions(model, loss, optimizer, lambda _: shuffled(), None, None)
    orders = [
        [torch.cat(list(Script(functions, {}, each).batches(epoch))) for epoch in (1, 2)]
        for each in (session(), replace(session(), trial_id="other"))
    ]
    script = Script(functions, {}, session())
    again = [torch.cat(list(script.batches(epoch))) for epoch in (1, 1, 2)]
    assert torch.equal(orders[0][0], orders[1][0])
    assert not torch.equal(orders[0][0], orders[0][1])
    assert torch.equal(again[0], again[1])
    assert torch.equal(again[2], orders[0][1])


def shuffled() -> DataLoader[Any]:
    samples: Any = torch.arange(40)
    return DataLoader(samples, batch_size=8, shuffle=True)


def test_a_wrong_contract_is_told_in_a_line() -> None:
    functions: dict[str, Any] = {"model": model, "loss": loss, "data": data}
    plain = torch.optim.Adam([nn.Parameter(torch.ones(1))])
    with session().activate(), pytest.raises(UsageError, match="gave Adam; give cloudtune"):
        fused.train({"drop": 0.0}, optimizer=lambda _: cast("Any", plain), **functions)
    with session().activate(), pytest.raises(UsageError, match="metrics and test_data together"):
        fused.train({"lr": 1}, optimizer=optimizer, metrics=loss, **functions)


@pytest.mark.parametrize(
    "line",
    [
        "from cloudtune import fused",
        "import cloudtune.fused; fused = cloudtune.fused",
        "import cloudtune; fused = cloudtune.fused",
        "from cloudtune.fused import train, SGD",
        "from cloudtune import models; models.space",
        "from cloudtune.models import space",
    ],
)
def test_each_import_works_in_a_fresh_process(line: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", line], check=True)


@pytest.mark.parametrize(
    ("line", "call", "found"),
    [
        ("from cloudtune import fused", "fused.train(config)", True),
        ("import cloudtune", "cloudtune.fused.train(config)", True),
        ("import cloudtune.fused", "cloudtune.fused.train(config)", True),
        ("from cloudtune.fused import train as fit", "fit(config)", True),
        ("from cloudtune import fused", "fused.SGD(0.1)", False),
        ("import cloudtune", "cloudtune.report({})", False),
    ],
)
def test_a_script_trains_fused_if_its_training_function_says_so(
    tmp_path: Path, line: str, call: str, found: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{line}\n\n\ndef train(config):\n    {call}\n\n\ndef other():\n    {call}\n")
    assert trains_fused(path, "train") is found
    check_names(path, "train")


def test_who_waits_for_its_strategy_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two train an epoch; one asks for no more, the other for two."""
    from cloudtune.train.fused import host
    from cloudtune.train.fused.member import Member
    from cloudtune.train.fused.script import Functions, Script
    from cloudtune.train.fused.state import MemberState

    monkeypatch.setattr(host, "WAIT_SECONDS", (1.0, 1.0))
    config = {"lr": 0.1, "fixed": 0.0}
    functions = Functions(model, loss, optimizer, data, None, None)
    members = []
    for _ in range(2):
        script = Script(functions, config, session())
        place = Meeting(tmp_path / "group", script.signature(script.model()), socket.SOCK_STREAM)
        members.append((Member(place, script, "cpu"), MemberState.of(script.model())))
    stays, waits = members
    try:
        with ThreadPoolExecutor() as together:
            first = together.submit(stays[0].train, 1, stays[1], fused.SGD(0.1))
            waits[0].train(1, waits[1], fused.SGD(0.1))
        assert first.result().members == 2
        took = []
        for epoch in (2, 3):
            began = time.monotonic()
            assert stays[0].train(epoch, stays[1], fused.SGD(0.1)).members == 1
            took.append(time.monotonic() - began)
    finally:
        for member, _ in members:
            member.close()
    assert took[0] >= 1.0
    assert took[1] < 1.0

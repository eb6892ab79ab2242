"""Packed workers of an agent under MPS, with stand-ins for NVIDIA's programs; and its lease."""

import dataclasses
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloudtune.infra.node.agent import Agent
from cloudtune.infra.node.lease import COMMAND_VARIABLE, END_VARIABLE
from cloudtune.infra.node.messages import (
    Failure,
    Gone,
    Interruption,
    Lost,
    Message,
    Part,
    Ready,
    Training,
    WorkerSlot,
)
from cloudtune.infra.processes import is_running
from cloudtune.model.commands import StartTrial
from cloudtune.model.trial import Slice
from tests.bench import wait_for
from tests.infra.mps_stand_in import write_control, write_script, write_smi

TRAIN = """
import os, pathlib, threading
import cloudtune

def train(config):
    pipes = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", config["alone"]))
    (pipes / "clients").mkdir(exist_ok=True)
    (pipes / "clients" / str(os.getpid())).touch()
    if config["kind"] == "mistaken":
        raise ValueError("a mistake of the script")
    if config["kind"] in ("faulty", "late"):
        if config["kind"] == "faulty":
            (pipes / "fault").touch()
        raise RuntimeError(
            "CUDA error: an illegal memory access was encountered\\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
        )
    threading.Event().wait(60)
"""


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    """What is trained on a machine with two GPUs, by their stand-ins."""
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", "/tmp")
    write_smi(programs, "0, GPU-aaaa, NVIDIA A10G, 24000\n1, GPU-bbbb, NVIDIA A10G, 24000\n")
    write_control(programs, tmp_path / "commands")
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return Training("train.py:train", "loss", "min", 4, str(tmp_path / "storage"), 0)


@pytest.fixture
def agent(tmp_path: Path, training: Training) -> Iterator[Agent]:
    """An agent on that machine; no process may be left."""
    before = set(psutil.Process().children(recursive=True))
    made = Agent("127.0.0.1", 2, training, tmp_path / "logs", spares=False)
    yield made
    made.close()
    processes = psutil.Process()
    wait_for(lambda: not any(map(is_running, {*processes.children(recursive=True)} - before)), 60)


def begin(agent: Agent, session: str, kind: str, share: float = 0.5) -> None:
    config = {"kind": kind, "alone": str(Path.cwd())}
    command = StartTrial(session, session, config, share, (), None, 0, 1)
    agent.start(Part(command, Slice("i-0", share, 0), (WorkerSlot(0, 0, 1, 1, share),)))


def hear(agent: Agent, *sessions: str) -> dict[str, list[Message]]:
    """Return the messages of sessions, once all of them are gone."""
    messages: list[Message] = []
    give_up = time.monotonic() + 100  # on loaded cores, too
    while len([message for message in messages if isinstance(message.body, Gone)]) < len(sessions):
        assert time.monotonic() < give_up, messages
        messages += agent.messages(messages[-1].number if messages else 0, 0, 5.0)
    return {name: [message for message in messages if message.session == name] for name in sessions}


def how(messages: list[Message]) -> list[type]:
    return [type(message.body) for message in messages if not isinstance(message.body, Ready)]


def test_a_fault_loses_a_gpus_trials_without_blame(agent: Agent) -> None:
    begin(agent, "alone", "steady", share=1.0)
    begin(agent, "neighbour", "steady")
    agent.messages(0, 0, 20.0)
    begin(agent, "faulty", "faulty")
    heard = hear(agent, "neighbour", "faulty")
    assert how(heard["faulty"]) == [Lost, Gone]
    assert how(heard["neighbour"]) == [Lost, Gone]
    assert "alone" in agent.describe()
    assert not agent.describe()["alone"].gone


def test_gpu_fault_outlives_the_server(agent: Agent) -> None:
    # On an H200 the status is back to normal once the last client has gone.
    begin(agent, "late", "late")
    begin(agent, "alone", "late", share=1.0)
    heard = hear(agent, "late", "alone")
    assert how(heard["late"]) == [Lost, Gone]
    assert how(heard["alone"]) == [Failure, Gone]
    errors = [item.body.error for item in heard["alone"] if isinstance(item.body, Failure)]
    assert errors == ["RuntimeError: CUDA error: an illegal memory access was encountered"]


def test_script_error_spares_neighbours(agent: Agent) -> None:
    begin(agent, "neighbour", "steady")
    begin(agent, "mistaken", "mistaken")
    heard = hear(agent, "mistaken")
    assert how(heard["mistaken"]) == [Failure, Gone]
    assert not agent.describe()["neighbour"].gone
    assert (agent.hello()["mps"], agent.hello()["lack"]) == ("", "")


def test_lacking_node_is_used(training: Training, tmp_path: Path) -> None:
    training = dataclasses.replace(training, has_gpus=True)
    node = Agent("127.0.0.1", 4, training, tmp_path / "logs", spares=False)
    node.renew(time.time())  # a node without a lease goes on
    node.note_interruption(1_900_000_000.0)
    (message,) = node.messages(0, 0, 5.0)
    assert (message.session, message.body) == ("", Interruption(1_900_000_000.0))
    assert node.hello()["lack"] == "2 of its 4 GPUs"
    node.close()


def test_trials_fail_on_a_node_without_their_data(training: Training, tmp_path: Path) -> None:
    training = dataclasses.replace(training, data={"sets": "/none"})
    node = Agent("127.0.0.1", 2, training, tmp_path / "logs", spares=False)
    begin(node, "one", "steady")
    heard = hear(node, "one")["one"]
    [error] = [message.body.error for message in heard if isinstance(message.body, Failure)]
    assert "data.sets: this machine has no folder /none" in error
    node.close()


def test_leases_end(training: Training, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = tmp_path / "calls"
    command = write_script(
        tmp_path / "bin" / "shutdown", f'echo "$*" >> {shlex.quote(str(result))}'
    )
    monkeypatch.setenv(END_VARIABLE, str(time.time() + 3600))
    monkeypatch.setenv(COMMAND_VARIABLE, str(command))
    leased = Agent("127.0.0.1", 2, training, tmp_path / "leased", spares=False)
    leased.renew(time.time() + 500)
    leased.renew(time.time() + 1.2)
    assert result.read_text().splitlines() == ["-P +9", "-P +1"]
    wait_for(lambda: "-P now" in result.read_text(), seconds=60)
    leased.close()

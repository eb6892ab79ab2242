"""Sessions on one node, by an agent in this process, with real workers that train."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from cloudtune.infra.cluster.trial_session import cause
from cloudtune.infra.node.messages import (
    Body,
    Done,
    Epoch,
    Failure,
    Gone,
    Lost,
    Message,
    Ready,
)
from cloudtune.infra.processes import is_running
from cloudtune.train.storage import STAGING_VARIABLE
from tests.guard import is_alive
from tests.one_node import Node, kinds, make_part, node_fixture, node_in, reports, training_in

pytestmark = pytest.mark.usefixtures("leaves_nothing")

ROOT = Path(__file__).resolve().parents[3]

TRAIN = """
import ctypes, os, signal, sys, tempfile, threading, time
from pathlib import Path
import torch
import cloudtune

def train(config):
    model = torch.nn.Linear(4, 1)
    kind = config.get("kind", "prepared")
    if kind == "prepared":
        net = cloudtune.prepare_model(model)
    elif kind == "its own":  # as for torchrun
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(model)
    else:
        net = model
    if kind == "several":
        torch.manual_seed(int(os.environ["RANK"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(Path(folder) / "state.pt"))
    rank = cloudtune.get_context().get_world_rank()
    print("pid", os.getpid(), "sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"
    print("place", *map(os.environ.get, names), int(os.environ["MASTER_PORT"]) > 0, flush=True)
    for epoch in cloudtune.epochs():
        trouble = config.get("trouble") if (epoch, rank) == (2, config.get("rank", 0)) else None
        if trouble == "raises":
            raise ValueError("bad luck")
        if trouble == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "detaches":
            for command in (["sleep", "987"], ["env", "-i", "sleep", "987"]):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        os.execvp(command[0], command)
                    os._exit(0)
                os.wait()
            print("detached", flush=True)
        if trouble == "exits":
            os._exit(3)
        print(f"epoch {epoch} {trouble}", flush=True)
        if trouble == "in real time":
            os.kill(os.getpid(), 40)
        if trouble == "waits":
            print("due", cloudtune.save_due(), flush=True)
            time.sleep(1.1)
            print("due", cloudtune.save_due(), flush=True)
        if trouble == "hangs":
            threading.Event().wait()
        if trouble == "holds the GIL":
            ctypes.PyDLL(None).pause()  # as a loop in C that never lets go
        loss = net(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), Path(folder) / "state.pt")
            saved = cloudtune.Checkpoint.from_directory(folder)
            cloudtune.report({"loss": loss.item()}, saved)
"""

SLEEPS = ["sleep", "987"]
STUCK = {"hangs": "threading.Event().wait()", "holds the GIL": "ctypes.PyDLL(None).pause()"}


node = node_fixture(TRAIN, losses_per_hour=1e9)  # saves are due each second


def test_session_resumes_at_another_width(node: Node) -> None:
    node.agent.start(make_part("a.1", 1.0, until=1))
    reported = node.hear("a.1", Epoch)
    assert kinds(reported) == ["Ready", "Epoch"]
    node.agent.grant("a.1", 2)
    (report,) = reports(node.hear("a.1", Epoch))
    assert report["epoch"] == 2
    assert Path(report["checkpoint"], "manifest.json").exists()
    assert 0.0 < report["saving"] < report["seconds"]
    node.stop("a.1")
    assert not psutil.pid_exists(node.pid("a.1")), "it is gone when that is reported"

    node.agent.start(make_part("a.2", 2.0, until=3, checkpoint=report["checkpoint"]))
    reported = node.hear("a.2", Epoch)
    assert kinds(reported) == ["Ready", "Ready", "Epoch"]
    assert [(item["epoch"], item["in_sync"]) for item in reports(reported)] == [(3, True)]
    node.stop("a.2")


def test_agent_drops_copies_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage is on another disk than the folder where saves wait."""
    monkeypatch.chdir(tmp_path)
    with TemporaryDirectory(dir="/dev/shm") as staging:
        monkeypatch.setenv(STAGING_VARIABLE, staging)
        with node_in(tmp_path, TRAIN, training_in(tmp_path)) as node:
            node.agent.start(make_part("a.1", 1.0, until=1))
            (report,) = reports(node.hear("a.1", Epoch))
            node.stop("a.1")
            [state] = Path(report["checkpoint"]).rglob("state.pt")
            state.write_bytes(state.read_bytes()[::-1])
            node.agent.start(make_part("a.2", 1.0, until=2, checkpoint=report["checkpoint"]))
            (report,) = reports(node.hear("a.2", Epoch))
            assert report["epoch"] == 2, "it needed nothing from the storage"
            node.stop("a.2")
            assert list(Path(staging).rglob("state.pt"))
        assert list(Path(staging).iterdir()) == []


def test_script_learns_due_saves(node: Node) -> None:
    node.agent.start(make_part("due.1", 1.0, until=2, trouble="waits"))
    for _ in range(2):
        node.hear("due.1", Epoch)
    result = [line for line in node.log("due.1").splitlines() if line.startswith("due")]
    assert result == ["due False", "due True"]
    node.stop("due.1")


def test_words_may_come_before_the_session(node: Node) -> None:
    node.agent.grant("b.1", 3)
    node.agent.grant("b.1", 2)
    node.agent.acknowledge("b.1", 1)
    node.agent.start(make_part("b.1", 1.0, until=1))
    node.agent.start(make_part("b.1", 1.0, until=1))  # asked twice, it is started once
    assert [node.hear("b.1", Epoch) and None for _ in range(3)] == [None] * 3
    assert node.agent.describe()["b.1"].epoch == 3
    node.stop("b.1")
    node.agent.stop("b.2")
    node.agent.start(make_part("b.2", 1.0, until=1))
    assert kinds(node.hear("b.2")) == ["Gone"]


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        ("raises", "ValueError: bad luck"),
        ("dies", "the worker of rank 1 was killed by SIGKILL"),
        ("exits", "the worker of rank 1 exited with status 3"),
        ("in real time", "the worker of rank 1 was killed by signal 40"),
    ],
)
def test_a_rank_in_trouble_ends_its_session(node: Node, trouble: str, expected: str) -> None:
    node.agent.start(make_part(f"{trouble}.1", 2.0, until=9, trouble=trouble, rank=1))
    ends = [body for body in node.hear(f"{trouble}.1") if isinstance(body, Failure | Lost)]
    end = cause(ends)
    assert isinstance(end, Failure | Lost)
    assert expected in (end.error if isinstance(end, Failure) else end.reason)
    assert all(not psutil.pid_exists(node.pid(f"{trouble}.1", rank)) for rank in (0, 1))


def test_detached_ends_too(node: Node, eventually: Callable[[Callable[[], object]], None]) -> None:
    def detached() -> list[int]:
        sleeping = [it for it in psutil.process_iter(["cmdline"]) if it.info["cmdline"] == SLEEPS]
        return [it.pid for it in sleeping if is_running(it)]

    node.agent.start(make_part("away.1", 1.0, until=2, trouble="detaches"))
    for _ in range(2):
        node.hear("away.1", Epoch)
    eventually(lambda: len(detached()) == 2)
    node.stop("away.1")
    eventually(lambda: not detached())


@pytest.mark.parametrize("kind", ["prepared", "its own"])
def test_workers_know_their_place_and_train_one_model(node: Node, kind: str) -> None:
    name = f"{kind.replace(' ', '-')}.1"
    node.agent.start(make_part(name, 2.0, until=2, kind=kind))
    result = [node.hear(name, Epoch) for _ in range(2)]
    assert [report["in_sync"] for some in result for report in reports(some)] == [True, True]
    node.stop(name)
    for rank in (0, 1):
        place = [str(rank), str(rank), "2", "2", "0", "127.0.0.1", "True"]
        assert node.printed(name, rank, line=1) == ["place", *place]


@pytest.mark.parametrize("kind", ["copies", "several"])
def test_workers_that_exchange_no_gradients_are_found(node: Node, kind: str) -> None:
    node.agent.start(make_part(f"{kind}.1", 2.0, until=9, kind=kind))
    reported = node.hear(f"{kind}.1")
    assert Epoch not in map(type, reported), "what they have learned is no result"
    end = cause([body for body in reported if isinstance(body, Failure | Lost | Done)])
    assert isinstance(end, Failure)
    assert end.unsynced
    assert "in epoch 1 its 2 workers took 1 steps of the optimizer" in end.error


def test_trusted_workers_are_not_compared(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = training_in(node.folder, compared=False)
    monkeypatch.setattr(node.agent, "_training", trusted)
    node.agent.start(make_part("tr.1", 2.0, until=1, kind="copies"))
    assert [report["in_sync"] for report in reports(node.hear("tr.1", Epoch))] == [None]
    node.stop("tr.1")


@pytest.mark.parametrize("trouble", ["hangs", "holds the GIL"])
def test_hang(node: Node, trouble: str, eventually: Callable[[Callable[[], object]], None]) -> None:
    name = f"{trouble[:4]}-stuck.1"
    node.agent.start(make_part(name, 2.0, until=9, trouble=trouble, rank=1))
    node.hear(name, Epoch)
    eventually(lambda: f"epoch 2 {trouble}" in node.log(name, 1))
    eventually(lambda: "epoch 2 None" in node.log(name, 0))
    node.agent.stop(name, stacks=True)
    assert "Lost" not in kinds(node.hear(name))
    stuck, waiting = node.log(name, 1), node.log(name, 0)
    for log in (stuck, waiting):
        assert "nothing was reported for too long" in log
        assert 'train.py", line' in log
    line = next(n for n, text in enumerate(TRAIN.split("\n"), start=1) if STUCK[trouble] in text)
    assert f'train.py", line {line} in train' in stuck


def test_no_hang(node: Node, eventually: Callable[[Callable[[], object]], None]) -> None:
    node.agent.start(make_part("hangs.1", 2.0, until=9, trouble="hangs", rank=1))
    node.hear("hangs.1", Epoch)
    os.kill(node.pid("hangs.1", 1), signal.SIGKILL)  # rank 0 waits for its gradients
    assert "SIGKILL" in str(node.hear("hangs.1"))


def test_packed_trials_share_a_gpu(node: Node) -> None:
    for name, gpu in (("p.1", 1), ("q.1", 1), ("r.1", 0), ("s.1", 0)):
        node.agent.start(make_part(name, 0.5, until=1, gpu=gpu))
    node.agent.start(make_part("w.1", 1.0, until=1))
    node.stop("p.1")
    assert not node.agent.describe()["w.1"].ready, "half a GPU is too little for it"
    node.agent.stop("q.1")
    assert kinds(node.hear("w.1", Epoch)) == ["Ready", "Epoch"]
    node.stop("r.1", "s.1", "w.1")


def test_no_gpu_comes_free_for_a_session(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two halves of different GPUs are no room for a whole one; it shouldn't be placed here."""
    node.agent.start(make_part("h.1", 0.5, until=1, gpu=0))
    node.agent.start(make_part("i.1", 0.5, until=1, gpu=1))
    node.hear("i.1", Epoch)
    monkeypatch.setattr("cloudtune.infra.node.agent._SLOT_SECONDS", 0.5)
    node.agent.start(make_part("x.1", 1.0, until=1))
    reported = node.hear("x.1")
    assert kinds(reported) == ["Lost", "Gone"]
    assert "no room on this node's GPUs for 0.5 s" in str(reported[0])
    assert not node.agent.describe()["h.1"].gone, "who has a slot keeps it"
    node.stop("h.1", "i.1")


def test_unacknowledged_reports_are_repeated(node: Node) -> None:
    node.agent.start(make_part("n.1", 1.0, until=1))
    first = node.last

    def until(body: type[Body]) -> list[Message]:
        result = node.agent.messages(first, first, 30.0)
        while not isinstance(result[-1].body, body):
            result += node.agent.messages(result[-1].number, first, 30.0)
        return result

    until(Epoch)
    node.agent.stop("n.1")
    reported = until(Gone)
    # A worker that is stopped before it waits for its next epoch ends without Done.
    bodies = [type(message.body) for message in reported if not isinstance(message.body, Done)]
    assert bodies == [Ready, Epoch, Gone]
    assert until(Gone) == reported, "as often as somebody asks"
    assert node.agent.describe()["n.1"].gone
    node.last = reported[-1].number
    node.agent.messages(node.last, node.last, 0.0)
    assert "n.1" not in node.agent.describe()


def test_killed_zygote_is_replaced(node: Node) -> None:
    node.agent.start(make_part("z.1", 1.0, until=1))
    node.hear("z.1", Epoch)
    os.kill(int(node.agent.hello()["zygote"]), signal.SIGKILL)
    assert "died with the process that it was forked from" in str(node.hear("z.1"))
    assert not is_alive(node.pid("z.1"))
    node.agent.start(make_part("z.2", 1.0, until=1))
    assert kinds(node.hear("z.2", Epoch)) == ["Ready", "Epoch"]
    assert "without the user's module" in str(node.agent.hello()["note"])
    node.stop("z.2")


PROGRAM = """
import sys
from pathlib import Path
from tests_agent import Node, make_part, training_in
from cloudtune.infra.node.messages import Epoch
node = Node(Path.cwd(), training_in(Path.cwd()))
node.agent.start(make_part("k.1", 2.0, until=9, trouble="hangs"))
node.hear("k.1", Epoch)
pids = [node.agent.hello()["zygote"], node.pid("k.1", 0), node.pid("k.1", 1)]
print(*pids, flush=True)
sys.stdin.read()
"""


def test_a_killed_agent(tmp_path: Path, eventually: Callable[[Callable[[], object]], None]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "tests_agent.py").symlink_to(__file__)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout is not None
        pids = [int(word) for word in agent.stdout.readline().split()]
        assert len(pids) == 3
        agent.kill()
    eventually(lambda: not any(is_alive(pid) for pid in pids))

"""Commands on one node, by an agent in this process: several workers, ends, and what is left."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from cloudtune.infra.node.messages import Epoch, Training
from cloudtune.lifecycle.runner import read_program
from cloudtune.script.command import split_words
from cloudtune.train.programs.program import Program
from tests.builders.experiments import small_experiment
from tests.guard import is_alive
from tests.one_node import Node, failure, kinds, make_part, node_in, reports

pytestmark = pytest.mark.usefixtures("leaves_nothing")

# As for torchrun: it meets the others itself, rank 0 writes.
SCRIPT = """
import argparse, json, os, pathlib, signal
import torch
from torch import distributed
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int)
parser.add_argument("--trouble")
parser.add_argument("--resume")
args = parser.parse_args()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
model = net = torch.nn.Linear(4, 1)
print("pid", os.getpid(), "of", size, "threads", os.environ["OMP_NUM_THREADS"], flush=True)
if size > 1 and args.trouble != "alone":
    distributed.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(model)
done = 0
if args.resume:
    state = torch.load(args.resume)
    done = state["epoch"]
    model.load_state_dict(state["model"])
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
for epoch in range(done + 1, args.epochs + 1):
    if args.trouble == "dies":
        os.kill(os.getpid(), 9)
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        pathlib.Path("out").mkdir(exist_ok=True)
        torch.save({"epoch": epoch, "model": model.state_dict()}, "out/last.pt")
        with open("metrics.jsonl", "a") as log:
            print(json.dumps({"loss": loss.item(), "epoch": epoch}), file=log)
        signal.sigwait([signal.SIGCONT])  # an epoch is long: it is seen, before the next has ended
"""
COMMAND = "python main.py --lr {lr} --epochs {epochs} --resume {resume}/last.pt --trouble {trouble}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    program = Program(COMMAND, split_words(COMMAND), 9999, file="metrics.jsonl", folder="out")
    training = Training(COMMAND, "loss", "min", 9999, str(folder / "store"), 0, program=program)
    with node_in(folder, SCRIPT, training, name="main.py") as node:
        yield node


def test_command_resumes_on_two_workers(node: Node) -> None:
    node.agent.start(make_part("a.1", 1.0, until=1, lr=0.1))
    reported = node.hear("a.1", Epoch)
    node.stop("a.1")
    (report,) = reports(reported)
    assert report["epoch"] == 1
    node.agent.start(make_part("a.2", 2.0, until=3, checkpoint=report["checkpoint"], lr=0.1))
    result = [reports(node.hear("a.2", Epoch))[-1] for _ in range(2)]
    assert [item["metrics"]["epoch"] for item in result] == [2.0, 3.0]
    pids = [node.pid("a.2", rank) for rank in range(2)]
    assert node.printed("a.2", 1)[2:] == ["of", "2", "threads", "1"]
    assert "Failure" not in kinds(node.stop("a.2"))
    assert not any(map(is_alive, pids))


def test_separate_models_are_reported(node: Node) -> None:
    node.agent.start(make_part("b.1", 2.0, until=1, lr=0.1, trouble="alone"))
    failed = failure(node.hear("b.1"))
    assert failed.unsynced
    assert "its 2 workers never met" in failed.error


ONE_FOLDER = """
import pathlib, signal
pathlib.Path("made").mkdir()
signal.pause()  # the other one trains on
"""


def test_colliding_workers_are_separate_models(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.folder / "one_folder.py").write_text(ONE_FOLDER)
    command = {"train": "python one_folder.py {lr}", "reports": {"file": "metrics.jsonl"}}
    experiment = small_experiment(node.folder, **command)
    program = read_program(experiment)
    training = Training(experiment.train, "loss", "min", 9, str(node.folder), 0, program=program)
    monkeypatch.setattr(node.agent, "_training", training)
    node.agent.start(make_part("o.1", 2.0, until=1, lr=0.1))
    failed = failure(node.hear("o.1"))
    assert failed.unsynced
    assert "its 2 workers never joined a process group" in failed.error
    assert "File exists: 'made'" in failed.error


def test_a_killed_command_is_a_lost_worker(node: Node) -> None:
    node.agent.start(make_part("c.1", 1.0, until=1, lr=0.1, trouble="dies"))
    assert "was killed by SIGKILL" in str(node.hear("c.1"))


PLAIN = """
import json, os, sys
names = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name in os.environ]
with open("metrics.jsonl", "a") as log:
    print(json.dumps({"loss": len(names), "epoch": 1}), file=log)
"""


@pytest.mark.parametrize(("gpus", "seen"), [({}, 3.0), ({"max": 1}, 0.0)])
def test_one_gpu_command_lacks_torchrun_variables(
    node: Node, monkeypatch: pytest.MonkeyPatch, gpus: dict[str, int], seen: float
) -> None:
    (node.folder / "plain.py").write_text(PLAIN)
    reports_in = {"file": "metrics.jsonl"}
    command = {"train": "python plain.py {lr}", "reports": reports_in, "epochs": {"max": 1}}
    experiment = small_experiment(node.folder, **command, trial={"gpus": gpus})
    program = read_program(experiment)
    storage = str(node.folder / "store")
    training = Training(experiment.train, "loss", "min", 1, storage, 0, program=program)
    monkeypatch.setattr(node.agent, "_training", training)
    session = f"plain-{len(gpus)}.1"
    node.agent.start(make_part(session, 1.0, until=1, lr=0.1))
    [report] = reports(node.hear(session, Epoch))
    node.stop(session)
    assert report["metrics"]["loss"] == seen


def test_zygote_death_ends_the_command(
    node: Node, eventually: Callable[[Callable[[], object]], None]
) -> None:
    node.agent.start(make_part("d.1", 1.0, until=1, lr=0.1))
    node.hear("d.1", Epoch)
    pid = node.pid("d.1")
    os.kill(int(node.agent.hello()["zygote"]), signal.SIGKILL)
    node.hear("d.1")
    eventually(lambda: not is_alive(pid))  # it has been killed by now, and may not be gone

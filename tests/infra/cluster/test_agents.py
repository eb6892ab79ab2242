"""An agent as the actor that it is: it can be asked everything while it isn't ready yet."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.bench import python

ROOT = Path(__file__).resolve().parents[3]

WAITS_FOR_THE_WRITER = """
with open("fifo") as fifo:
    fifo.read()

def train(config): ...
"""

# In a process of its own, with a Ray of its own, which is gone with it.
PROGRAM = """
import math, sys, threading, time
import ray
from pathlib import Path
from cloudtune.infra.cluster.agents import Agents
from cloudtune.infra.cluster.base import JoinedNode, Rental
from cloudtune.infra.cluster.head import RayHead
from cloudtune.infra.node import agent
from cloudtune.infra.node.messages import Training
from cloudtune.infra.provider import Endpoint

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
training = Training("train.py:train", "loss", "min", 9, "store", 0)
head = RayHead(Path("."), Rental("a-run", Endpoint("us-east-1"), {}, 60.0, 0.0, {}, {}))
agents = Agents(head, training, lambda *_: None, lambda *_: None, lambda: math.inf)
(node,) = ray.nodes()
ready = lambda: agents.ready(JoinedNode("i-1", node["NodeID"], 1))
ready()
begun = time.monotonic()
with open("fifo", "w"):  # the zygote has come to the user's module, and waits for the end of this
    print(ready(), ray.get(agents.call("i-1", "describe"), timeout=30.0))
    print(time.monotonic() - begun < agent.WARM_SECONDS)
patience = threading.Event()
print(any(ready() or patience.wait(0.1) for _ in range(300)))
agents.close()
ray.shutdown()
head.stop()
"""


@pytest.mark.walk("it starts a Ray of its own")
def test_node_is_ready_with_its_zygote(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "train.py").write_text(WAITS_FOR_THE_WRITER)
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="ct-ray-") as ray:
        own = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        nowhere = "http://127.0.0.1:9"
        done = python(PROGRAM, ray, cwd=tmp_path, AWS_EC2_METADATA_SERVICE_ENDPOINT=nowhere, **own)
    first, in_time, second = done.stdout.splitlines()
    if in_time == "False":
        pytest.skip("this machine takes longer to import torch than a node waits for it")
    assert (first, second) == ("False {}", "True"), done.stderr

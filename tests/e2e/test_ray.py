"""Whole runs on a Ray cluster that somebody else runs, with other work on it."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

from tests.bench import Bench, follow
from tests.e2e.test_run import check_replay
from tests.ray_cluster import NOTHING, SomebodysCluster, cluster

pytestmark = [pytest.mark.cluster, pytest.mark.walk("it starts Ray clusters of three nodes")]

PREEMPTION = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
OTHER_JOB = """
import os, sys, time, ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
@ray.remote(num_gpus=2, num_cpus=0)
class Held: pass
held = [Held.remote() for _ in range(2)]
ray.get([it.__ray_ready__.remote() for it in held])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def folder(leaves_nothing: None) -> Iterator[Path]:
    """A folder for the sockets of Ray: its path is short."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[SomebodysCluster]:
    """A cluster of three nodes with two slots each; a test may end some."""
    with cluster(folder, nodes=3) as started:
        yield started


def ready(bench: Bench, where: SomebodysCluster, cloud: str, trouble: str, node: str) -> Path:
    """Write an experiment for a cluster, and a profile of its nodes; returns its path."""
    bench.environment |= where.environment
    path = bench.experiment(trouble, trials=6, first=2, last=8)
    text = path.read_text().partition("limits:")[0]
    text += "trial: {try_first: false}\nlimits: {deadline: 3m}\n"
    text += "strategy: {name: asha, fleet: constant:3}\n"
    path.write_text(f"{text}cloud: {{provider: ray{cloud}}}\n")
    bench.profile_on(node, {1.0: 0.5, 2.0: 0.3}, boot=5.0)
    return path


def test_what_another_job_holds_is_not_there_until_it_is_free(
    bench: Bench, shared: SomebodysCluster
) -> None:
    waits = "while epoch == 8 and not os.path.exists({!r}):\n            time.sleep(0.1)"
    trouble = "import time; time.sleep(0.3)\n        " + waits.format(str(bench.folder / "go"))
    path = ready(bench, shared, ", address: auto, avoid: 2s", trouble, "2x-gpu")
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_JOB],
        env={**os.environ, **shared.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    run = bench.start("run", path)
    follow(run, bench, "NoRoomError")
    follow(run, bench, "EpochDone")
    assert bench.recorded('"InstanceLaunched"') == 1
    os.kill(run.pid, signal.SIGKILL)  # its agents go on, and the next controller finds them
    run.communicate()
    assert "ray-" in bench.here("status").out

    other.communicate(timeout=600)
    run = bench.start("resume")
    follow(run, bench, "NodeJoined", 3)
    drain(shared, "1")
    follow(run, bench, "InterruptionNotice")
    shared.processes[3].stop()
    follow(run, bench, "InstanceGone")
    (bench.folder / "go").touch()
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, out + err
    assert "0 instances left" in out
    assert shared.left() == NOTHING
    assert shared.view.answers(), "it is somebody else's"


def drain(where: SomebodysCluster, slot: str) -> None:
    """Have Ray say that a node goes, as it says of a spot instance that has its notice."""
    (node,) = [
        bytes(it.node_id)
        for it in where.view._status().cluster_resource_state.node_states
        if it.labels["slot"] == slot
    ]
    due = round(1000 * (time.time() + 30.0))
    where.view._gcs.drain_node(node.hex(), PREEMPTION, "it is wanted elsewhere", due)


def test_a_cluster_scales_from_none_to_three_nodes_and_back(bench: Bench, folder: Path) -> None:
    with cluster(folder, scales_to=3) as where:
        cloud = ", instances: [gpu-node], slots: 2, max_instances: 3, prices: {gpu-node: $36/h}"
        path = ready(bench, where, cloud, "import time; time.sleep(0.3)", "gpu-node")
        counts: list[int] = []
        ended = threading.Event()

        def count() -> None:
            while not ended.wait(0.2):
                counts.append(len(where.view.nodes()))

        counting = threading.Thread(target=count)
        counting.start()
        done = bench("run", path)
        assert done.code == 0, done.out + done.err
        where.wait_for_nodes(0)
        ended.set()
        counting.join()
        assert max(counts) == 3
        assert where.left() == NOTHING
        report = bench.last_report()
        seconds = sum(it["end"] - it["begin"] for it in report["accounting"]["instances"])
        assert report["dollars"]["actual"] == pytest.approx(seconds / 100, rel=0.01)
        check_replay(bench.home / "runs" / report["run"])

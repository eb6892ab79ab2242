"""Whole runs on a Ray cluster that somebody else runs: what goes wrong there, what it may cost."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
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
DEADLINE = 240.0
GPU_HOURS = 0.3


@pytest.fixture(scope="module")
def folder(leaves_nothing: None) -> Iterator[Path]:
    """A folder for the sockets of Ray: its path is short."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def shared_cluster(folder: Path) -> Iterator[SomebodysCluster]:
    """A cluster of three nodes with two slots each; a test may end some."""
    with cluster(folder, nodes=3) as started:
        yield started


def ready(
    bench: Bench,
    where: SomebodysCluster,
    cloud: str = "",
    node: str = "2x-gpu",
    limits: str = f"{{deadline: {DEADLINE:.0f}s, gpu_hours: {GPU_HOURS}}}",
) -> Path:
    bench.environment |= where.environment
    return bench.shared(f"{{provider: ray, avoid: 2s{cloud}}}", node, limits)


def others(where: SomebodysCluster) -> subprocess.Popen[str]:
    """Have another job hold two nodes until its input ends."""
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_JOB],
        env={**os.environ, **where.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    return other


def hold(bench: Bench, where: SomebodysCluster) -> subprocess.Popen[str]:
    """What others hold isn't there until it is free."""
    other = others(where)
    run = bench.start("run", ready(bench, where))
    follow(run, bench, "NoRoomError")
    follow(run, bench, "EpochDone")
    assert bench.recorded('"InstanceLaunched"') == 1
    other.communicate(timeout=600)
    follow(run, bench, "NodeJoined", 2)
    return run


def kill(bench: Bench, where: SomebodysCluster) -> subprocess.Popen[str]:
    """The agents go on, and the next controller finds them."""
    run = bench.start("run", ready(bench, where))
    follow(run, bench, "EpochDone")
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    assert "ray-" in bench.here("status").out
    run = bench.start("resume")
    follow(run, bench, "RunResumed")
    return run


def dies(bench: Bench, where: SomebodysCluster) -> subprocess.Popen[str]:
    """One of the nodes that train is drained, and vanishes."""
    run = bench.start("run", ready(bench, where))
    follow(run, bench, "NodeJoined", 2)
    follow(run, bench, "EpochDone")
    state = where.view._status().cluster_resource_state
    node = next(
        it for it in state.node_states if it.total_resources["GPU"] > it.available_resources["GPU"]
    )
    due = round(1000 * (time.time() + 30.0))
    where.view._gcs.drain_node(bytes(node.node_id).hex(), PREEMPTION, "it is wanted elsewhere", due)
    follow(run, bench, "InterruptionNotice")
    where.processes[1 + int(node.labels["slot"])].stop()
    follow(run, bench, "InstanceGone")
    follow(run, bench, "NodeJoined", 3)
    return run


def enter(bench: Bench, where: SomebodysCluster) -> subprocess.Popen[str]:
    """A person runs a command where trials train."""
    run = bench.start("run", ready(bench, where))
    follow(run, bench, "NodeJoined", 2)
    follow(run, bench, "EpochDone")
    [name] = (path.name for path in (bench.home / "runs").iterdir())
    seen = bench("exec", name, "t00", "--", "sh", "-c", "ls; echo no >&2; exit 3")
    assert (seen.code, seen.err) == (3, "no\n"), seen.out
    assert "train.py" in seen.out
    bench("exec", name, "t00", "--", "/none").refused("/none: No such file", code=127)
    bench("shell", name, "t00").refused("a Ray cluster has no terminals")
    return run


@pytest.mark.parametrize("fault", [enter, hold, kill, dies], ids=lambda it: it.__name__)
def test_limits_and_winner_hold_and_nothing_is_left(
    bench: Bench,
    shared_cluster: SomebodysCluster,
    fault: Callable[[Bench, SomebodysCluster], subprocess.Popen[str]],
) -> None:
    run = fault(bench, shared_cluster)
    (bench.folder / "go").touch()
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, out + err
    assert "0 instances left" in out
    seconds = sum(it["ended_at"] - it["launched_at"] for it in bench.last_report()["instances"])
    bench.judge(fault.__name__, DEADLINE, GPU_HOURS, 2 * seconds)
    assert shared_cluster.left() == NOTHING
    assert shared_cluster.view.answers(), "it is somebody else's"


def test_a_run_whose_cluster_dies_cannot_look(bench: Bench, folder: Path) -> None:
    with cluster(folder, nodes=1) as where:
        run = bench.start("run", ready(bench, where))
        follow(run, bench, "EpochDone")
        where.processes[0].stop()
        _, err = run.communicate(timeout=600)
    assert run.returncode == 7
    assert "the head of the Ray cluster is gone" in err
    bench.judge("head dies", DEADLINE, GPU_HOURS, 0.0)


def test_ray_cluster_scales_up_and_back(bench: Bench, folder: Path) -> None:
    with cluster(folder, scales_to=3) as where:
        cloud = ", instances: [gpu-node], slots: 2, max_instances: 3, prices: {gpu-node: $36/h}"
        path = ready(bench, where, cloud, "gpu-node", limits="{deadline: 4m, budget: $20}")
        path.write_text(path.read_text().replace("constant:2", "constant:3"))
        (bench.folder / "go").touch()
        counts: list[int] = []
        ended = threading.Event()

        def count() -> None:
            while not ended.wait(0.2):
                counts.append(len(where.view.nodes()))

        counting = threading.Thread(target=count)
        counting.start()
        try:
            bench("run", path).succeeded()
            where.wait_for_nodes(0)
        finally:
            ended.set()
            counting.join()
        assert max(counts) == 3
        assert where.left() == NOTHING
        report = bench.last_report()
        seconds = sum(it["end"] - it["begin"] for it in report["accounting"]["instances"])
        assert report["dollars"]["actual"] == pytest.approx(seconds / 100, rel=0.01)
        check_replay(bench.home / "runs" / report["run"])

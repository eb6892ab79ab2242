"""A whole run on this machine itself: no cloud, no price, and nothing left afterwards."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.service import find_emulator
from cloudtune.infra.node.lease import LEASE_MINUTES
from tests.bench import Bench, follow, wait_for

pytestmark = pytest.mark.cluster

# The last epoch waits for the test.
WAITS = """while epoch == 8 and not os.path.exists({go!r}):
            import time; time.sleep(0.1)
        print("epoch", epoch, "of rank", rank)"""
LIMITS_AND_CLOUD = """
limits: {deadline: 40m}
cloud: {provider: local, slots: 2}
"""


@pytest.fixture
def experiment(bench: Bench) -> Path:
    """A script on two CPU slots of this machine, measured before."""
    bench.environment["CUDA_VISIBLE_DEVICES"] = ""
    waits = WAITS.format(go=str(bench.folder / "go"))
    path = bench.experiment(waits, trials=4, first=2, last=8)
    path.write_text(path.read_text().partition("limits:")[0] + LIMITS_AND_CLOUD)
    bench.profile_on("local-2x-cpu", {1.0: 0.4, 2.0: 0.5}, boot=3.0)
    return path


def test_local_run_needs_only_a_deadline(bench: Bench, experiment: Path) -> None:
    process = bench.start("run", experiment)
    wait_for(lambda: bool(machines(bench)))
    (machine,) = machines(bench)
    assert machine["type"] == "local-2x-cpu"
    # Renewed from the first minute on: the lease that runs began after the boot.
    wait_for(lambda: renewed_after_boot(bench))

    second = bench("run", experiment)
    assert second.code == 2
    assert "another run has this machine" in second.err
    assert second.out == "", "it is refused before anything is planned"
    result = bench.here("status")
    assert machine["id"] in result.out
    assert "$0.00" in result.out
    # What the workers print can be read while they train.
    wait_for(lambda: "epoch 2 of rank 0" in bench.here("logs").out)

    (bench.folder / "go").touch()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "0 instances left" in out

    report = bench.last_report()
    assert set(report["dollars"].values()) == {0.0}
    assert report["exit_code"] == 0
    values = [value for trial in report["trials"] for value in trial["history"].values()]
    assert report["best"]["value"] == min(values)
    assert report["best"]["epoch"] == 8
    best = bench.here("logs", report["run"], report["best"]["trial"])
    assert "epoch 8 of rank 0" in best.out
    assert best.out.count("epoch 1 of rank 0") == 1
    assert find_emulator(bench.home / "local") is None
    assert "No instance of cloudtune is alive" in bench.here("status").out


def machines(bench: Bench) -> list[dict[str, Any]]:
    """Return what this machine's own EC2 has running."""
    emulator = find_emulator(bench.home / "local")
    if emulator is None:
        return []
    result = EmulatorControl(emulator.access).instances()
    return [item for item in result if item["state"] == "running"]


def renewed_after_boot(bench: Bench) -> bool:
    lease = 60 * LEASE_MINUTES
    began = [
        machine["power_off_at"] - lease for machine in machines(bench) if machine["power_off_at"]
    ]
    booted = [machine["booted_at"] for machine in machines(bench)]
    assert not began or began[0] < time.time() + 1
    return bool(began) and began[0] > booted[0] + 1.0


def test_run_ignoring_ctrl_c_can_stop(bench: Bench, experiment: Path) -> None:
    """As one that a script has started in the background (`cloudtune run … &`)."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what it inherits
    try:
        process = bench.start("run", experiment)
    finally:
        signal.signal(signal.SIGINT, before)
    follow(process, bench, "EpochDone")
    bench.here("stop").succeeded("Stopping run ")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert bench.last_report()["ended"] == "interrupted"

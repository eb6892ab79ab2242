"""A real Slurm cluster as a cloud: what it offers, what is submitted, and what ends it."""

import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cloudtune.clock import unix_time
from cloudtune.errors import UsageError
from cloudtune.experiment import Experiment
from cloudtune.experiment.schema import LimitSettings
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.problem import build_problem
from cloudtune.infra.node.lease import first_lease
from cloudtune.infra.provider import INTENT_TAG, LEASE_TAG, RUN_TAG, calls_to
from cloudtune.infra.slurm import nodes
from cloudtune.infra.slurm.calls import SlurmCalls, SlurmError, time_options
from cloudtune.infra.slurm.provider import SLURM
from cloudtune.model.commands import Launch
from cloudtune.model.plans import Limits
from tests.bench import wait_for
from tests.builders.experiments import FIELDS
from tests.builders.proposals import speed
from tests.contracts.provider import ProviderContract
from tests.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = pytest.mark.cluster
RUN = "a-run"


@pytest.fixture(scope="module")
def lab(leaves_nothing: None) -> Iterator[SlurmCluster]:
    """A cluster of one CPU node and one GPU node."""
    with (
        tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder,
        slurm_cluster(Path(folder), nodes=1) as started,
    ):
        yield started


@pytest.fixture(autouse=True)
def _found(lab: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)


class TestSlurm(ProviderContract):
    name = "slurm"
    cloud: ClassVar = {"slots": 2, "instances": ("cpu",)}
    incomplete: ClassVar = ({"setup": {"pip": ("numpy",)}},)
    refusals: ClassVar = {"Unreachable": "busy", "LimitReached": "quota"}

    def experiment(self, **changes: Any) -> Experiment:
        return SLURM.with_account_defaults(super().experiment(**changes))


def experiment(**cloud: object) -> Experiment:
    settings = {"provider": "slurm", "slots": 2, "instances": ("cpu",), **cloud}
    return SLURM.with_account_defaults(Experiment(**{**FIELDS, "cloud": settings}))


def submit(
    tmp_path: Path, boot: str, *, seconds: float = 600.0, kind: str = "cpu", **cloud: object
) -> tuple[SlurmCalls, str]:
    """Submit an instance that boots by a script; returns what asks Slurm, and its id."""
    asked = experiment(instances=(kind,), **cloud)
    opened = SLURM.open(asked, tmp_path, pace=False)
    calls = calls_to(opened.endpoint)
    assert isinstance(calls, SlurmCalls)
    end = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tags = {RUN_TAG: RUN, INTENT_TAG: f"i{time.monotonic_ns()}", LEASE_TAG: end}
    request = {**opened.request, **SLURM.launch_request(Launch("i000", kind, "on-demand"), boot)}
    return calls, calls.run_instance(tags[INTENT_TAG], tags, request)


def state(calls: SlurmCalls, instance: str) -> str:
    (result,) = [it for it in calls.ours(RUN) if it.id == instance]
    return result.state


def await_end(calls: SlurmCalls, *instances: str) -> None:
    calls.terminate(instances)
    wait_for(lambda: not calls.ours(RUN, ended=False))


def test_partitions_are_priced_types() -> None:
    asked = experiment(instances=("*",), prices={"gpu": "$6/h"})
    assert asked.cloud.region == "lab"
    offers = SLURM.catalog(asked.cloud, ("on-demand",), Path()).offers
    result = {
        offer.instance_type.name: (offer.gpus, offer.instance_type.gpu, offer.usd_per_hour)
        for offer in offers
    }
    assert result == {"cpu": (2, "gpu", 0.0), "gpu": (2, "tesla", 6.0), "urgent": (2, "gpu", 0.0)}
    half = experiment(instances=("gpu",), slots=1, prices={"gpu": "$6/h"})
    (offer,) = SLURM.catalog(half.cloud, ("on-demand",), Path()).matching(("gpu",), ("on-demand",))
    assert (offer.gpus, offer.usd_per_hour) == (1, 3.0)
    assert half.cloud.max_instances == 2


def test_missing_slots_get_advice() -> None:
    with pytest.raises(UsageError, match="cpu"):
        experiment(slots=None)


def test_nodes_with_the_same_gpus_are_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "big*|gpu:A100:8(S:0-1)|64|500000|1-00:00:00|idle|n1\n"
        "big*|gpu:A100:8|96|400000|1-00:00:00|mixed|n2\n"
        "big*|gpu:A100:8|96|400000|1-00:00:00|down*|n3\n"
        "big*|(null)|32|100000|1-00:00:00|idle|n4\n"
    )
    monkeypatch.setattr(nodes, "ask", lambda *_: said)
    result = nodes.kinds()
    assert set(result) == {"big:8x-A100", "big:32-cores"}
    kind = result["big:8x-A100"]
    assert kind.hosts == {"n1", "n2"}
    assert (kind.cores, kind.memory, kind.limit_seconds) == (64, 400000, 86400.0)
    half = kind.instance("big:8x-A100", 4)
    assert half is not None
    assert (half.gpus, half.gpu, half.vcpus) == (4, "a100", 32)
    assert "--gpus-per-node=A100:4" in nodes.sbatch_options(kind, half), (
        "types are written as they are"
    )


def test_a_node_of_two_partitions_counts_once() -> None:
    asked = experiment(instances=("*",), slots=1)
    assert SLURM.capacity(asked.cloud) == {"cpu": 1, "gpu": 2, "urgent": 0}
    assert asked.cloud.max_instances == 3
    assert experiment(instances=("urgent",)).cloud.max_instances == 1
    assert experiment(instances=("*",), max_instances=9).cloud.max_instances == 2


def test_shared_node_is_planned_cheapest() -> None:
    asked = experiment(instances=("cpu", "urgent"), prices={"cpu": 2, "urgent": 1})
    assert SLURM.capacity(asked.cloud) == {"cpu": 0, "urgent": 1}


OVERLAPPING = """\
short*|gpu:a100:8|64|500000|8:00:00|idle|n1
short*|gpu:a100:8|64|500000|8:00:00|idle|n2
short*|gpu:a100:8|64|500000|8:00:00|idle|n3
long|gpu:a100:8|64|500000|7-00:00:00|mixed|n3
long|gpu:a100:8|64|500000|7-00:00:00|idle|n4
apart|gpu:a100:8|64|500000|8:00:00|idle|n5
"""


def test_overlapping_partitions_share_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("def train(config, epochs):\n    yield {'loss': 0.0}\n")
    settings = {"provider": "slurm", "slots": 4}
    fields = {**FIELDS, "cloud": settings, "directory": tmp_path}
    monkeypatch.setattr("cloudtune.infra.slurm.nodes.cluster_name", lambda: "lab")
    monkeypatch.setattr(nodes, "ask", lambda *_: OVERLAPPING)
    everywhere = SLURM.with_account_defaults(Experiment(**fields))
    assert everywhere.cloud.max_instances == 10
    profiles = [speed(name, 10.0) for name in ("short", "long")]
    planned = build_problem(everywhere, profiles)
    most = {rentable.offer.instance_type.name: rentable.most for rentable in planned.rentables}
    assert most == {"short": 4, "long": 4}, "n3 may be used for longest in long"
    alone = build_problem(everywhere, profiles[:1])
    assert [rentable.most for rentable in alone.rentables] == [6], "n3 isn't planned elsewhere"


def test_another_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="submits to the cluster lab, not to other"):
        experiment(region="other")


def test_sbatch_refusals_come_first() -> None:
    assert SLURM.preflight(experiment(), None).problems == ()
    (said,) = SLURM.preflight(experiment(request={"constraint": "nowhere"}), None).problems
    assert said.startswith("cpu: sbatch: ")


def test_a_plan_counts_the_wait_that_slurm_foretells(lab: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config, epochs):\n    yield {'loss': 0.0}\n")
    asked = experiment().model_copy(update={"directory": tmp_path})
    job = lab.submit("cpu", "sleep 60", "--time=30", "--exclusive")
    wait_for(lambda: bool(lab.jobs("running")))
    waiting = build_problem(asked, [speed("cpu", 10.0)])
    assert any("cpu: the queue lets the next instance start in" in it for it in waiting.notes)
    assert make_plan(waiting, Limits()).plan.estimate.seconds > 1500
    lab.ask("scancel", job)
    wait_for(lambda: not lab.jobs("running,completing"))
    free = build_problem(asked, [speed("cpu", 10.0)])
    assert not any("queue" in it for it in free.notes)
    assert make_plan(free, Limits()).plan.estimate.seconds < 600


def test_slurm_wait_ends_at_deadline(lab: SlurmCluster, tmp_path: Path) -> None:
    """From half an hour on the node is reserved for somebody else."""
    (tmp_path / "train.py").write_text("def train(config, epochs):\n    yield {'loss': 0.0}\n")
    begin = f"StartTime={time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(time.time() + 1800))}"
    what = ("ReservationName=theirs", begin, "Duration=60", "Nodes=n1", "Users=root", "Flags=MAINT")
    lab.ask("scontrol", "create", "reservation", *what)
    asked = experiment().model_copy(update={"directory": tmp_path})
    short = asked.model_copy(update={"limits": LimitSettings.model_validate({"deadline": "10m"})})
    waits = [build_problem(it, [speed("cpu", 10.0)]).notes for it in (asked, short)]
    lab.ask("scontrol", "delete", "ReservationName=theirs")
    assert [any("the queue lets" in note for note in notes) for notes in waits] == [True, False]


def test_gpu_partition_job_has_gpus(tmp_path: Path) -> None:
    calls, instance = submit(tmp_path, "echo gpus=$SLURM_GPUS_ON_NODE; sleep 60", kind="gpu")
    wait_for(lambda: "gpus=2" in calls.console(instance))
    await_end(calls, instance)


def test_shutdown_in_a_job_ends_the_job_alone(tmp_path: Path) -> None:
    calls, instance = submit(tmp_path, "shutdown -P +5; sleep 2; shutdown -P now; sleep 60")
    wait_for(lambda: state(calls, instance) == "terminated")


def test_next_job_clears_leftovers(tmp_path: Path) -> None:
    says = 'echo "$PPID $folder"; setsid sleep 90 & sleep 90'
    calls, killed = submit(tmp_path, says)
    _, live = submit(tmp_path, says, kind="gpu")
    wait_for(lambda: bool(calls.console(killed) and calls.console(live)))
    job, folder = calls.console(killed).split()
    os.kill(int(job), signal.SIGKILL)
    wait_for(lambda: state(calls, killed) == "terminated")
    _, following = submit(tmp_path, "sleep 90")
    wait_for(lambda: not Path(folder).exists())
    assert Path(calls.console(live).split()[1], "job").is_file()
    await_end(calls, live, following)


def test_a_job_that_is_preempted_has_a_notice(lab: SlurmCluster, tmp_path: Path) -> None:
    boot = 'until [ -e "$CLOUDTUNE_NOTICE" ]; do sleep 0.2; done; cat $CLOUDTUNE_NOTICE; sleep 60'
    calls, instance = submit(tmp_path, boot)
    wait_for(lambda: state(calls, instance) == "running")
    listening = f"{instance.removeprefix('slurm-')}.0"
    wait_for(lambda: listening in lab.ask("squeue", "--noheader", "--steps", "--format=%i"))
    lab.submit("urgent", "sleep 1")
    wait_for(lambda: calls.console(instance).strip().isdecimal())
    due = float(calls.console(instance))
    assert 5 < due - time.time() < 25, "its partition's grace time is 20 s"
    await_end(calls, instance)
    lab.ask("scancel", "--user=root")


def test_slurm_job_ends_with_its_lease() -> None:
    end = datetime.fromtimestamp(unix_time() + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert time_options(end, math.inf) == ["--time=60", "--signal=B:TERM@120"]
    assert time_options(end, 600.0)[0] == "--time=10"


def test_late_slurm_job_ends_at_once(tmp_path: Path) -> None:
    past = time.time() - 5.0
    calls, instance = submit(tmp_path, f"{first_lease(past, past)}sleep 60")
    wait_for(lambda: state(calls, instance) == "terminated")


def test_unanswered_submission_may_exist() -> None:
    calls = SlurmCalls()
    assert not calls.is_definite(SlurmError("Unable to contact slurm controller"))
    refused = SlurmError("Batch job submission failed: Invalid account or account/partition")
    assert calls.is_definite(refused)
    assert calls.refusal_kind(calls.code(refused)) == "denied"
    assert calls.is_permanent(refused.code)
    limit = SlurmError("QOSMaxSubmitJobPerUserLimit: Job violates accounting/QOS policy (…)")
    assert calls.refusal_kind(limit.code) == "quota"

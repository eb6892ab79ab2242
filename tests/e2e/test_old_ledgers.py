"""A ledger of another version, through the command line: one message, and `gc` does its work.

`tests/engine/ledger-0.1.0.jsonl` was written by cloudtune 0.1.0: a run whose controller died after
two epochs. (Its ticks were left out, to keep it short.)
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.emulator.provider import emulated_cloud
from cloudtune.infra.processes import ProcessGroup
from cloudtune.infra.provider import INTENT_TAG, RUN_TAG
from tests.bench import Bench, Done

OLD = Path(__file__).parents[1] / "engine" / "ledger-0.1.0.jsonl"
REFUSED = (
    "written by cloudtune 0.1.0 (ledger version 2; this program reads 3). To report the run or to "
    "go on with it, install cloudtune 0.1.0; what it may have left running is given back by "
    "`cloudtune gc`"
)


@pytest.fixture
def run(bench: Bench) -> Path:
    """The folder of a run that cloudtune 0.1.0 began, and whose controller died."""
    folder = bench.home / "runs" / "r1"
    folder.mkdir(parents=True)
    shutil.copy(OLD, folder / "ledger.jsonl")
    dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    where = {"provider": "emulated", "region": "us-east-1"}
    ProcessGroup.of(dead.pid).record(folder / "controller.json", where)
    dead.communicate()
    return folder


def check_refusal(done: Done, *, code: int, start: str) -> None:
    assert done.code == code, done.err
    for line in done.out.splitlines():  # of `-o json`
        error = json.loads(line)
        assert (error["type"], error["message"].startswith(start.strip())) == ("error", True)
        assert error["what"].count("(") == error["what"].count(")")
    assert done.err.startswith(f"error: {start}")
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", ["report", "report r1 -o json", "resume r1"])
def test_a_ledger_of_0_1_0_is_refused(bench: Bench, run: Path, arguments: str) -> None:
    before = (run / "ledger.jsonl").read_bytes()
    done = bench.here(*arguments.split())
    check_refusal(done, code=1, start=f"{run / 'ledger.jsonl'}: {REFUSED}\n")
    assert (run / "ledger.jsonl").read_bytes() == before


def test_old_leftovers_are_shown_and_returned(bench: Bench, run: Path) -> None:
    cloud = emulated_cloud(bench.emulator, "us-east-1", pace=None)
    tags = {RUN_TAG: "r1", INTENT_TAG: "i000"}
    request = {**cloud.request, "InstanceType": "g5.xlarge", "UserData": "#!/bin/sh\nsleep 600\n"}
    instance = Ec2(cloud.endpoint).run_instance("a token", tags, request)
    shown = bench.here("status", "-o", "json").succeeded()
    assert [(row["id"], row["run"], row["orphan"]) for row in shown.json["instances"]] == [
        (instance, "r1", True)
    ]
    done = bench.here("gc").succeeded()
    assert f"returning {instance} (g5.xlarge, run r1)" in done.out
    assert "nothing left to return" in done.out
    assert bench.alive() == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "not a ledger: its first line isn't a header"),
        (
            ['{"cloudtune_ledger": 3, "run": "r1"}'],
            ":1: a damaged header, of no job (experiment: Field required",
        ),
        (['{"cloudtune_ledger": 4}'], "written by a later cloudtune (ledger version 4; this"),
        (['{"cloudtune_ledger": "x"}'], "written by another cloudtune (ledger version x; this"),
    ],
)
def test_a_ledger_that_is_none(bench: Bench, run: Path, lines: list[str], message: str) -> None:
    (run / "ledger.jsonl").write_text("".join(f"{line}\n" for line in lines))
    done = bench.here("report", "r1")
    check_refusal(done, code=1, start=str(run / "ledger.jsonl"))
    assert message in done.err

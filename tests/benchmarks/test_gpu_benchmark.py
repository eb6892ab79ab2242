"""The steps for a GPU as far as a CPU goes; MPS with stand-ins for its programs and for CUDA."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu import results, sharing
from benchmarks.gpu.__main__ import STEPS, main
from benchmarks.gpu.results import Findings
from tests.infra.mps_stand_in import write_control, write_smi

# A GPU whose clients compute by their share, and that keeps to the limits of MPS.
FAKE = """
import json, os, pathlib, sys, time
pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
pipes = pipes and pathlib.Path(pipes)
share = int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")) / 100
if pipes:
    (pipes / "clients" / str(os.getpid())).touch()
    while not (pipes / "server").exists():
        time.sleep(0.01)
def say(**result):
    print(json.dumps(result), flush=True)
say(ready=1, total_mib=24000 * share, processors=int(100 * share))
for line in sys.stdin:
    if pipes and (pipes / "fault").exists():
        say(error="RuntimeError: CUDA error: the server has ended", out_of_memory=False)
        break
    kind = sys.argv[1]
    if kind == "crash":
        (pipes / "fault").touch()
        say(error="RuntimeError: CUDA error: device-side assert triggered", out_of_memory=False)
        break
    if kind == "allocate":
        taken = 24000 if MILD else 5900
        say(error="OutOfMemoryError: CUDA out of memory", out_of_memory=True, allocated_mib=taken)
        break
    say(products_per_s=1000 * (1.0 if MILD else share), spins=True)
"""


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Findings]:
    """Give what runs the step on a machine whose MPS limits nothing, or does as it should."""
    programs = tmp_path / "bin"
    write_smi(programs, "0, GPU-aaaa, NVIDIA A10G, 24000\n")
    write_control(programs, tmp_path / "commands")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(sharing, "_compute_mode", lambda _: "Default")
    fake = tmp_path / "fake.py"
    monkeypatch.setattr(sharing, "PROGRAM", [str(fake)])

    def run(mild: str) -> Findings:
        fake.write_text(FAKE.replace("MILD", mild))
        return sharing.measure()

    return run


def test_mps_by_its_manual_is_recognized(mps: Callable[[str], Findings]) -> None:
    result = mps("False")
    assert result.failed == {}
    assert result.unknown == {}
    assert result.figures["threads_0.25_speed_share"] == 0.25
    assert result.figures["processors_at_0.5"] == 50
    assert result.facts["crash_is_a_fault_of_the_server"] is True
    assert result.facts["crash_restarted"] is True
    assert result.facts["after_a_crash_others_train"] is True
    assert result.facts["fallback_takes_turns"] is True


def test_step_fails_where_something_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"

    def broken() -> Findings:
        result = Findings({"x_s": 1.0})
        result.expect("all_is_well", so=False, message="it is not")
        return result

    monkeypatch.setattr(sharing, "measure", broken)
    monkeypatch.setattr(sys, "argv", ["gpu", "mps", "--out", str(out)])
    assert main() == 1
    assert "all_is_well  FAILED: it is not" in capsys.readouterr().out
    assert json.loads(out.read_text())["steps"]["mps"]["failed"] == {"all_is_well": "it is not"}
    assert results.VERSION == 1
    assert set(STEPS) >= {"zygote", "nccl", "resize", "mps", "packing", "profile", "local"}

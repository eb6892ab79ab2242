"""One run of the fault campaign on the real loop: its home, its emulated EC2, its processes.

Everything that is killed here was started here: the controller is our child, the head is in the
run's own record, and workers are looked for among the processes of the home's own machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil

from cloudtune.engine.ledger import Entry, read_entries
from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.aws.errors import CALL_ERRORS
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.provider import IMAGE, endpoint_of
from cloudtune.infra.emulator.service import Emulator, ensure_emulator, stop_emulator
from cloudtune.infra.processes import ProcessGroup, is_running
from cloudtune.infra.provider import RUN_TAG
from cloudtune.model.commands import EndRun, Launch, Release, StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.model.scaling import Measurement, ScalingProfile
from cloudtune.profiles.store import script_hash, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

Machine: TypeAlias = "Mapping[str, Any]"
TYPES = {"on-demand": "g7.12xlarge", "spot": "g4dn.12xlarge"}
"""Of two GPUs on demand, of four on spot, where no type with two of NVIDIA's is sold."""
LIMIT_SECONDS = 150.0
"""How much longer than its deadline a run's processes may take before it counts as hung."""
_POLL_SECONDS = 0.1
_EPOCH_SECONDS = 0.5
_ZYGOTE = "cloudtune.infra.node.zygote"

# The loss follows from the configuration and the epoch alone, whoever trains it where and how wide.
_TRAIN = """
import json
import tempfile
import time
from pathlib import Path

import torch

import cloudtune


def train(config):
    done = 0
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            done = json.loads((Path(folder) / "state.json").read_text())["epoch"]
    workers = cloudtune.get_context().get_world_size()
    for epoch in cloudtune.epochs():
        if epoch != done + 1:
            raise ValueError(f"epoch {epoch} follows the checkpoint of epoch {done}")
        time.sleep(SECONDS / workers)
        if workers > 1:
            count = torch.ones(1)
            torch.distributed.all_reduce(count)
        done = epoch
        loss = (config["x"] - 0.4) ** 2 + config["y"] / epoch
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps({"epoch": epoch}))
            cloudtune.report({"loss": loss}, cloudtune.Checkpoint.from_directory(folder))
""".replace("SECONDS", str(_EPOCH_SECONDS))

_EXPERIMENT = """
name: fault
train: train.py:train
metric: {{name: loss, mode: min}}
search: {{x: {{uniform: [0, 1]}}, y: {{uniform: [0.1, 1]}}}}
trials: 4
epochs: {{min: 8, max: 32}}
eta: 2
limits: {{deadline: {deadline:.0f}s, budget: ${budget:.4f}}}
trial: {{stall: {{least: 45s}}}}
cloud: {{instances: [{kind}], max_instances: 2, avoid: 5s, market: {market}}}
"""


class Stage:
    """A home with an experiment and an emulated EC2 that outlives the run, to be asked after it."""

    def __init__(self, folder: Path, deadline: float, budget: float, market: str) -> None:
        self.folder = folder
        self.home = folder / "h"
        self.deadline = deadline
        self.out = folder / "out.log"
        self._environment = {**os.environ, "CLOUDTUNE_HOME": str(self.home)}
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        self._scripts = folder / "x"  # beside the home: Ray copies it to every node
        self._scripts.mkdir(parents=True, exist_ok=True)
        kind, script = TYPES[market], self._scripts / "train.py"
        text = _EXPERIMENT.format(deadline=deadline, budget=budget, kind=kind, market=market)
        (self._scripts / "experiment.yaml").write_text(text)
        script.write_text(_TRAIN)
        write(self._scripts / "profile.json", [_profile(script, kind)])
        self._emulator = self._keep_emulator()
        self.control = EmulatorControl(self._emulator.access)

    def _keep_emulator(self) -> Emulator:
        """Start the emulator, with an instance of nobody's, so that no end of a run ends it."""
        emulator = ensure_emulator(self.home / "emulator")
        ec2 = Ec2(endpoint_of(emulator.access))
        request = {"InstanceType": "g4dn.xlarge", "ImageId": IMAGE}
        ec2.run_instance("sentinel", {"Name": "sentinel"}, request)
        return emulator

    # ---- the command line ----------------------------------------------------------------

    def start(self, *arguments: str) -> None:
        """Start a command of cloudtune's; its output goes to a file."""
        with self.out.open("ab") as out:
            out.write(f"\n$ cloudtune {' '.join(arguments)}\n".encode())
            out.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cloudtune", *arguments],
                env=self._environment,
                cwd=self._scripts,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def code(self) -> int | None:
        """Return the exit code of the command; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def finish(self) -> int | None:
        """Wait for the command, and return its exit code; None if it had to be killed for it."""
        give_up = max(time.monotonic() + 60.0, self._began + self.deadline + LIMIT_SECONDS)
        self.wait(lambda: False, give_up - time.monotonic())
        code = self.code()
        if code is None:
            self.kill_controller()
        return code

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is so; returns whether it is, before the command has ended."""
        give_up = time.monotonic() + seconds
        while self.code() is None and time.monotonic() < give_up:
            if condition():
                return True
            time.sleep(_POLL_SECONDS)
        return False

    # ---- what there is -------------------------------------------------------------------

    @property
    def run_folder(self) -> Path | None:
        """Where the run's records are, once it has some."""
        return next((path.parent for path in self.home.glob("runs/*/ledger.jsonl")), None)

    def entries(self) -> list[Entry]:
        """Return the ledger so far; none where its first line is just being written."""
        folder = self.run_folder
        if folder is None or b"\n" not in (folder / "ledger.jsonl").read_bytes():
            return []
        return list(read_entries(folder / "ledger.jsonl"))

    def in_phase(self, phase: str) -> bool:
        """Whether the run has come that far."""
        return any(_PHASES[phase](entry) for entry in self.entries())

    def machines(self) -> list[Machine]:
        """Return the emulator's own records of every instance that the run ever had."""
        return [each for each in self.control.instances() if RUN_TAG in each["tags"]]

    def alive(self) -> list[Machine]:
        """Return those that bill."""
        return [each for each in self.machines() if each["state"] in {"pending", "running"}]

    def processes(self) -> list[psutil.Process]:
        """Return every process that speaks of the home, but the emulator."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                told = " ".join([*process.cmdline(), *process.environ().values()])
                if str(self.folder) in told and is_running(process):
                    found.append(process)
        return [each for each in found if each.pid not in {os.getpid(), self._emulator.pid}]

    def zygotes(self) -> list[psutil.Process]:
        """Return the processes of the home's machines that workers are forked from."""
        known = {each["id"] for each in self.alive()}
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                machine = process.environ().get("CLOUDTUNE_MACHINE")
                if _ZYGOTE in process.cmdline() and machine in known:
                    found[process.pid] = process
        return [each for each in found.values() if each.ppid() not in found]

    # ---- what is done to it --------------------------------------------------------------

    def kill_controller(self) -> None:
        """Kill -9 the command."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_head(self) -> None:
        """Kill -9 all of the run's Ray head."""
        folder = self.run_folder
        recorded = None if folder is None else ProcessGroup.recorded(folder / "head.json")
        for process in [] if recorded is None else recorded[0].members():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def kill(self, processes: Iterable[psutil.Process]) -> None:
        """Kill -9 processes that were found here."""
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def freeze(self, processes: Iterable[psutil.Process]) -> None:
        """Stop processes that were found here, so that they hang."""
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def hang_up(self) -> None:
        """Take the terminal from the command, as a broken connection does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def take_storage_away(self) -> None:
        """Let nothing be written to the storage, and nothing be read."""
        storage = self.home / "storage"
        storage.rename(self.home / "storage-away")
        storage.write_text("not a folder\n")

    def bring_storage_back(self) -> None:
        """Have the storage as it was."""
        storage = self.home / "storage"
        storage.unlink()
        (self.home / "storage-away").rename(storage)

    def terminate(self, instance: str) -> None:
        """End an instance as another person with the same account would, whatever EC2 answers."""
        ec2 = Ec2(endpoint_of(self._emulator.access))
        for _ in range(10):
            with contextlib.suppress(*CALL_ERRORS):
                ec2.terminate([instance])
                return
            time.sleep(0.5)

    def close(self) -> None:
        """End what is left of it."""
        with contextlib.suppress(CloudtuneError):
            stop_emulator(self.home / "emulator", only_if_idle=False)
        self.kill_head()
        self.kill(self.processes())

    def report(self) -> dict[str, Any]:
        """Return what `cloudtune report -o json` says."""
        done = subprocess.run(
            [sys.executable, "-m", "cloudtune", "report", "-o", "json"],
            env=self._environment,
            cwd=self._scripts,
            capture_output=True,
            text=True,
            check=False,
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


_PHASES: dict[str, Callable[[Entry], bool]] = {
    "boot": lambda entry: any(isinstance(each, Launch) for each in entry.commands),
    "training": lambda entry: isinstance(entry.event, EpochDone),
    "hand-over": lambda entry: any(
        isinstance(each, StartTrial) and each.start_epoch >= 8 for each in entry.commands
    ),
    "wind-down": lambda entry: any(isinstance(each, Release | EndRun) for each in entry.commands),
}
PHASES = tuple(_PHASES)


def _profile(script: Path, instance_type: str) -> ScalingProfile:
    return ScalingProfile(
        instance_type=instance_type,
        epoch={1.0: Measurement(_EPOCH_SECONDS + 0.1), 2.0: Measurement(_EPOCH_SECONDS / 2 + 0.1)},
        launch=Measurement(1.0),
        boot=Measurement(9.0),
        start=Measurement(0.3),
        resize=Measurement(0.3),
        release=Measurement(1.5),
        script_hash=script_hash(script),
        measured_at="2026-11-21T00:00:00Z",
        source="made up for this campaign",
    )

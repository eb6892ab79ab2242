"""Whole runs through the command line, each in a home of its own that must be clean afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import pytest

from cloudtune.infra.aws.ec2 import Ec2
from cloudtune.infra.emulator.client import EmulatorControl
from cloudtune.infra.emulator.provider import make_endpoint
from cloudtune.infra.emulator.service import ensure_emulator, find_emulator, stop_emulator
from cloudtune.lifecycle.runner import Ended
from cloudtune.model.scaling import DELAYS, Measurement, ScalingProfile
from cloudtune.private_files import UMASK_VARIABLE
from cloudtune.profiles.store import script_hash, write
from cloudtune.runs.job import Job
from tests.builders.experiments import write_experiment

if TYPE_CHECKING:
    from cloudtune.lifecycle.reporter import Reporter

# Seconds in which what a test waits for comes to pass, on a machine that has other work.
_PATIENCE = 600.0

TRAIN = """
import math, os, tempfile
from pathlib import Path
import torch
import cloudtune

def train(config):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    net = cloudtune.prepare_model(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"])
    checkpoint = cloudtune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(Path(folder) / "state.pt"))
    rank = cloudtune.get_context().get_world_rank()
    for epoch in cloudtune.epochs():
        torch.manual_seed(0)  # its loss falls from epoch to epoch, whichever sessions train them
        x = torch.randn(16, 4) + rank
        loss = (net(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = float(loss.detach())
        {trouble}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), Path(folder) / "state.pt")
            cloudtune.report({{"loss": value}}, cloudtune.Checkpoint.from_directory(folder))
"""

PLAIN = """
import os, tempfile, time
from pathlib import Path
import cloudtune

def train(config):
    for epoch in cloudtune.epochs():
        time.sleep(0.2)
        while epoch == {last} and not os.path.exists({go!r}):
            time.sleep(0.1)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state").touch()
            loss = 1 / (config["lr"] * epoch)
            cloudtune.report({{"loss": loss}}, cloudtune.Checkpoint.from_directory(folder))
"""

EXPERIMENT = """
name: small
train: train.py:train
metric: {{name: loss, mode: min}}
search: {{lr: {{uniform: [0.01, 0.1]}}, n: {{randint: [0, 1000]}}}}
trials: {trials}
epochs: {{min: {first}, max: {last}}}
eta: 2
limits: {{deadline: 3m, budget: $2}}
cloud: {{instances: [g7.12xlarge], market: on-demand, max_instances: 2, avoid: 2s}}
strategy: sha
"""


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def succeeded(self, *words: str) -> Done:
        """Pass if the command succeeded, and printed these words."""
        assert self.code == 0, self.out + self.err
        for word in words:
            assert word in self.out
        return self

    def refused(self, *words: str, code: int = 2) -> Done:
        """Pass if the command ended with that code, and said these words without a traceback."""
        assert self.code == code, self.out + self.err
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err
        return self


Command: TypeAlias = Callable[..., Done]


def script_profile(script: Path, instance_type: str = "g4dn.12xlarge") -> ScalingProfile:
    curve = {0.5: 16.0, 1.0: 9.0, 2.0: 5.0, 4.0: 3.1}
    return ScalingProfile(
        instance_type=instance_type,
        epoch={width: Measurement(s, 0.05 * s, 4) for width, s in curve.items()},
        launch=Measurement(5.0, 1.0, 3),
        boot=Measurement(40.0, 5.0, 3),
        start=Measurement(3.0, 0.5, 3),
        resize=Measurement(4.0, 0.5, 3),
        release=Measurement(2.0, 0.2, 3),
        script_hash=script_hash(script),
        measured_at="2026-11-20T00:00:00Z",
        source="a test",
    )


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> Done:
    """Call the command line in this process, which is as it was afterwards."""
    from cloudtune.cli import main  # it takes a second, which not every test needs

    capsys.readouterr()
    umask = os.umask(0o022)
    os.umask(umask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cloudtune", *map(str, arguments)])
        patch.setenv(UMASK_VARIABLE, f"{umask:o}")
        try:
            with pytest.raises(SystemExit) as ended:
                main.main()
        finally:
            os.umask(umask)
    out, err = capsys.readouterr()
    return Done(int(ended.value.code or 0), out, err)


def python(
    code: str, *given: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, which must end well."""
    done = subprocess.run(
        [sys.executable, "-c", code, *given],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done


@dataclass
class Bench:
    """A home, an experiment in it, and the command line."""

    home: Path
    folder: Path
    capsys: pytest.CaptureFixture[str]
    environment: dict[str, str] = field(default_factory=dict)
    _started: list[subprocess.Popen[str]] = field(default_factory=list)

    def experiment(
        self, trouble: str = "pass", *, trials: int = 4, first: int = 2, last: int = 4
    ) -> Path:
        return write_experiment(
            self.folder,
            EXPERIMENT.format(trials=trials, first=first, last=last),
            TRAIN.format(trouble=trouble),
        )

    def shared(self, cloud: str, node: str, limits: str) -> Path:
        """Write an experiment for somebody's cluster, and a profile of its nodes; returns its path.

        Its script needs no torch. Last epochs wait for the file `go`: what is to go wrong does so
        before. The trial with the largest `lr` wins.
        """
        path = self.experiment(trials=4, first=1, last=4)
        script = PLAIN.format(last=4, go=str(self.folder / "go"))
        (self.folder / "train.py").write_text(script)
        text = path.read_text().partition("limits:")[0]
        text += f"trial: {{try_first: false}}\nlimits: {limits}\ncloud: {cloud}\n"
        path.write_text(f"{text}strategy: {{name: asha, fleet: constant:2}}\n")
        self.profile_on(node, {1.0: 0.5, 2.0: 0.3}, boot=8.0)
        return path

    def profile(self, epoch: float = 0.4, start: float = 4.0) -> Path:
        """Write a profile of the script beside the experiment; returns its path."""
        delays = {"launch": 0.6, "boot": 7.0, "start": start, "resize": start, "release": 1.5}
        return self.profile_on("g7.12xlarge", {1.0: epoch, 2.0: epoch / 1.854}, **delays)

    def profile_on(
        self, instance_type: str, seconds: Mapping[float, float], **delays: float
    ) -> Path:
        """Write a profile: the seconds of an epoch by width; a delay that isn't given takes one."""
        given: Any = {name: Measurement(delays.get(name, 1.0)) for name in DELAYS}
        profile = ScalingProfile(
            **given,
            instance_type=instance_type,
            epoch={width: Measurement(epoch) for width, epoch in seconds.items()},
            script_hash=script_hash(self.folder / "train.py"),
            measured_at="2026-11-20T00:00:00Z",
            source="a test",
        )
        path = self.folder / "profile.json"
        write(path, [profile])
        return path

    def ready(self, trouble: str = "pass", **counts: int) -> Path:
        """Write the script, the experiment and a profile; returns the experiment's path."""
        path = self.experiment(trouble, **counts)
        self.profile()
        return path

    def ran(self) -> Path:
        """Run the experiment here to its end, where that is simulated; returns the run's folder."""
        assert self.here("run", self.ready(), "-q").code == 0
        [folder] = (self.home / "runs").iterdir()
        return folder

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "cloudtune", *map(str, arguments)],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def end_started(self) -> None:
        """End the commands of a test that failed before they ended; what they said is printed."""
        for process in self._started:
            if process.returncode is not None:
                continue
            if process.poll() is None:
                interrupt(process)
            out, err = process.communicate(timeout=120)
            sys.stdout.write(f"a command ended with {process.returncode}:\n{out}{err}\n")

    def type_into(self, *arguments: object) -> str:
        """Run a command at a terminal, type a sum and `ls`, leave; return what was shown."""
        ours, its = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "cloudtune", *map(str, arguments)],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        os.write(ours, b"echo 'in '$((40 + 2)); ls train.py && exit\n")
        shown = b""
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # it has ended
                break
        os.close(ours)
        assert process.wait(timeout=60) == 0, shown
        return shown.decode()

    def here(self, *arguments: object) -> Done:
        """Run a command that rents nothing in this process: a new one takes seconds to begin."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            return called(self.capsys, *arguments)

    def __call__(self, *arguments: object, timeout: float = 600) -> Done:
        """Run a command to its end, in a process of its own; one that takes too long is ended."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            interrupt(process)
            out, err = process.communicate(timeout=600)
            pytest.fail(f"it took more than {timeout:.0f} s:\n{out}{err}")
        return Done(process.returncode, out, err)

    @property
    def emulator(self) -> Path:
        return self.home / "emulator"

    @property
    def control(self) -> EmulatorControl:
        """The emulator, seen from its control side; starts it."""
        return EmulatorControl(ensure_emulator(self.emulator).access)

    def recorded(self, what: str) -> int:
        """Return how often the ledgers of all runs have a text."""
        return sum(it.read_text().count(what) for it in self.home.glob("runs/*/ledger.jsonl"))

    def machines(self) -> list[dict[str, Any]]:
        """Return the emulator's own records of all its machines; none if it doesn't run."""
        emulator = find_emulator(self.emulator)
        if emulator is None:
            return []
        return EmulatorControl(emulator.access).instances()

    def end(self, instance: str) -> None:
        """Have an instance vanish unasked."""
        emulator = find_emulator(self.emulator)
        assert emulator is not None
        Ec2(make_endpoint(emulator.access)).terminate([instance])

    def alive(self, run: str | None = None) -> list[dict[str, Any]]:
        return [
            machine
            for machine in self.machines()
            if machine["state"] in {"pending", "running"}
            and run in {None, machine["tags"].get("cloudtune:run")}
        ]

    def refuse(self, action: str, code: str, times: int | None = 100, **match: str) -> None:
        """Have the cloud refuse an action, where these are among its parameters; starts it."""
        fault = {"action": action, "match": match, "code": code, "message": code, "times": times}
        self.control.replace([fault])

    def last_report(self) -> dict[str, Any]:
        """Return `cloudtune report -o json` of the last run."""
        return dict(self.here("report", "-o", "json").succeeded().json)

    def judge(self, fault: str, deadline: float, gpu_hours: float, gpu_seconds: float) -> None:
        """Print what a fault has cost a run of `shared`, and pass if that is nothing.

        The cloud's own word for the bill is `gpu_seconds`.
        """
        report = self.last_report()
        rates = [trial["config"]["lr"] for trial in report["trials"]]
        row = {
            "s past deadline": max(0.0, report["seconds"]["actual"] - deadline),
            "GPU-h over budget": max(0.0, gpu_seconds / 3600 - gpu_hours),
            "other winner": int(report["best"]["config"]["lr"] != max(rates)),
            "left by gc": self.here("gc").code,
        }
        took = f"{report['seconds']['actual']:.0f} s, {gpu_seconds:.0f} GPU-s"
        with self.capsys.disabled():
            sys.stdout.write(f"\n{fault:14} {row} ({took})")
        assert not any(row.values())

    def nothing_launched(self) -> bool:
        """Whether no run was begun and no cloud was opened."""
        return not (self.home / "runs").exists() and find_emulator(self.emulator) is None


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the sockets of Ray's head and of machines: its path is short, and its own."""
    with tempfile.TemporaryDirectory(prefix="b-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def bench(tmp_path: Path, temp: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    """A home of its own; at the end no process of it may run, and no machine."""
    home, folder = tmp_path / "h", tmp_path / "x"
    folder.mkdir()
    pace = {"CLOUDTUNE_HOME": str(home), "CLOUDTUNE_PACE_SCALE": "0.1"}
    made = Bench(home, folder, capsys, pace)
    before = set(psutil.pids())
    yield made
    made.end_started()
    alive = made.alive()
    if find_emulator(made.emulator) is not None:
        stop_emulator(made.emulator, only_if_idle=False)
    left = left_over(before, home)
    if find_emulator(home / "local") is not None:  # of a test that failed: nothing else would
        stop_emulator(home / "local", only_if_idle=False)
    assert not alive, f"left running: {alive}"
    assert not left, "processes of the run are left"
    assert not list(temp.glob("ct-*")), "temporary folders of the run are left"
    assert not open_to_others(home), "others may read what a command has kept"


@pytest.fixture
def at_home(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process itself have the bench's home."""
    for name, value in bench.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def no_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither variables, files nor a machine's metadata name an AWS account."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


@pytest.fixture
def moto_address() -> Iterator[str]:
    """Where an S3 listens that has one bucket, `shelf`."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    # What another test of this process has put there is there still: servers share one memory.
    request = urllib.request.Request(f"{address}/moto-api/reset", method="POST")
    urllib.request.urlopen(request).close()
    maker = boto3.Session("maker", "s", region_name="us-east-1")
    maker.client("s3", endpoint_url=address).create_bucket(Bucket="shelf")
    yield address
    server.stop()


@pytest.fixture
def bucket(no_aws: None, moto_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in that bucket, as boto3 finds it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return "s3://shelf/runs"


def open_to_others(home: Path) -> list[str]:
    """Return what in a home others may read; what a script writes on this machine is its user's."""
    kept = [item for item in home.rglob("*") if home / "storage" not in item.parents]
    return [str(item) for item in kept if not item.is_symlink() and item.stat().st_mode & 0o077]


def left_over(before: set[int], home: Path) -> list[str]:
    """Return new processes that speak of the home; a moment is given to those that are ending."""
    give_up = time.monotonic() + 30
    while True:
        result = [line for line in map(_find_home(home), set(psutil.pids()) - before) if line]
        if not result or time.monotonic() > give_up:
            return result
        time.sleep(0.1)


def _find_home(home: Path) -> Callable[[int], str]:
    def look(pid: int) -> str:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return ""
            result = " ".join([*process.cmdline(), *process.environ().values()])
            return f"{pid}: {' '.join(process.cmdline())[:200]}" if str(home) in result else ""
        except psutil.Error:
            return ""

    return look


def wait_for(condition: Callable[[], object], seconds: float = _PATIENCE) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it never came to pass"
        time.sleep(0.1)


def follow(run: subprocess.Popen[str], bench: Bench, event: str, count: int = 1) -> None:
    give_up = time.monotonic() + _PATIENCE
    while bench.recorded(f'"{event}"') < count:
        if run.poll() is not None or time.monotonic() > give_up:
            interrupt(run)
            pytest.fail(f"no {event}: {run.communicate(timeout=600)}")
        time.sleep(0.1)


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Runs are carried out in virtual time, and written down as real ones; gives their jobs."""
    from cloudtune.engine.ledger import FileLedger
    from cloudtune.engine.loop import run as drive
    from cloudtune.engine.simulator import SimWorld, synthetic_metric
    from cloudtune.lifecycle import dry_run, outcomes, runner
    from cloudtune.runs import home

    jobs: list[Job] = []

    def run_job(job: Job, reporter: Reporter) -> Ended:
        folder = home.new_run(job.experiment.name)
        job = replace(job, run=folder.name)
        jobs.append(job)
        policy = job.policy()
        world = SimWorld(job.rentables, job.experiment.metric.name, synthetic_metric("min", 3), 3)
        with contextlib.closing(FileLedger(folder / home.LEDGER, job.to_json())) as ledger:
            reporter.on_run_start(job, policy)
            drive(policy, world, ledger, runner.patient(reporter.on_event, folder))
        return runner.Ended(folder, policy, outcomes.Swept(0.0))

    monkeypatch.setattr(runner, "run_job", run_job)
    # It imports the script, and torch with it, in a process of its own.
    monkeypatch.setattr(dry_run, "try_script", lambda *_, **__: dry_run.Tried())
    # Virtual epochs have no files.
    monkeypatch.setattr("cloudtune.runs.report.standing", lambda _path: None)
    return jobs

"""A trial's first epochs on this machine, as a worker trains them, before anything is rented."""

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from cloudtune.errors import UsageError, quote
from cloudtune.experiment import Experiment
from cloudtune.experiment.data import is_in_s3
from cloudtune.infra.cluster.trial_session import cause
from cloudtune.infra.node import messages
from cloudtune.infra.node.data import DataError, NodeData
from cloudtune.infra.node.forks import describe_exit
from cloudtune.infra.node.process_group import environment
from cloudtune.infra.node.variables import SecretError, Variables, add_to
from cloudtune.infra.provider import find_provider
from cloudtune.infra.sent_files import (
    MISSING_FILE,
    copy_sent_files,
    left_out_hint,
    link_folder,
    refuse_unsendable,
)
from cloudtune.lifecycle import runner
from cloudtune.lifecycle.data import check_data
from cloudtune.lifecycle.variables import own_values, take
from cloudtune.model.commands import StartTrial
from cloudtune.model.events import EpochReport
from cloudtune.model.providers import PROVIDERS
from cloudtune.model.trial import Trial
from cloudtune.runs import home
from cloudtune.runs.control import to_stderr
from cloudtune.runs.identity import identify
from cloudtune.runs.job import make_sampler
from cloudtune.train.programs.metric_files import is_wandb
from cloudtune.train.storage import LOGS

# Seconds for a script that works: it is tried, not trained.
SECONDS: Final = 60.0
# Epochs of a script that is timed: the first one of a process is slower.
_TIMED_EPOCHS: Final = 2
# Seconds to end after a stop, as on an instance.
_END_SECONDS: Final = 8.0
# The number of last frames of a traceback on the screen, which are the script's.
_FRAMES: Final = 4
_WORKER: Final = (
    "import sys; from multiprocessing.connection import Connection; "
    "open('/proc/self/oom_score_adj', 'w').write('1000'); "  # first to be killed
    "from cloudtune.infra.node import worker; "
    "worker.Worker(Connection(int(sys.argv[1]))).run(); worker.leave()"
)
_MEMORY: Final = re.compile(r"MemoryError|out of memory", re.IGNORECASE)
_DEVICE: Final = re.compile(r"cuda|nvidia|nccl|\bgpus?\b", re.IGNORECASE)
_PACKAGE: Final = re.compile(r"(ModuleNotFound|Import)Error\b|can't be started|not found$")
_NETWORK: Final = re.compile(
    r"\b(Connection\w*|URL|HTTP|SSL|Timeout|\w*Credentials?)Error\b|gaierror|Max retries|timed out"
)
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Tried:
    """A script that ran here for `seconds`; `reported`: to the end of an epoch.

    `epoch_seconds` is the time of its last epoch on one core; None if it wasn't timed. `reason` is
    why it can't be tried here, though it may run on instances; "" if it was tried. `unsaved` says
    that its first epoch had no checkpoint, and what to do; "" if it had one. `parts`: the reports
    of an epoch, where they compare nothing until it is over; else 1.
    """

    seconds: float = 0.0
    reported: bool = False
    epoch_seconds: float | None = None
    reason: str = ""
    unsaved: str = ""
    parts: int = 1

    def __str__(self) -> str:
        if self.reason:
            return f"the script can't be tried on this machine: {self.reason}"
        if self.reported:
            return f"tried on this machine: one trial reported after {self.seconds:.1f} s"
        return f"tried on this machine: one trial ran for {self.seconds:.0f} s without an error"


def check_script(
    experiment: Experiment, *, has_run: bool = True, carried: bool = False, times: bool = False
) -> Tried:
    """Try a script before anything is rented; if it `has_run`, or shouldn't be, only import it.

    `carried`: a head controls the run, and builds the environment. The head itself, which is small,
    trains nothing. With `times`, an epoch on one core of this machine is timed.

    Raises:
        UsageError: the script has an error, or a variable of its environment is missing.
    """
    own_values(experiment)
    check_files(experiment)
    setup = experiment.setup
    trains = experiment.trial.try_first
    if trains is None:
        trains = times or (not has_run and PROVIDERS[experiment.cloud.provider].fetches)
    trains = trains and home.BEGAN_VARIABLE not in os.environ
    built = None if carried and setup.builds else runner.environment(experiment)[1]
    if not trains and (experiment.runs_command or (carried and setup.builds)):
        return Tried()
    python = sys.executable if built is None else str(built.python)
    complete = built is not None and not setup.commands
    remote = [name for name, source in experiment.data.items() if is_in_s3(source)]
    if remote and not times:
        tried = Tried(reason=f"it lacks data.{remote[0]}, which `cloudtune try` copies")
    else:
        tried = try_script(experiment, python, complete=complete, trains=trains, times=times)
    if tried.reason:
        to_stderr(f"note: {tried}; the run goes on")
    elif trains:
        to_stderr(str(tried))
    if tried.parts > 1:
        to_stderr(
            f"note: {tried.parts} reports an epoch: with progress: {{every: 1/{tried.parts}}} "
            "trials are compared by each of them, not by the last alone"
        )
    if carried and tried.unsaved:  # the plan, which says so otherwise, is made by the head
        to_stderr(f"note: {tried.unsaved}")
    return tried


def check_files(experiment: Experiment) -> None:
    """Check that what instances get of the script's folder can be sent; note what is left out.

    Raises:
        UsageError: a file can't be read, or they are too large, or a folder of data is missing or
            in the way; the message names it.
    """
    check_data(experiment)
    folder = experiment.train_folder
    if not find_provider(experiment.cloud.provider).sends_files:
        return
    links: list[Path] = []
    try:
        refuse_unsendable(folder, leave_out=links.append)
    except UsageError as error:
        raise UsageError(f"{error}; nothing was launched") from None
    for link in links:
        name = link.relative_to(folder).as_posix()
        to_stderr(f"note: not sent: {name}, a link to a folder that it is in")


def try_script(
    experiment: Experiment,
    python: str = sys.executable,
    *,
    complete: bool = False,
    trains: bool = True,
    times: bool = False,
) -> Tried:
    """Train the first trial of an experiment for an epoch, or a minute, on this machine's CPUs.

    A separate process with a worker's code trains in a temporary copy of the files for instances.
    `complete`: `python` has all packages that rented instances have. Unless it `trains`, the script
    is only imported. With `times` it trains for two epochs on one core: the first one of a process
    is slower.

    Raises:
        UsageError: the script has an error; the message has its place and the end of its traceback.
    """
    if obstacle := _obstacle(experiment, trains=trains):
        return Tried(reason=obstacle)
    try:
        return _try(experiment, python, complete=complete, trains=trains, times=times)
    except (SecretError, DataError) as unread:  # the role of instances may read it
        return Tried(reason=str(unread))


def _try(
    experiment: Experiment, python: str, *, complete: bool, trains: bool, times: bool
) -> Tried:
    """Try a script as `try_script` does.

    Raises:
        SecretError: a secret can't be read from here.
        DataError: data can't be read from here.
    """
    variables = take(experiment)
    values = variables.read()
    began = time.monotonic()
    trial = make_sampler(experiment).ask()
    assert trial is not None
    epochs = min(_TIMED_EPOCHS, experiment.span.max) if times else 1
    data = NodeData(experiment.data_sources, str(os.getpid()))
    has_copy = trains or bool(experiment.data)
    with (
        contextlib.closing(data),
        tempfile.TemporaryDirectory(prefix="cloudtune-try-", ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name).resolve()
        code = folder / "code" if has_copy else experiment.train_folder
        if has_copy:
            code.mkdir()
            _fill(code, experiment)
        data.provide(code)
        begin = _begin(experiment, trial, folder, epochs, variables)
        cores = 1 if times else os.cpu_count() or 1
        found = _without_traces(begin, add_to(os.environ, values), cores)
        end = _last_message(begin, python, code, found, ready=not trains)
        seconds = time.monotonic() - began
        if end is None or isinstance(end, messages.Ready | messages.Done):
            return Tried(seconds, reported=end is not None)
        if isinstance(end, messages.Epoch):
            return _read_result(experiment, seconds, end.report)
        failure = cause([end])
        assert not isinstance(failure, messages.Done)
        if isinstance(failure, messages.Lost):
            return Tried(seconds, reason=f"its process {failure.reason}")
        trace = _as_users(failure.traceback, experiment.train_folder, folder)
        error = _as_users(failure.error, experiment.train_folder, folder)
        if any(_reasons(failure, error, trace, experiment, complete=complete)):
            return Tried(seconds, reason=error)
        is_named = ".gitignore" in error  # by the command's own worker
        if find_provider(experiment.cloud.provider).sends_files and not is_named:
            error += left_out_hint(error, experiment.train_folder)
    advice = _advice(trial.config) if trains else ""
    message = script_error(error, trace, experiment.train_folder)
    raise UsageError(f"{message}\n{advice}nothing was launched")


def _read_result(experiment: Experiment, seconds: float, report: EpochReport) -> Tried:
    """Return what a report says of a script that ran here for some seconds."""
    return Tried(
        seconds,
        reported=True,
        epoch_seconds=report.seconds or None,
        unsaved="" if report.checkpoint is not None else _no_checkpoint_note(experiment),
        parts=1 if experiment.progress.unit == "step" else report.between + 1,
    )


def _no_checkpoint_note(experiment: Experiment) -> str:
    """Return that the first epoch had no checkpoint; "" if the plan says that there is none."""
    if not experiment.keeps_models:
        return ""
    lost = "the best model may not be kept: with its first epoch the script"
    if experiment.checkpoints.folder is not None:
        return f"{lost} saved nothing in {experiment.checkpoints.folder}"
    return (
        f"{lost} reported no checkpoint; cloudtune.report(metrics, "
        "checkpoint=cloudtune.Checkpoint.from_directory(folder)) reports one"
    )


def _obstacle(experiment: Experiment, *, trains: bool) -> str:
    """Return why a script can't be tried on this machine, "" if it can."""
    least = experiment.trial.gpus.min or 1
    if least > 1 and trains:
        return f"a trial needs {least} GPUs"
    if sys.platform != "linux":
        return f"workers run on Linux, and this is {sys.platform}"
    return ""


def _begin(
    experiment: Experiment, trial: Trial, folder: Path, epochs: int, variables: Variables
) -> messages.Begin:
    """Return the order to a worker to train a trial for some epochs, with its files in a folder."""
    slot = messages.WorkerSlot(rank=0, local_rank=0, world_size=1, nodes=1)
    storage = str(folder / "storage")
    return messages.Begin(
        training=runner.make_training(
            experiment, storage, experiment.span.max, variables=variables
        ),
        slot=slot,
        command=StartTrial("", trial.id, trial.config, 1.0, (), None, 0, until_epoch=epochs),
        keep_from=0,
        rendezvous="",
        listens=False,
        log=str(folder / LOGS),
        asked_at=time.time(),
        environment=environment(slot, 1, ""),
    )


def _fill(target: Path, experiment: Experiment) -> None:
    """Fill a folder with what the script finds beside it where it trains."""
    source = experiment.train_folder
    if not find_provider(experiment.cloud.provider).sends_files:
        link_folder(source, target, identify(experiment).files)
        return
    copy_sent_files(source, target)


def _last_message(
    begin: messages.Begin,
    python: str,
    code: Path,
    environment: Mapping[str, str],
    *,
    ready: bool,
) -> messages.Body | None:
    """Return a worker's last epoch, its failure, or its latest epoch after a minute; or None.

    With `ready`, return its first message, which says that it is set up.
    """
    ours, its = socket.socketpair()
    with its, Path(begin.log).open("wb") as log:
        process = subprocess.Popen(
            [python, "-P", "-c", _WORKER, str(its.fileno())],
            cwd=code,
            env=environment,
            pass_fds=[its.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    connection: Connection[object, messages.Body] = Connection(ours.detach())
    try:
        connection.send(begin)
        return _receive(connection, begin.command.until_epoch, ready=ready)
    except (EOFError, OSError):
        return messages.Lost(describe_exit(process.wait()))
    finally:
        with contextlib.suppress(OSError):
            connection.send(messages.Stop())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        connection.close()


def _without_traces(
    begin: messages.Begin, environment: Mapping[str, str], cores: int
) -> dict[str, str]:
    """Return an environment for a worker that leaves nothing behind, on so many cores."""
    program = begin.training.program
    reads_wandb = program is not None and is_wandb(program.file)
    return {
        **environment,
        "TMPDIR": str(Path(begin.log).parent),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": str(cores),
        "PYTHONDONTWRITEBYTECODE": "1",  # the folder may be the user's
        "WANDB_MODE": "offline" if reads_wandb else "disabled",  # nothing worth keeping
    }


def _receive(
    connection: "Connection[object, messages.Body]", until_epoch: int, *, ready: bool
) -> messages.Body | None:
    """Return a worker's last message, as `_last_message` does."""
    give_up = time.monotonic() + SECONDS
    latest: messages.Epoch | None = None
    while connection.poll(max(0.0, give_up - time.monotonic())):
        body = connection.recv()
        if isinstance(body, messages.Epoch):
            latest = body
        elif latest is not None and isinstance(body, messages.Done):
            return latest
        elif ready or not isinstance(body, messages.Ready):
            return body
        if latest is not None and latest.report.epoch >= until_epoch:
            return latest
    return latest


def _as_users(text: str, code: Path, folder: Path) -> str:
    """Return a text with the copy's paths replaced by those of the user's folder."""
    return re.sub(rf"{re.escape(str(folder))}/(code|cloudtune-[^/\s]+/run)\b", str(code), text)


def _reasons(
    failure: messages.Failure, error: str, trace: str, experiment: Experiment, *, complete: bool
) -> Iterator[bool]:
    """Yield, for each way in which instances differ, whether it may explain an error."""
    frames = list(_FRAME.finditer(trace))
    raised = "".join(trace[frames[-1].end() :].splitlines()[1:2]) if frames else ""
    provider = experiment.cloud.provider
    here = PROVIDERS[provider].here
    yield failure.out_of_memory or _MEMORY.search(error) is not None
    yield find_provider(provider).has_gpus and needs_gpu(f"{error}\n{raised}")
    if here:
        return
    yield not complete and _PACKAGE.search(error) is not None
    yield _NETWORK.search(error) is not None
    if path := MISSING_FILE.search(error):
        place = (experiment.train_folder / path[1]).resolve()
        yield not place.is_relative_to(experiment.train_folder.resolve())


def needs_gpu(error: str) -> bool:
    """Whether an error says that there is no GPU."""
    return _DEVICE.search(error) is not None


def script_error(error: str, trace: str, code: Path) -> str:
    """Return the place of a script's error, and the last of its own lines in the traceback."""
    own: list[list[str]] = []  # lines by frame
    is_own = False
    place = ""
    for line in trace.splitlines():
        frame = _FRAME.search(line)
        is_own = frame[1].startswith(f"{code}/") if frame else is_own and line.startswith("    ")
        if frame and is_own:
            place = f"{frame[1]}:{frame[2]}: "
            own.append([])
        if is_own:
            own[-1].append(line)
    return "\n".join([f"{place}{error}", *itertools.chain(*own[-_FRAMES:])])


def _advice(config: Mapping[str, object]) -> str:
    values = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={quote(value)}"
        for name, value in config.items()
    )
    return (
        f"The script was tried on this machine, with {values}. Correct it, or add --no-try-first "
        "if it can only run on instances; "
    )

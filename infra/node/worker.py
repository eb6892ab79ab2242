"""The worker of a trial: a process that runs the user's function on one GPU, or a share of one."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtune.infra.node import messages
from cloudtune.infra.node.process_group import meet
from cloudtune.model.trial import nest
from cloudtune.train.checkpoint import CheckpointStore
from cloudtune.train.programs.running import CommandRun, Post, command_run
from cloudtune.train.save_times import SaveTimes
from cloudtune.train.session import Session
from cloudtune.train.sync_check import NotOneModelError, Ranks
from cloudtune.train.user_script import TrainFunction, load_function

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from cloudtune.infra.node.variables import Variables
    from cloudtune.model.events import EpochReport


# Seconds for a stopped worker to upload its last checkpoint.
STOP_SECONDS = 6.0
# Makes a worker write the stacks of its threads to its log, even with the GIL held.
STACKS = signal.SIGQUIT
_LINE_BYTES = 4096
_TEXT_BYTES = 65536
_NO_MEMORY = ("out of memory", "OUT_OF_MEMORY", "STATUS_ALLOC_FAILED")
_NO_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "remote process exited",
    "Socket closed",
)
_TWO_ON_ONE_GPU = (
    "two workers of the trial are on one GPU, which nccl refuses; have each take the device of "
    "cloudtune.train.torch.get_device(), or the GPU of its LOCAL_RANK"
)
# What to do, by the text of a library's error.
_HINTS = {
    # NCCL's own words ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000").
    "Duplicate GPU detected": _TWO_ON_ONE_GPU,
    # From torch's DistributedDataParallel, whose message is a page that ends with other advice.
    "has parameters that were not used in producing loss": (
        "a step left parameters of the model out, and the workers wait for their gradients; write "
        "prepare_model(model, find_unused_parameters=True)"
    ),
    "Expected to mark a variable ready only once": (
        "a parameter got its gradient twice in a step; where each step uses the same parameters, "
        "write prepare_model(model, static_graph=True)"
    ),
}


_preloaded: dict[str, TrainFunction] = {}
# Of these, whose file sets torch's number of threads itself.
_chose_threads: set[str] = set()


def preload(train: str) -> None:
    """Load the user's function, so that the workers forked from this process have it."""
    import torch  # noqa: PLC0415

    threads = torch.get_num_threads()
    _preloaded[train] = _load(train)
    if torch.get_num_threads() != threads:
        _chose_threads.add(train)


def warm_up() -> None:
    """Initialise the GPU of this process, which saves a resize some seconds."""
    import torch  # noqa: PLC0415

    torch.zeros(1, device="cuda:0")
    torch.cuda.synchronize()


def _load(train: str) -> TrainFunction:
    """Return the training function; its script finds a command line without arguments."""
    folder = Path.cwd()
    sys.argv[:] = [str(folder / train.partition(":")[0])]
    return load_function(folder, train)


class Worker:
    """Trains one session in this process, on orders of the agent at the other end of a connection.

    It ends the process on a stop order, or if the agent is gone.
    """

    def __init__(self, connection: Connection[messages.Body, messages.Order]) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._opening = threading.Lock()
        self._session: Session | CommandRun | None = None
        self._granted = 0

    def run(self) -> None:
        """Wait for the trial, and train it to its end."""
        begin = self._connection.recv()
        if not isinstance(begin, messages.Begin):
            return
        listener = recv_handle(self._connection) if begin.listens else None
        file = os.open(begin.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        faulthandler.register(STACKS, file=2, all_threads=True)
        threading.Thread(target=self._obey, name="orders", daemon=True).start()
        if begin.refusal:
            self._say(messages.Failure(begin.refusal, begin.refusal))
            return
        try:
            self._train(begin, listener)
        except BaseException as error:  # noqa: BLE001  the user's code may raise anything
            if isinstance(error, SystemExit) and not error.code:
                self._say(messages.Done())  # sys.exit() is how some scripts return
                return
            traceback.print_exc()
            failure = describe_failure(error, begin.slot.world_size)
            self._say(_hiding(failure, begin.training.variables))
        else:
            self._say(messages.Done())

    def _say(self, body: messages.Body) -> None:
        with self._sending:
            self._connection.send(body)

    def _obey(self) -> None:
        try:
            while True:
                match self._connection.recv():
                    case messages.Grant(until_epoch):
                        with self._opening:
                            self._granted = max(self._granted, until_epoch)
                            if self._session is not None:
                                self._session.grant(self._granted)
                    case messages.Acknowledge(epoch):
                        if self._session is not None:
                            self._session.acknowledge(epoch)
                    case messages.Leave():
                        if self._session is not None:
                            self._session.leaving = True
                    case messages.Stop():
                        self._stop()
        except (EOFError, OSError):
            os._exit(1)  # the agent is gone, and can't report any more

    def _stop(self) -> None:
        """End this process; unwind a script that waits for a grant in order."""
        give_up = time.monotonic() + STOP_SECONDS
        with self._opening:
            session = self._session
        if session is not None:
            if session.stop():
                threading.Event().wait(STOP_SECONDS)  # the script's thread ends the process
            session.flush(max(0.0, give_up - time.monotonic()))
        leave()

    def _train(self, begin: messages.Begin, listener: int | None) -> None:
        import torch  # noqa: PLC0415  seconds, and the agent that imports this file needs none of it

        program = begin.training.program
        if program is None or not program.alone:
            os.environ.update(begin.environment)
        visible = bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
        device = f"cuda:{begin.gpu}" if visible and torch.cuda.is_available() else "cpu"
        threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
        if begin.training.train not in _chose_threads:
            torch.set_num_threads(int(threads))
        if device == "cpu":
            os.environ.setdefault("ACCELERATE_USE_CPU", "1")  # or accelerate sees one worker
        if program is not None:
            if listener is not None:
                os.close(listener)  # the command listens there itself
            command = command_run(program, self._post(begin, device), self._tell_epoch)
            self._open_to(command, begin)
            command.run()
            return
        ranks = None
        slot = begin.slot
        if slot.world_size > 1:
            store = meet(slot, begin.rendezvous, listener, device)
            if begin.training.compared:
                ranks = Ranks(store, slot.rank, slot.world_size)
        train = begin.training.train
        function = _preloaded.get(train) or _load(train)
        session = Session(
            **_place(begin, device),
            report_hook=self._tell_epoch,
            store=CheckpointStore(begin.training.storage),
            ranks=ranks,
            saves=SaveTimes(begin.training.losses_per_hour),
            progress=begin.training.progress,
        )
        self._open_to(session, begin)
        session.run(function, nest(begin.command.config))

    def _open_to(self, session: Session | CommandRun, begin: messages.Begin) -> None:
        """Pass orders to the session, including those that have come already."""
        with self._opening:
            self._session = session
            session.grant(max(self._granted, begin.command.until_epoch))
        self._say(messages.Ready())

    def _tell_epoch(self, report: EpochReport) -> None:
        self._say(messages.Epoch(report))

    def _post(self, begin: messages.Begin, device: str) -> Post:
        training = begin.training
        log = Path(begin.log)
        return Post(
            place=_place(begin, device),
            storage=training.storage,
            losses_per_hour=training.losses_per_hour,
            progress=training.progress,
            config=begin.command.config,
            nested=nest(begin.command.config),
            name=log.stem.rpartition(".")[0],
            code=Path.cwd(),
            log=log,
            met=training.compared,
        )


def _place(begin: messages.Begin, device: str) -> dict[str, Any]:
    """Return a session's trial, and its place in it, as JSON."""
    training = begin.training
    slot = begin.slot
    command = begin.command
    return {
        "trial_id": command.trial,
        "metric_name": training.metric_name,
        "metric_mode": training.metric_mode,
        "max_epoch": training.max_epoch,
        "rank": slot.rank,
        "local_rank": slot.local_rank,
        "world_size": slot.world_size,
        "nodes": slot.nodes,
        "device": device,
        "start_epoch": command.start_epoch,
        "restore": command.checkpoint,
        "seed": training.seed,
        "born": time.monotonic() - (time.time() - begin.asked_at),
        "share": slot.share,
        "acknowledged": begin.keep_from,
        "parallel": command.parallel,
    }


def describe_failure(error: BaseException, world_size: int) -> messages.Failure:
    """Return the error that ended the user's function, in text for any file and terminal."""
    failure = _describe_failure(error, world_size)
    line = messages.plain(failure.error, _LINE_BYTES)
    trace = messages.plain(failure.traceback, _TEXT_BYTES)
    return replace(failure, error=line, traceback=trace)


def _hiding(failure: messages.Failure, variables: Variables) -> messages.Failure:
    """Return a failure without the values of private variables: it will be in the ledger."""
    error = variables.hide(failure.error, os.environ)
    trace = variables.hide(failure.traceback, os.environ)
    return replace(failure, error=error, traceback=trace)


def _describe_failure(error: BaseException, world_size: int) -> messages.Failure:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    # After a CUDA error torch adds three lines of general advice.
    line = next((text for text in lines if "CUDA error: " in text), lines[-1])
    texts = [f"{type(cause).__name__}: {cause}" for cause in _chain(error)]
    memory = any(word in text for text in texts for word in ("OutOfMemoryError", *_NO_MEMORY))
    names = {base.__name__ for cause in _chain(error) for base in type(cause).__mro__}
    broken = "DistError" in names or any(word in text for text in texts for word in _NO_PEER)
    trace = "".join(traceback.format_exception(error))
    several = next((cause for cause in _chain(error) if isinstance(cause, NotOneModelError)), None)
    if several is not None:
        return messages.Failure(str(several), trace, unsynced=True)
    hint = next((_HINTS[phrase] for phrase in _HINTS for text in texts if phrase in text), "")
    if hint:  # the script's own error, though NCCL reports a lost peer
        return messages.Failure(f"{type(error).__name__}: {hint}", trace)
    return messages.Failure(line, trace, memory, peer=world_size > 1 and broken and not memory)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def leave() -> None:
    """End this process now, without the interpreter's slow shutdown."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the disk is full, or the script has closed it
            continue
    os._exit(0)

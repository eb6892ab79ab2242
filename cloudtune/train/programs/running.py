"""A command in training: started in its own folder, controlled and read, ended with its children.

Its folder has the user's scripts, and links to everything else in the user's folder, except the
folder of checkpoints and the file of reports: these belong to the trial. The workers of a trial on
one instance share it.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

import psutil

from cloudtune.errors import UsageError
from cloudtune.model.events import EpochReport
from cloudtune.script.settings_files import write_settings
from cloudtune.train.channel import Channel, listen
from cloudtune.train.checkpoint import (
    Checkpoint,
    CheckpointStore,
    Manifest,
    load,
    read_manifest,
    usable,
)
from cloudtune.train.command_session import FLUSH_SECONDS
from cloudtune.train.folder_changes import list_below
from cloudtune.train.programs import counting
from cloudtune.train.programs.code_folder import link_code
from cloudtune.train.programs.metric_files import MetricFiles, fixed_folder, is_wandb
from cloudtune.train.programs.metric_parsers import Reading, Readings, find_epoch, find_step
from cloudtune.train.programs.output_lines import last_traceback
from cloudtune.train.programs.process_tree import die_with_parent, process_tree
from cloudtune.train.programs.program import Program
from cloudtune.train.programs.saving import Halted, Saving
from cloudtune.train.programs.site_hooks import install_hook
from cloudtune.train.programs.snapshots import ReadWatch
from cloudtune.train.progress_cursor import Progress
from cloudtune.train.save_times import SaveTimes
from cloudtune.train.session import ADDRESS_VARIABLE, Session, StopTraining
from cloudtune.train.storage import staging_folder, tell
from cloudtune.train.sync_check import NotOneModelError, Work, flaw

# Seconds between two looks at its output: it trains unobserved for that long.
_POLL: Final = 0.02
# Seconds from SIGTERM to SIGKILL: less than the agent waits before it kills the worker itself.
_END_SECONDS: Final = 1.5
# Seconds to wait for processes to stop: one in a driver's system call may never do so.
_SUSPEND_SECONDS: Final = 2.0
# Seconds between two checks whether all processes of a program have stopped.
_SUSPEND_POLL: Final = 0.001
_STANDS: Final = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
# Seconds that other ranks wait for rank 0, which interprets the end.
_DRAIN_SECONDS: Final = 5.0
# The number of last output lines of a program in its error.
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 4000
# The number of files in the error of a program that writes others than expected.
_NEW_FILES: Final = 5
_MISSING: Final = re.compile(r"No such file or directory: '([^/'][^']*)'")


class CommandFailedError(UsageError):
    """A command ended by itself before it had trained to its end."""


@dataclass(frozen=True)
class Post:
    """The trial that a command trains, as its worker knows it.

    `place` are fields of its `Session`, `config` is the flat configuration, `nested` the one for
    functions. `name` is the session's, the same on all workers; `code` the user's folder; `log` the
    file for the command's output. `met`: whether its workers must meet at torchrun's address.
    """

    place: Mapping[str, Any]
    storage: str
    losses_per_hour: float
    progress: Progress
    config: Mapping[str, object]
    nested: Mapping[str, object]
    name: str
    code: Path
    log: Path
    met: bool


class CommandRun:
    """A command in training; `grant`, `acknowledge`, `stop` and `leaving` are as in `Session`.

    Args:
        program: the command to start.
        post: the trial to train.
        on_report: called with each report, on rank 0.
    """

    def __init__(
        self, program: Program, post: Post, on_report: Callable[[EpochReport], object]
    ) -> None:
        self._program = program
        self._post = post
        self._on_report = on_report
        self._place = post.place
        self._rank = post.place["rank"]
        self._workers = post.place["world_size"]
        base = Path(staging_folder()) / f"cloudtune-{os.getppid()}-{post.name}"
        self._base = base
        self.folder = base / "run"
        self._own = base / f"rank-{self._rank}"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._granted = 0
        self._epoch = post.place.get("start_epoch", 0)
        self._compared = post.met and self._workers > 1
        self._met = False
        self._restored: str | None = None
        self._log_start = post.log.stat().st_size if post.log.exists() else 0

    def grant(self, until_epoch: int) -> None:
        with self._lock:
            self._granted = max(self._granted, until_epoch)
            self._tell(grant=self._granted)

    def acknowledge(self, epoch: int) -> None:
        self._tell(acknowledge=epoch)

    @property
    def leaving(self) -> bool:
        """Whether the machine is about to be interrupted."""
        return False

    @leaving.setter
    def leaving(self, leaves: bool) -> None:
        if leaves:
            self._tell(leave=True)

    def stop(self) -> bool:
        """End the command; return whether it has ended, after which `run` returns."""
        self._stopping.set()
        return True

    def flush(self, seconds: float | None = None) -> None:
        """Wait up to `seconds` until all reports are delivered."""

    def _tell(self, **message: Any) -> None:
        """Send the command a message, if it listens."""

    def run(self) -> None:
        """Train to the end, or until stopped; no process is left on return.

        Raises:
            CommandFailedError: the command failed.
            NotOneModelError: its workers never met.
        """
        try:
            self._own.mkdir(parents=True, mode=0o700)
            if self._place["local_rank"] == 0:
                self._furnish()
            if self._await_folder():
                self._follow()
        finally:
            self._end()
            if self._place["local_rank"] == 0:
                shutil.rmtree(self._base, ignore_errors=True)

    def _furnish(self) -> None:
        """Make the folder that it runs in, with the checkpoint to resume from."""
        self.folder.mkdir(mode=0o700)
        program = self._program
        # Links to the user's own would mix the reports and checkpoints of all trials.
        paths = [path for path in (program.file, program.folder) if path is not None]
        for path in paths:
            parent = fixed_folder(path)
            if (self._post.code / parent).is_dir():
                (self.folder / parent).mkdir(parents=True, exist_ok=True)
        if program.folder is not None:
            (self.folder / program.folder).mkdir(parents=True, exist_ok=True)
        restore = self._place["restore"]
        checkpoint = usable(restore) if restore is not None else None
        if checkpoint is not None and program.folder is not None:
            load(checkpoint, self.folder / program.folder)
        link_code(self._post.code, self.folder, paths)
        # Renamed into place: the other workers of the instance must not read half of it.
        (self._base / "ready").write_text(checkpoint or "", encoding="utf-8")
        (self._base / "ready").rename(self._base / "furnished")

    def _await_folder(self) -> bool:
        """Wait for the folder, which the instance's first worker makes; return False if stopped."""
        while not (self._base / "furnished").exists():
            if self._stopping.wait(_POLL):
                return False
        self._restored = (self._base / "furnished").read_text(encoding="utf-8") or None
        return not self._stopping.is_set()

    def _start(self) -> subprocess.Popen[bytes]:
        program = self._program
        config = self._own / "config.json"
        config.write_text(json.dumps(self._post.nested), encoding="utf-8")
        session = Session(**{**self._place, "report_hook": lambda _: None})
        values: dict[str, object] = {
            "trial": session.trial_id,
            "seed": session.derived_seed,
            f"{self._post.progress.unit}s": program.until,
            "device": session.device,
            "config": str(config),
        }
        if self._restored is not None and program.folder is not None:
            values["resume"] = str(self.folder / program.folder)
        for name in () if "config" in self._post.config else program.settings_files:
            written = self._own / "settings" / name
            write_settings(self._post.code / name, self._post.config, written)
            values[name] = str(written)
        words = program.fill({**values, **self._post.config})
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        beside = str(Path(sys.executable).parent)  # `python` means the present one
        environment["PATH"] = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
        if session.device == "cpu":
            environment.setdefault("OMP_NUM_THREADS", "1")
        if self._compared:
            environment |= install_hook(counting, self._own / "site", environment)
            environment[counting.FOLDER] = str(self._own)
        if is_wandb(program.file):
            environment.setdefault("WANDB_MODE", "offline")
        if program.speaks:
            environment[ADDRESS_VARIABLE] = str(self._own)
        try:
            self._process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,  # noqa: PLW1509  it takes no lock
            )
        except OSError as error:
            raise CommandFailedError(
                f"`{program.text}`: {words[0]} can't be started: {error.strerror}"
            ) from None
        return self._process

    def _follow(self) -> None:
        """Start the command, and follow it until it has ended or should end."""
        process = self._start()
        while process.poll() is None:
            if self._stopping.wait(_POLL):
                return
        self._check_end(process.returncode)

    def _check_end(self, code: int) -> None:
        """Raise unless the exit code is that of a completed training."""
        if not self.folder.exists() and self._stopping.wait(_DRAIN_SECONDS):
            return  # the first worker of the instance has failed, and reports why
        text = self._program.text
        tail = self._tail()
        if code < 0:
            signal.raise_signal(-code)  # like a killed worker: the trial may continue elsewhere
        if code:
            last = last_traceback(tail)[0] or tail.strip().rpartition("\n")[2]
            message = f"`{text}` exited with code {code}" + (f": {last}" if last else "")
            message += self._missing_hint(last)
            self._check_apart(message)
            if tail.strip() != last:
                message = f"{tail}\n{message}"
            raise CommandFailedError(message)
        if self._rank > 0:
            self._stopping.wait(_DRAIN_SECONDS)  # rank 0 interprets it
        elif self._epoch == 0:
            why = f"ended without a report; {self._no_report()}"
            if error := last_traceback(tail)[0]:  # which it has caught
                why = f"printed an error, and ended with code 0 and without a report: {error}"
            raise CommandFailedError(f"{tail}\n{self._example()}`{text}` {why}")

    def _check_apart(self, error: str) -> None:
        """Raise if the failed process never joined the others.

        Each of them then trains alone in the same folder, and one may fail over another's files: on
        one GPU it wouldn't. An error of the script comes again there.
        """
        process = self._process
        if not self._compared or process is None:
            return
        if counting.ended_apart(self._own, process.pid):
            raise NotOneModelError(
                f"its {self._workers} workers never joined a process group, so each trains a model "
                f"of its own, and one failed: {error}"
            )

    def _missing_hint(self, error: str) -> str:
        """Return a hint on a file that may be missing because .gitignore names it, or ""."""
        missing = _MISSING.search(error)
        ignored = self._post.code / ".gitignore"
        # Where trials train beside the user's files, everything is a link, and nothing left out.
        if missing is None or not ignored.exists() or ignored.is_symlink():
            return ""
        return (
            "; what .gitignore names isn't copied to trials: write "
            f"!{missing[1]} into .cloudtuneignore, beside the script"
        )

    def _example(self) -> str:
        return ""

    def _no_report(self) -> str:
        return "call cloudtune.report({…}) once an epoch"

    def _tail(self) -> str:
        with contextlib.suppress(OSError), self._post.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").rstrip().split("\n")
            return "\n".join(lines[-_TAIL_LINES:])
        return ""

    def _check_one_model(self) -> None:
        """Raise unless the workers have met at torchrun's address and exchange gradients.

        Models are only compared for functions; for a command, this worker's collectives count.
        """
        if not self._compared:
            return
        if not self._met:
            address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            try:
                socket.create_connection(address, timeout=_DRAIN_SECONDS).close()
            except OSError:
                raise NotOneModelError(
                    f"its {self._workers} workers never met at MASTER_ADDR:MASTER_PORT, so each "
                    "trains a model of its own"
                ) from None
            self._met = True
        steps, exchanges = counting.read_counts(self._own)
        if why := flaw([Work(steps, exchanges, "")] * self._workers):
            raise NotOneModelError(f"in epoch {self._epoch + 1} {why}")

    def tree(self) -> list[psutil.Process]:
        process = self._process
        if process is None or process.poll() is not None:
            return []
        return process_tree(process.pid)

    def signal(self, number: int) -> None:
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def suspend(self) -> None:
        """Suspend all of its processes, and return once they have stopped.

        Sending the signal isn't enough: a process finishes its system call, and one that opens a
        file has truncated it before others see it open.
        """
        give_up = time.monotonic() + _SUSPEND_SECONDS
        self.signal(signal.SIGSTOP)
        while any(map(_moves, self.tree())) and time.monotonic() < give_up:
            time.sleep(_SUSPEND_POLL)
            self.signal(signal.SIGSTOP)  # it may have started another process

    def go_on(self) -> None:
        """Let its processes run again."""
        self.signal(signal.SIGCONT)

    def code(self) -> int | None:
        """Return its exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stopping(self) -> bool:
        """Return whether it is to end."""
        return self._stopping.is_set()

    def _end(self) -> None:
        """End all processes that are left, including orphans; kill those that ignore SIGTERM."""
        left = self.tree()
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # suspended processes don't receive it otherwise
        _, left = psutil.wait_procs(left, timeout=_END_SECONDS)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.wait()
        psutil.wait_procs(left, timeout=_END_SECONDS)  # another trial needs their GPU next


class SpokenRun(CommandRun):
    """A command that calls `cloudtune.report`: its own session is granted and stopped."""

    _channel: Channel | None = None
    _broken: BaseException | None = None
    _speaker: threading.Thread | None = None

    def _tell(self, **message: Any) -> None:
        with self._lock:
            if self._channel is not None:
                with contextlib.suppress(OSError):  # it is gone; its end is noticed elsewhere
                    self._channel.send(**message)

    def _follow(self) -> None:
        with listen(self._own) as listener:
            reader = threading.Thread(target=self._serve, args=(listener,), daemon=True)
            reader.start()
            try:
                self._listen(self._start())
            finally:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                reader.join(_DRAIN_SECONDS)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None and not self._stopping.wait(_POLL):
            if self._broken is not None:
                raise self._broken
        if self._stopping.is_set():
            if self._channel is not None:
                # The script's report unwinds it, once its last checkpoint is uploaded.
                self._tell(stop=True)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(FLUSH_SECONDS + _END_SECONDS)
            self._end()
            return
        if self._speaker is not None:
            self._speaker.join(_DRAIN_SECONDS)  # its earlier reports come first
        if self._broken is not None:
            raise self._broken
        self._check_end(process.returncode)

    def _serve(self, listener: socket.socket) -> None:
        """Serve the command's processes one after another."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if self._channel is None:
                    channel = self._channel = Channel(connection)
                    self._speaker = threading.Thread(
                        target=self._speak, args=(channel,), daemon=True
                    )
                    self._speaker.start()
                else:
                    connection.close()  # which tells the process

    def _speak(self, channel: Channel) -> None:
        folder = self._program.folder
        with self._lock:
            session = {
                "place": dict(self._place),
                "storage": self._post.storage,
                "losses_per_hour": self._post.losses_per_hour,
                "progress": asdict(self._post.progress),
                "folder": None if folder is None else str(self.folder / folder),
                "granted": self._granted,
            }
            with contextlib.suppress(OSError):
                channel.send(session=session)
        for message in channel.messages():
            try:
                self._check_one_model()
                report = EpochReport(**message["report"])
                self._epoch = max(self._epoch, report.epoch)
                self._on_report(report)
            except BaseException as error:  # noqa: BLE001  raised where the command is waited for
                self._broken = error
        with self._lock:
            self._channel = None
        channel.close()


class EpochNumbers:
    """Where a report stands, by the script's own numbers as long as they don't go back.

    A script counts epochs from 0 or from 1, or in fractions, or in steps of an epoch. Where its
    numbers go back, reports are counted instead.
    """

    def __init__(self, progress: Progress) -> None:
        self._unit = progress.unit
        self._every = progress.every
        self._wanted = progress.field is None
        self._offset: int | None = None  # what to add to the script's number
        self._last: float | None = None  # its number in the previous report

    def note_resume(self, manifest: Manifest) -> None:
        """Learn from a checkpoint how the script has counted so far."""
        own = find_epoch(manifest.metrics)
        ahead = None if own is None else round(manifest.epoch * self._every - own, 2)
        if ahead in {0, 1}:
            self._offset = int(ahead)

    def tells(self, own: float | None) -> bool:
        """Whether a number determines the epoch of a report."""
        return self._wanted and own is not None and self._offset is not None

    def position(
        self, reading: Reading, reported: int, *, from_zero: bool = False
    ) -> dict[str, float | None]:
        """Return where a report after `reported` others stands, as `Session.report` takes it.

        `from_zero`: the script has named an epoch 0.
        """
        own = reading.epoch if self._unit == "epoch" else find_step(reading.metrics)
        if not self._wanted or own is None:
            return {}
        if self._unit == "step":
            return {"step": own}
        if own != int(own):
            self._offset = 0
        elif self._offset is None and self._every < 1 and reading.part is None:
            return {}  # several reports have the number of one epoch
        elif self._offset is None and reported == 0:
            self._offset = int(from_zero or own == 0)
        goes_back = self._last is not None and own < self._last
        self._last = own
        if self._offset is None or goes_back:
            self._wanted = False
            return {}
        begun = 0.0 if reading.part is None else 1 - reading.part
        return {"epoch": own + self._offset - begun}


# A reading, and its checkpoint.
_Taken: TypeAlias = tuple[Reading, Checkpoint | None]


def _assign_checkpoint(
    readings: Sequence[Reading], checkpoint: Checkpoint | None, owner: int
) -> list[_Taken]:
    """Return readings with the checkpoint at its owner, counted from 1."""
    return [(it, checkpoint if n == owner else None) for n, it in enumerate(readings, start=1)]


class ReadRun(CommandRun):
    """A command whose reports are read: it is suspended for each, and waits for a grant.

    The session is the worker's own, and only on rank 0.
    """

    def __init__(
        self, program: Program, post: Post, on_report: Callable[[EpochReport], object]
    ) -> None:
        super().__init__(program, post, on_report)
        self._session = Session(
            **post.place,
            report_hook=lambda report: on_report(replace(report, memory_mib=None)),
            store=CheckpointStore(post.storage),
            saves=SaveTimes(post.losses_per_hour),
            progress=post.progress,
        )
        self._saving: Saving | None = None
        self._numbers = EpochNumbers(post.progress)
        self._read_watch: ReadWatch | None = None
        progress = post.progress
        self._counts_epochs = progress.unit == "epoch" and progress.every <= 1

    def _tell(self, **message: Any) -> None:
        match message:
            case {"grant": until}:
                self._session.grant(until)
            case {"acknowledge": epoch}:
                self._session.acknowledge(epoch)

    def stop(self) -> bool:
        self._session.stop()
        return super().stop()

    def flush(self, seconds: float | None = None) -> None:
        self._session.flush(seconds)

    def _no_report(self) -> str:
        metric = self._place["metric_name"]
        readings = self._readings
        if isinstance(readings, MetricFiles) and not readings.files():
            others = self._new_files()
            hints = f"; its new files are {', '.join(others)}" if others else ""
            hints += _next_folder_hint(self._program.file or "", others)
            return f"it wrote no file {self._program.file}, reports.file, with {metric}{hints}"
        names = f"; its lines have {', '.join(sorted(readings.seen))}"
        where = self._program.file or "what it printed"
        hints = names if readings.seen else ""
        pattern = self._program.printed
        if pattern is not None:
            hints += f"; mend reports.printed, {pattern!r}"
        return f"no line of {where} has {metric}{hints}"

    def _new_files(self) -> list[str]:
        """Return some files of the trial's own, relative to its folder."""
        paths = (path for path in sorted(list_below(self.folder)) if not path.is_symlink())
        files = (path.relative_to(self.folder) for path in paths if path.is_file())
        names = (file.as_posix() for file in files if not (self._post.code / file).exists())
        return list(itertools.islice(names, _NEW_FILES))

    def _example(self) -> str:
        """Return a line that wasn't a report, on its own line; "" if there was none."""
        example = self._readings.example
        if self._epoch or not example:
            return ""
        where = self._program.file or self._post.log.name
        return f"Without a report, in {where}: {example}\n"

    def _follow(self) -> None:
        if self._rank > 0:
            super()._follow()
            return
        program = self._program
        with self._session.activate():
            self._readings = self._new_readings()
            if program.folder is not None:
                self._saving = Saving(
                    self,
                    self.folder / program.folder,
                    self._readings,
                    copies=self._base,
                    only_models=program.folder == ".",
                )
            if self._session.restore is not None:
                self._numbers.note_resume(read_manifest(self._session.restore))
                if program.folder is not None:
                    self._read_watch = ReadWatch(self.folder / program.folder)
            process = self._start()
            try:
                self._read(process)
                if not self._stopping.is_set() and process.returncode == 0:
                    self._session.conclude()
                    self._epoch = self._session.epoch
            except StopTraining:
                return
            finally:
                self._session.flush()
                if self._read_watch is not None:
                    self._read_watch.close()
                if self._saving is not None:
                    self._saving.close()
        if not self._stopping.is_set():
            self._check_end(process.returncode)

    def _new_readings(self) -> Readings | MetricFiles:
        program = self._program
        metric = self._place["metric_name"]
        first = int(self._session.start_epoch * self._post.progress.every)
        if program.file is not None:
            return MetricFiles(self.folder, program.file, metric, first=first)
        assert program.printed is not None
        log = self._post.log
        return Readings(log, metric, program.printed, last=program.until, first=first)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        while not self._stopping.is_set():
            if self._saving is not None:
                self._saving.order.note_look()
            ended = process.poll() is not None
            readings = list(self._readings.more(ended=ended))
            if readings:
                self._take(readings)
            if self._readings.hopeless and self._counts_epochs:
                raise CommandFailedError(
                    f"{self._tail()}\n{self._example()}`{self._program.text}` has trained epochs "
                    f"without a report; {self._no_report()}"
                )
            if ended:
                return
            if self._saving is not None:
                self._saving.watch()
            time.sleep(_POLL)

    def _take(self, readings: list[Reading]) -> None:
        """Report the readings, with the checkpoint present at the suspension.

        Those that come while it saves what belongs to the last of them are taken, too.
        """
        self._check_one_model()
        if self._session.epoch == self._session.start_epoch > 0:
            self._check_resume(readings[0])
        taken: list[_Taken] = []
        while True:
            halted = self._halt(len(readings))
            if not halted.coming:
                break
            taken += _assign_checkpoint(readings, halted.checkpoint, len(readings))
            if halted.stands:
                self._report(taken)
                self._let_on()
                taken = []
            readings = list(halted.coming)
        checkpoint = halted.checkpoint
        owner = len(readings)
        # It may have trained on until it was suspended.
        later = list(self._readings.more(ended=False))
        readings = [*readings, *later]
        if later:
            has_saved_each = halted.saves > len(later)
            owner = len(readings) if halted.is_last or has_saved_each else len(readings) - 1
        self._report([*taken, *_assign_checkpoint(readings, checkpoint, owner)])
        self._let_on()

    def _report(self, taken: Sequence["_Taken"]) -> None:
        """Report readings, each with its checkpoint, and wait until it may go on."""
        from_zero = self._readings.from_zero
        for reading, checkpoint in taken:
            own = reading.epoch
            position = self._numbers.position(reading, self._session.epoch, from_zero=from_zero)
            told = {} if own is None else {"epoch": float(own)}
            noted = {**told, **reading.texts, **reading.metrics}
            self._session.report(noted, checkpoint, **position)
            self._epoch = self._session.epoch

    def _halt(self, reports: int) -> Halted:
        """Suspend it after so many reports; return its checkpoint."""
        if self._saving is None:
            self.suspend()
            return Halted()
        epoch = self._session.epoch
        is_end = epoch + reports >= self._session.max_epoch
        return self._saving.halt(reports, epoch, is_end=is_end)

    def _let_on(self) -> None:
        if self._saving is not None:
            self._saving.note_going_on()
        self.go_on()

    def _check_resume(self, first: Reading) -> None:
        """Count from the first epoch again if nothing shows that the checkpoint was read."""
        watch = self._read_watch
        self._read_watch = None
        if watch is None:
            return
        proved = self._numbers.tells(first.epoch) or watch.was_read()
        watch.close()
        if not proved:
            tell(
                f"`{self._program.text}` has not opened its checkpoint of epoch "
                f"{self._session.epoch}: it starts over, and its epochs count from 1; let it read "
                "{resume}"
            )
            self._session.epoch = self._session.start_epoch = 0
            self._numbers = EpochNumbers(self._post.progress)


def _next_folder_hint(expected: str, files: Sequence[str]) -> str:
    """Return what to write where a program takes the next free folder: runs/exp2, or "".

    A trial's folder of checkpoints is there before the program starts.
    """
    names = PurePosixPath(expected).parts
    for file in map(PurePosixPath, files):
        pairs = list(zip(names, file.parts, strict=False))
        alike = [re.sub(r"\d+", "", one) == re.sub(r"\d+", "", other) for one, other in pairs]
        if len(names) != len(file.parts) or not all(alike) or names == file.parts:
            continue
        at = next(n for n, (one, other) in enumerate(pairs) if one != other)
        if at == len(names) - 1:
            return ""
        above = PurePosixPath(*names[:at])
        pattern = above.joinpath("*", *names[at + 1 :])
        return (
            f"; it takes the next free folder, so write reports: {{file: {pattern}}} and, for its "
            f"checkpoints, {{folder: {above}}}"
        )
    return ""


def _moves(process: psutil.Process) -> bool:
    try:
        return process.status() not in _STANDS
    except psutil.NoSuchProcess:
        return False


def command_run(
    program: Program, post: Post, on_report: Callable[[EpochReport], object]
) -> CommandRun:
    """Return the run of a command, ready to start."""
    return (SpokenRun if program.speaks else ReadRun)(program, post, on_report)

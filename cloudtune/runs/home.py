"""The folder of cloudtune's state on this machine: ~/.cloudtune, or CLOUDTUNE_HOME.

Only its user may read it (`close`).

runs/<run>/        ledger.jsonl, record.json and the other records of one run
profiles/          measured profiles
prices/            live prices, kept for seven hours
emulator/          the emulated EC2
functions/         modules of functions that aren't in a file
storage/           checkpoints, if an experiment names no storage
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtune import private_files
from cloudtune.clock import unix_time
from cloudtune.errors import UsageError
from cloudtune.file_locks import share_lock, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudtune.experiment import Experiment

LEDGER = "ledger.jsonl"
# On a head: the id of its run.
RUN_VARIABLE = "CLOUDTUNE_RUN"
# On a head: when its run's clock began (Unix time), before the head was requested.
BEGAN_VARIABLE = "CLOUDTUNE_BEGAN"
# The end of the name of a run that measures a script.
PROFILE_TAIL = "-profile"
DEFAULT_STORAGE = "~/.cloudtune/storage"
_FOLDERS = (
    *("runs", "profiles", "prices", "knowledge", "emulator", "local", "functions", "storage"),
)


def home() -> Path:
    """Return the folder of this user's state.

    Raises:
        UsageError: something else than a folder is there.
    """
    path = Path(os.environ.get("CLOUDTUNE_HOME") or "~/.cloudtune").expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} isn't a folder; set CLOUDTUNE_HOME to one that can be written")
    return path


def close() -> None:
    """Make this folder unreadable for other users, including what is in it already.

    A home that also holds other files stays open, except for our folders in it.
    """
    private_files.keep_private()
    folder = home()
    for name in _FOLDERS:
        private_files.close(folder / name)
    with contextlib.suppress(OSError):  # there is none yet
        if set(os.listdir(folder)) <= set(_FOLDERS):  # noqa: PTH208
            private_files.close(folder.resolve(), all_in_it=False)


def runs() -> Path:
    """Return the folder of all runs."""
    return home() / "runs"


def new_run(name: str) -> Path:
    """Return the folder of a new run; its name is the run's id: name, date, a random tail.

    On a head, the id is the one that its user's machine has chosen.
    """
    stamp = time.strftime("%m%d-%H%M%S")
    chosen = os.environ.pop(RUN_VARIABLE, "") if not name.endswith(PROFILE_TAIL) else ""
    folder = runs() / (chosen or f"{name}-{stamp}-{secrets.token_hex(2)}")
    folder.mkdir(parents=True, exist_ok=bool(chosen))
    # Before a training script creates it, with its user's umask.
    (home() / "storage").mkdir(mode=0o700, exist_ok=True)
    return folder


def functions() -> Path:
    """Return the folder of the modules that `put_back` restores."""
    return home() / "functions"


def put_back(path: Path) -> bool:
    """Restore a generated module and its data where a run looks for them; False if none."""
    kept = functions() / path.name
    if not kept.exists():
        return False
    with private_files.for_others():
        for suffix in (".pkl", ".py"):
            wanted = path.with_suffix(suffix)
            if not wanted.exists():  # an existing one is the same, and a run may use it
                fresh = path.with_suffix(f".{os.getpid()}")
                shutil.copyfile(kept.with_suffix(suffix), fresh)
                fresh.replace(wanted)
    return True


@contextlib.contextmanager
def with_module(experiment: Experiment) -> Iterator[None]:
    """Keep an experiment's generated module in its folder; remove it after its last run there."""
    if experiment.runs_command or not put_back(experiment.train_file):
        yield
        return
    path = experiment.train_file
    with path.open() as file:
        share_lock(file)
        try:
            yield
        finally:
            if try_lock(file):  # else another run has it
                _remove_module(path)


def _remove_module(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
        path.with_suffix(".pkl").unlink()
        compiled = Path(cache_from_source(str(path)))
        compiled.unlink(missing_ok=True)
        compiled.parent.rmdir()  # unless the person's own modules are in it


def began() -> float:
    """Return the start of the clock of a run that begins now, Unix time."""
    return float(os.environ.get(BEGAN_VARIABLE) or unix_time())


def run_folders() -> list[Path]:
    """Return the folders of all runs, latest last."""
    return sorted(
        (folder for folder in runs().glob("*") if (folder / LEDGER).exists()),
        key=lambda folder: (folder / LEDGER).stat().st_ctime,
    )


def find_run(run: str | None) -> Path:
    """Return the folder of a run, by id or by an unambiguous prefix; None means the last one.

    A path names the folder of a run that was moved elsewhere. An address, STORAGE/RUN, names a run
    that a head carries or has carried; its new records are fetched.

    Raises:
        UsageError: there is no such run, or several.
        StorageError: a head carries it, and its storage can't be reached.
    """
    # `--help` loads this module, and would mostly wait for these.
    from cloudtune.infra.heads.launch import REMOTE  # noqa: PLC0415
    from cloudtune.infra.heads.remote_runs import adopt, is_carried  # noqa: PLC0415

    if run is not None and "://" in run:
        return adopt(run, runs())
    if run is not None and "/" in run and (Path(run) / LEDGER).is_file():
        return Path(run).resolve()
    for place in sorted(runs().glob(f"*/{REMOTE}")):
        if place.parent.name.startswith(run or ""):
            is_carried(place.parent)  # fetches its ledger, which may not be here yet
    folders = run_folders()
    if run is not None:
        return the_one(run, folders)
    if not folders:
        raise UsageError(f"no run yet in {runs()}; `cloudtune runs` lists them")
    return folders[-1]


def the_one(name: str, folders: list[Path]) -> Path:
    """Return the folder of that name, or the only one with that prefix.

    Raises:
        UsageError: there is none, or several.
    """
    fitting = [folder for folder in folders if folder.name == name]
    fitting = fitting or [folder for folder in folders if folder.name.startswith(name)]
    if not fitting or not name:
        raise UsageError(f"no run {name} in {runs()}; `cloudtune runs` lists them")
    if len(fitting) > 1:
        names = ", ".join(folder.name for folder in fitting)
        raise UsageError(f"{name!r} fits {names}; write one out")
    return fitting[0]


def storage(uri: str) -> str:
    """Return where checkpoints go: a URI, or an absolute path."""
    if "://" in uri:
        return uri
    if uri == DEFAULT_STORAGE:
        return str(home() / "storage")
    return str(Path(uri).expanduser().absolute())


def run_storage(uri: str, run: str) -> str:
    """Return where the checkpoints of a run go, in that storage."""
    return f"{storage(uri).rstrip('/')}/{run}"

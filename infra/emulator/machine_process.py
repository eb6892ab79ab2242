"""The processes of one emulated machine: started from its user data, found again, and ended.

A process belongs to a machine by any of three criteria: it is in the session of the machine's first
process, its environment has the machine's id, or it descends from one of those. A single criterion
isn't enough: daemons start their own sessions, and Ray's workers overwrite their environment with a
process title.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from cloudtune.errors import CloudtuneError
from cloudtune.infra import processes
from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.node import this_machine as local
from cloudtune.infra.node.boot import LOCAL_VARIABLE

ID_VARIABLE = "CLOUDTUNE_MACHINE"
RECORD_NAME = "process.json"
CONSOLE_NAME = "console.log"
# A Unix socket's path has up to 107 characters; Ray adds up to 64 to its temp dir, scripts a few.
LONGEST_TEMP_DIR = 36
_PATIENCE_S = 10.0
_SHUTDOWN_COMMAND = """\
#!/bin/sh
exec "{python}" -IS - "$@" <<'END'
import json, sys, urllib.error, urllib.request
body = json.dumps(sys.argv[1:]).encode()
try:
    print(urllib.request.urlopen("{url}", body, timeout=10).read().decode())
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode())
END
"""


# Machines by id, each with the session of its first process, if that is certain.
Sessions = Mapping[str, int | None]


def start(machine: Machine, access: Access) -> subprocess.Popen[bytes]:
    """Run a machine's user data in its folder, in a session of its own, and record who it is."""
    assert machine.script is not None
    name = machine.id
    folder = machine.folder
    settings = machine.settings
    (folder / "user-data").write_text(machine.script)
    write_shutdown_command(folder, name, access)
    own = LOCAL_VARIABLE in settings
    environment = {
        **(
            local.environment(folder, access.metadata(name))
            if own
            else _environment(folder, access, name)
        ),
        ID_VARIABLE: name,
        **settings,
        "TMPDIR": str(_make_temp_dir(folder)),
    }
    # Before it exists: an emulator killed at this very point still leaves a trace to clean up by.
    record(folder, None)
    with (folder / CONSOLE_NAME).open("ab") as output:
        process = subprocess.Popen(
            ["/bin/bash", str(folder / "user-data")],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    record(folder, process.pid)
    return process


def record(folder: Path, pid: int | None) -> None:
    """Record the pid of a machine's first process; None before there is one."""
    created = None if pid is None else processes.birth(pid)
    text = json.dumps({"pid": pid, "create_time": created})
    processes.write_atomically(folder / RECORD_NAME, text)


def console(folder: Path) -> bytes:
    """Return the output of a machine; nothing if it has removed its own console."""
    try:
        return (folder / CONSOLE_NAME).read_bytes()
    except FileNotFoundError:
        return b""


def kill(sessions: Sessions) -> set[str]:
    """Send SIGKILL to every process of these machines; return the machines that still had one."""
    members = _members(sessions)
    for process, _ in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return {machine for _, machine in members}


def kill_all(sessions: Sessions) -> None:
    """Kill until the machines have no process, including ones being started.

    Raises:
        CloudtuneError: some don't end.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while still := kill(sessions):
        if time.monotonic() > deadline:
            raise CloudtuneError(
                f"processes of {', '.join(sorted(still))} don't end when they are killed; end them "
                "by hand, then try again"
            )
        time.sleep(0.01)


def freeze(sessions: Sessions) -> None:
    """Suspend every process of the machines (SIGSTOP), until none runs any more.

    Raises:
        CloudtuneError: some keep running.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while moving := [member for member, _ in _members(sessions) if not _stands_still(member)]:
        for process in moving:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        if time.monotonic() > deadline:
            names = ", ".join(sessions)
            raise CloudtuneError(f"processes of {names} don't stand still when stopped")
        time.sleep(0.01)


def thaw(sessions: Sessions) -> None:
    """Continue the suspended processes of machines (SIGCONT)."""
    for process, _ in _members(sessions):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _stands_still(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def tidy(folder: Path) -> None:
    """Remove the files of an ended machine, except its console log and user data."""
    temp = folder / "tmp"
    shutil.rmtree(temp.resolve(), ignore_errors=True)
    temp.unlink(missing_ok=True)
    (folder / RECORD_NAME).unlink(missing_ok=True)


def end_leftovers(instances: Path) -> list[str]:
    """End the machines that a dead emulator left running; return their ids.

    A process with a reused pid is never touched.

    Raises:
        CloudtuneError: some don't end.
    """
    sessions = _read_records(instances)
    kill_all(sessions)
    for machine in sessions:
        tidy(instances / machine)
    return list(sessions)


def left_running(instances: Path) -> list[str]:
    """Return the machines of a dead emulator that still have processes."""
    return sorted({machine for _, machine in _members(_read_records(instances))})


def forget_old(instances: Path, *, keep: int) -> None:
    """Remove the folders of all but the newest `keep` machines; call while none runs."""
    folders = sorted(instances.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[: max(0, len(folders) - keep)]:
        shutil.rmtree(folder, ignore_errors=True)


def _read_records(instances: Path) -> Sessions:
    """Return the machines that have records."""
    sessions: dict[str, int | None] = {}
    for path in sorted(instances.glob(f"*/{RECORD_NAME}")):
        sessions[path.parent.name] = None
        with contextlib.suppress(KeyError, TypeError, ValueError):  # damaged: found by their mark
            record = json.loads(path.read_text())
            if record["pid"] and processes.same_process(record["pid"], record["create_time"]):
                sessions[path.parent.name] = record["pid"]
    return sessions


def _members(sessions: Sessions) -> list[tuple[psutil.Process, str]]:
    """Return every living process of these machines, each with its machine."""
    if not sessions:
        return []
    by_session = {session: name for name, session in sessions.items() if session is not None}
    alive = [process for process in psutil.process_iter() if processes.is_running(process)]
    machine_of: dict[int, str] = {}
    for process in alive:
        with contextlib.suppress(psutil.Error, OSError):  # gone meanwhile, or another user's
            machine = by_session.get(os.getsid(process.pid)) or process.environ().get(ID_VARIABLE)
            if machine is not None and machine in sessions:
                machine_of[process.pid] = machine
    processes.add_descendants(machine_of, alive)
    return [(process, machine_of[process.pid]) for process in alive if process.pid in machine_of]


def _environment(folder: Path, access: Access, machine: str) -> dict[str, str]:
    """Return the clean environment of a machine, with only PYTHONPATH from ours."""
    environment = {
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": access.metadata(machine),
        "AWS_ENDPOINT_URL": access.endpoint,
        # Emulated GPUs are CPU slots: several machines would take this machine's first GPU.
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "CLOUDTUNE_STAGING": "",  # its disk is a folder of ours
        "AWS_ACCESS_KEY_ID": access.key,
        "AWS_SECRET_ACCESS_KEY": access.secret,
        # gloo binds to the address of the host name by default; every machine is on loopback.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return environment


def write_shutdown_command(folder: Path, machine: str, access: Access) -> None:
    """Write the machine's own `shutdown` into its folder `bin`."""
    url = f"{access.metadata(machine)}/shutdown"
    command = folder / "bin" / "shutdown"
    command.parent.mkdir(exist_ok=True)
    command.write_text(_SHUTDOWN_COMMAND.format(python=sys.executable, url=url))
    command.chmod(0o700)


def _make_temp_dir(folder: Path) -> Path:
    """Return a private temp dir for the machine, short enough for Ray's sockets."""
    inside = folder / "tmp"
    if len(str(inside)) <= LONGEST_TEMP_DIR:
        inside.mkdir(exist_ok=True)
        return inside
    short = len(tempfile.gettempdir()) + len("/ct-12345678") <= LONGEST_TEMP_DIR
    root = None if short else "/tmp"  # noqa: S108
    outside = Path(tempfile.mkdtemp(prefix="ct-", dir=root))
    inside.symlink_to(outside)
    return outside

"""A computer outside the isolated cloud, with credentials and nothing else: somebody's laptop.

`python -m cloudtune.infra.emulator.isolated.computer --home HOME --name NAME -- COMMAND` runs a
command on it, from within the namespaces of the cloud. What it keeps is in its home, which is the
same the next time: HOME/computers/NAME.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtune.errors import CloudtuneError
from cloudtune.infra.emulator.isolated import boot, image, network
from cloudtune.infra.emulator.service import find_emulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtune.infra.emulator.requests import Access

RUNNING = ".running"
"""A folder of a computer's home, with a file for the first process of each command on it."""
_CABLES = 250
_LOCK = ".cables"
_HOME = Path("/home/me")
_KEPT = ("TERM", "LANG", "COLUMNS", "LINES")


def run(home: Path, name: str, command: Sequence[str]) -> int:
    """Run a command on a computer, with this process's terminal; return its exit code.

    Raises:
        CloudtuneError: no cloud runs in `home`.
    """
    emulator = find_emulator(home)
    if emulator is None:
        raise CloudtuneError(f"no isolated cloud runs in {home}")
    own = folder_of(home, name)
    _give_credentials(own, emulator.access)
    made = image.root({**image.baked(_programs(home)), _HOME: own})
    kept = [f"{each}={os.environ[each]}" for each in _KEPT if each in os.environ]
    clean = ["env", "-i", f"PATH={image.PATH}", f"HOME={_HOME}"]
    where = f"AWS_ENDPOINT_URL={emulator.access.endpoint}"  # as names of hosts tell elsewhere
    started = shlex.join([*clean, where, *kept, *command])
    attach = partial(_attach, home)
    process = boot.spawn(made, f"cd {_HOME}\nexec {started}\n", attach, env={"PATH": image.PATH})
    noted = own / RUNNING / str(process.pid)
    noted.parent.mkdir(exist_ok=True)
    noted.touch()
    try:
        return process.wait()
    finally:
        noted.unlink(missing_ok=True)


def folder_of(home: Path, name: str) -> Path:
    """Return the folder that is a computer's home."""
    return home / "computers" / name


def _attach(home: Path, pid: int) -> None:
    """Give a process a cable that none has; another that looks for one meanwhile waits."""
    with (home / "computers" / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in range(1, _CABLES):
            if not Path(f"/proc/sys/net/ipv4/conf/c{number}").exists():
                network.attach_computer(pid, number)
                return
    raise CloudtuneError(f"there are {_CABLES} computers already")


def _give_credentials(own: Path, access: Access) -> None:
    folder = own / ".aws"
    folder.mkdir(parents=True, exist_ok=True)
    credentials = folder / "credentials"
    if not credentials.exists():
        keys = f"aws_access_key_id = {access.key}\naws_secret_access_key = {access.secret}\n"
        credentials.write_text(f"[default]\n{keys}")


def _programs(home: Path) -> Path:
    programs = home / "computers" / ".programs"
    programs.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    image.write_program(programs / "python3", image.python_program())
    image.write_program(programs / "cloudtune", f'#!/bin/sh\nexec {python} -m cloudtune "$@"\n')
    return programs


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m cloudtune.infra.emulator.isolated.computer")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--name", default="laptop")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    return run(given.home.absolute(), given.name, given.command)


if __name__ == "__main__":
    sys.exit(main())

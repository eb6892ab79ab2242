"""A computer outside the isolated cloud, with credentials and nothing else: somebody's laptop.

`python tests/aws_stand_in computer --home HOME --name NAME -- COMMAND` runs a command on it, from
within the namespaces of the cloud. Its home folder, HOME/computers/NAME, stays for the next one.
AWS is reached by its own names: with the CA of the company's proxy in it, through that proxy.
"""

import argparse
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cloudtune.errors import CloudtuneError
from cloudtune.file_locks import lock_file
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.service import find_emulator
from tests.aws_stand_in import image, names, network  # not what imports moto, for seconds
from tests.aws_stand_in.company_proxy import BUNDLE

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
    own = computer_folder(home, name)
    _give_credentials(own, emulator.access)
    environment = {"PATH": image.PATH, "HOME": str(_HOME)}
    names_of_aws = names.files(home)
    if (own / BUNDLE).exists():  # a company's network has no names of the world outside
        names_of_aws = {}
        environment["HTTPS_PROXY"] = "http://{}:{}".format(*network.PROXY)
        environment["AWS_CA_BUNDLE"] = str(_HOME / BUNDLE)
    root = image.root({**image.list_mounts(_programs(home)), _HOME: own, **names_of_aws})
    environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    variables = [f"{name}={value}" for name, value in environment.items()]
    lines = f"cd {_HOME}\nexec {shlex.join(['env', '-i', *variables, *command])}\n"
    process = spawn(root, lines, partial(_attach, home), env={"PATH": image.PATH})
    running = own / RUNNING / str(process.pid)
    running.parent.mkdir(exist_ok=True)
    running.touch()
    try:
        return process.wait()
    finally:
        running.unlink(missing_ok=True)


def spawn(
    root: str, command: str, attach: Callable[[int], None], **options: Any
) -> subprocess.Popen[bytes]:
    """Run lines of a shell in a machine of their own; `root` makes its root, `attach` its network.

    Raises:
        CloudtuneError: this computer doesn't let us.
    """
    gate, ours = os.pipe()
    try:
        process = subprocess.Popen(
            [*network.MACHINE, "/bin/bash", "-c", image.first_process(root, gate, command)],
            cwd="/",
            pass_fds=[gate],
            start_new_session=True,
            **options,
        )
    finally:
        os.close(gate)
    try:
        network.await_namespace(process.pid)
        attach(process.pid)
    except CloudtuneError:
        process.kill()
        raise
    finally:
        os.close(ours)  # that lets it go on
    return process


def computer_folder(home: Path, name: str) -> Path:
    return home / "computers" / name


def _attach(home: Path, pid: int) -> None:
    """Give a process a free cable; the lock keeps two from taking the same."""
    with lock_file(home / "computers" / _LOCK):
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
    image.write_program(programs / "python3", image.python_program())
    image.write_program(programs / "cloudtune", '#!/bin/sh\nexec python3 -m cloudtune "$@"\n')
    return programs


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--name", default="laptop")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    return run(given.home.absolute(), given.name, given.command)

"""What an isolated machine has when it boots: the root of this computer, read only, and an image.

    /                   this computer's, read only
    /tmp /run /root …   empty, and its own
    /usr/local/sbin     the programs of its image, before all others on the PATH
    python3             the Python of whoever started the cloud, with cloudtune: a baked image
    aws                 the one command of the AWS CLI that instances use
    nvidia-smi          names the GPUs that its type has
    shutdown            ends the machine, as EC2's does by way of the hypervisor
    /etc/resolv.conf    AWS's own names lead to the stand-in, and each bundle of certificates has
                        its CA (`names.py`)

Nothing of the environment of whoever started the cloud is there.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OWN = ("/tmp", "/run", "/var/tmp", "/root", "/home", "/opt", "/mnt", "/srv")
_PROGRAMS = "/usr/local/sbin"
_REPOSITORY = Path(__file__).resolve().parents[2]
_FILES = 1024  # what EC2's images let a process open, unless it asks for more


def python_folders() -> list[Path]:
    """Return the folders without which this Python doesn't run, none within another."""
    folders = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, _REPOSITORY)}
    return sorted(path for path in folders if not folders & {*path.parents})


def python_program() -> str:
    """Return a program `python3` that is the Python of this process, with this very cloudtune."""
    ours = shlex.quote(f"PYTHONPATH={_REPOSITORY}/.package")
    return f'#!/bin/sh\nexec env {ours} {shlex.quote(sys.executable)} "$@"\n'


def aws_program() -> str:
    """Return a program `aws` for `aws s3 cp --only-show-errors s3://BUCKET/KEY -`, by boto3."""
    cli = Path(__file__).with_name("aws_cli.py")
    return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(cli))} "$@"\n'


def nvidia_smi(gpus: int, name: str) -> str:
    """Return a program that names GPUs as nvidia-smi does when it is asked for a table."""
    rows = "".join(f"{gpu}, GPU-0000000{gpu}-stand-in, {name}, 0\\n" for gpu in range(gpus))
    return f"#!/bin/sh\nprintf '{rows}'\n"


def root(visible: Mapping[Path, Path]) -> str:
    """Return the lines of a shell that make a machine's root, as root of its mount namespace.

    `visible` has the folders and files that are to be seen where others see nothing, or something
    else: where, and which.
    """
    places = {where: f"/dev/shm/{number}" for number, where in enumerate(visible)}
    lines = ["mount --make-rprivate /", "mount -t tmpfs own /dev/shm"]
    make = {where: "touch" if which.is_file() else "mkdir -p" for where, which in visible.items()}
    for where, which in visible.items():
        place = places[where]
        lines += [f"{make[where]} {place}", f"mount --rbind {shlex.quote(str(which))} {place}"]
    lines.append("mount -o remount,bind,ro /")
    lines += [f"[ ! -d {folder} ] || mount -t tmpfs -o mode=1777 own {folder}" for folder in _OWN]
    for where, place in places.items():
        quoted = shlex.quote(str(where))
        lines += [
            f"[ -e {quoted} ] || {{ mkdir -p {quoted}/..; {make[where]} {quoted}; }}",
            f"mount --rbind {place} {quoted}",
        ]
    lines += ["mount -t tmpfs -o mode=1777 own /dev/shm", "mount -t proc proc /proc"]
    return "\n".join(lines) + "\n"


def list_mounts(programs: Path) -> dict[Path, Path]:
    """Return what is visible in an image with this Python and these programs."""
    return {**{path: path for path in python_folders()}, Path(_PROGRAMS): programs}


def first_process(root: str, gate: int, command: str) -> str:
    """Return what a machine's first process runs: its root, its cable, and then a command.

    Whoever attaches the network closes the other end of the pipe `gate` when that is done.
    """
    return f"set -e\n{root}read -r _ <&{gate} || :\nexec {gate}<&-\ncd /\n{command}"


def user_data_command(script: str) -> str:
    """Return the lines of a shell that run user data as root at boot."""
    return (
        f"ulimit -Sn {_FILES}\n"
        f"printf %s {shlex.quote(script)} > /run/user-data\n"
        f"exec env -i PATH={PATH} /bin/bash /run/user-data < /dev/null\n"
    )


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)

"""Machines in namespaces: started from their user data, as `machine_process.start` does it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from cloudtune.errors import CloudtuneError
from cloudtune.infra.emulator import machine_process
from cloudtune.infra.emulator.isolated import image, network
from cloudtune.infra.node.gpus import STAND_IN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cloudtune.infra.emulator.machine import Machine
    from cloudtune.infra.emulator.requests import Access


def start(machine: Machine, access: Access) -> subprocess.Popen[bytes]:
    """Run a machine's user data in namespaces of its own, and record who it is.

    Raises:
        CloudtuneError: this computer doesn't let us.
    """
    assert machine.script is not None
    folder = machine.folder
    (folder / "user-data").write_text(machine.script)
    made = image.root(image.baked(_image(machine, access)))
    command = image.user_data_command(machine.script, {"AWS_ENDPOINT_URL": access.endpoint})
    machine_process.record(folder, machine.id, None)
    with (folder / machine_process.CONSOLE_NAME).open("ab") as output:
        process = spawn(
            made,
            command,
            lambda pid: network.attach_instance(pid, machine.address),
            env={machine_process.ID_VARIABLE: machine.id, "PATH": image.PATH},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    machine_process.record(folder, machine.id, process.pid)
    return process


def spawn(
    made: str, command: str, attach: Callable[[int], None], **how: Any
) -> subprocess.Popen[bytes]:
    """Run lines of a shell in a machine of their own: its root is `made`, its network attached.

    Raises:
        CloudtuneError: this computer doesn't let us.
    """
    gate, ours = os.pipe()
    try:
        process = subprocess.Popen(
            [
                *network.machine_command(),
                *("/bin/bash", "-c", image.first_process(made, gate, command)),
            ],
            cwd="/",
            pass_fds=[gate],
            start_new_session=True,
            **how,
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


def _image(machine: Machine, access: Access) -> Path:
    """Write what is in a machine's image, and return the folder."""
    programs = machine.folder / "bin"
    programs.mkdir(exist_ok=True)
    machine_process.write_shutdown_command(machine.folder, machine.id, access)
    image.write_program(programs / "python3", image.python_program())
    if machine.gpus:
        image.write_program(programs / "nvidia-smi", image.nvidia_smi(machine.gpus, STAND_IN))
    return programs

"""Systems Manager's Run Command: a shell command on a machine, by an agent with its role's rights.

Shapes and status words are those of SendCommand, GetCommandInvocation and CancelCommand (Systems
Manager API reference), as known to us, and so is that the first 24,000 characters are kept.
"""

import json
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NamedTuple

import psutil

from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.machine_process import ID_VARIABLE, RECORD_NAME
from tests.aws_stand_in.image import PATH

_KEPT = 24_000


class _Command(NamedTuple):
    """A command on an instance; `out` and `err` are what it prints."""

    instance: str
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    def invocation(self) -> dict[str, Any]:
        """Return what GetCommandInvocation says of it, but for its id."""
        code = self.process.poll()
        if code is None:
            status, code = "InProgress", -1
        elif code < 0:
            status, code = "Cancelled", -1
        else:
            status = "Failed" if code else "Success"
        return {
            "InstanceId": self.instance,
            "Status": status,
            "StatusDetails": status,
            "ResponseCode": code,
            "StandardOutputContent": _read(self.out),
            "StandardErrorContent": _read(self.err),
        }


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")[:_KEPT]


class Commands:
    """The commands of an account; `reaches` says whether a machine's agent reaches the service."""

    def __init__(self, reaches: Callable[[Machine], bool]) -> None:
        self._reaches = reaches
        self._commands: dict[str, _Command] = {}

    def answer(
        self, action: str, given: Mapping[str, Any], machines: Iterable[Machine]
    ) -> tuple[int, str] | None:
        """Return status and body of an answer; None for another call."""
        if action == "GetCommandInvocation":
            name = given["CommandId"]
            return 200, json.dumps({"CommandId": name, **self._commands[name].invocation()})
        if action == "CancelCommand":
            command = self._commands[given["CommandId"]]
            if command.process.poll() is None:
                os.killpg(command.process.pid, signal.SIGKILL)
            return 200, "{}"
        if action != "SendCommand":
            return None
        [instance] = given["InstanceIds"]
        machine = next((it for it in machines if it.id == instance), None)
        if machine is None or not self._reaches(machine):
            error = {"__type": "InvalidInstanceId", "Message": "Instances not in a valid state"}
            return 400, json.dumps(error)
        name = str(uuid.uuid4())
        self._commands[name] = _begin(machine, given["Parameters"]["commands"])
        return 200, json.dumps({"Command": {"CommandId": name, "Status": "Pending"}})


def _begin(machine: Machine, lines: Iterable[str]) -> _Command:
    """Run lines of a shell on a machine, in the namespaces of its processes."""
    first = json.loads((machine.folder / RECORD_NAME).read_text())["pid"]
    within = psutil.Process(first).children()[0].pid
    out = tempfile.TemporaryFile()  # noqa: SIM115  both live as long as the account
    err = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        [
            *("nsenter", f"--target={within}", "--net", "--mount", "--pid", "--wd=/"),
            *("/bin/bash", "-c", "\n".join(lines)),
        ],
        env={"PATH": PATH, ID_VARIABLE: machine.id},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )
    return _Command(machine.id, process, out, err)

"""Systems Manager's Run Command: a shell command on a machine, by an agent with its role's rights.

Shapes and status words are those of SendCommand and GetCommandInvocation (Systems Manager API
reference), as known to us. A command has ended when SendCommand answers.
"""

import json
import subprocess
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psutil

from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.machine_process import ID_VARIABLE, RECORD_NAME
from tests.aws_stand_in.image import PATH

_SECONDS = 60.0


class Commands:
    """The commands of an account; `reaches` says whether a machine's agent reaches the service."""

    def __init__(self, reaches: Callable[[Machine], bool]) -> None:
        self._reaches = reaches
        self._ended: dict[str, dict[str, Any]] = {}

    def answer(
        self, action: str, given: Mapping[str, Any], machines: Iterable[Machine]
    ) -> tuple[int, str] | None:
        """Return status and body of an answer; None for another call."""
        if action == "GetCommandInvocation":
            return 200, json.dumps(self._ended[given["CommandId"]])
        if action != "SendCommand":
            return None
        [instance] = given["InstanceIds"]
        machine = next((it for it in machines if it.id == instance), None)
        if machine is None or not self._reaches(machine):
            error = {"__type": "InvalidInstanceId", "Message": "Instances not in a valid state"}
            return 400, json.dumps(error)
        done = _run(machine, given["Parameters"]["commands"])
        command = str(uuid.uuid4())
        self._ended[command] = {
            "CommandId": command,
            "InstanceId": instance,
            "Status": "Success" if done.returncode == 0 else "Failed",
            "StatusDetails": "Success" if done.returncode == 0 else "Failed",
            "ResponseCode": done.returncode,
            "StandardOutputContent": done.stdout,
            "StandardErrorContent": done.stderr,
        }
        return 200, json.dumps({"Command": {"CommandId": command, "Status": "Pending"}})


def _run(machine: Machine, lines: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run lines of a shell on a machine, in the namespaces of its processes."""
    first = json.loads((machine.folder / RECORD_NAME).read_text())["pid"]
    within = psutil.Process(first).children()[0].pid
    return subprocess.run(
        [
            *("nsenter", f"--target={within}", "--net", "--mount", "--pid", "--wd=/"),
            *("/bin/bash", "-c", "\n".join(lines)),
        ],
        env={"PATH": PATH, ID_VARIABLE: machine.id},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )

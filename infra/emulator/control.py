"""The emulator's control side: its instances, faults and shutdown.

`POST /_cloudtune/<command>`, with the command's arguments as a JSON object: `client` has them all.

Each request has the token (`requests.Access.headers`), and a JSON content type, which pages of
other origins can't send without permission.
"""

import json
import math
import os
from collections.abc import Callable
from typing import Any

from werkzeug.wrappers import Request, Response

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.infra.emulator.ec2 import EmulatedEC2
from cloudtune.infra.emulator.fault_files import parse_faults
from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.scenario import Scenario


class Control:
    """The requests of the emulator's user, other than those to EC2.

    `close` ends the emulator, optionally only if it is idle, and returns whether it does.
    """

    def __init__(
        self,
        ec2: EmulatedEC2,
        scenario: Scenario,
        access: Access,
        close: Callable[..., bool],
        is_closing: Callable[[], bool],
    ) -> None:
        self._ec2 = ec2
        self._access = access
        self._close = close
        self._is_closing = is_closing
        machines = ec2.machines
        self._commands: dict[str, Callable[..., object]] = {
            "ping": self._ping,
            "instances": ec2.records,
            "report": scenario.report,
            "replace": lambda faults: scenario.replace(parse_faults(faults)),
            "add": lambda faults: scenario.add(parse_faults(faults)),
            "reclaim": self._reclaim,
            "kill": lambda instance: machines.kill(self._machine(instance)),
            "freeze": lambda instance: machines.freeze(self._machine(instance)),
            "thaw": lambda instance: machines.thaw(self._machine(instance)),
            "move_clock": self._move_clock,
            "shut_down": self._shut_down,
        }

    def answer(self, request: Request) -> Response:
        """Answer one request; a mistake in it gets status 400 and its text, a failure 500."""
        if not self._access.may_control(request):
            return text("the token is missing, or another emulator's", 403)
        if request.mimetype != "application/json":
            return text("say that it is JSON: Content-Type: application/json", 415)
        command = self._commands.get(request.path.removeprefix("/_cloudtune/"))
        if command is None:
            return text("no such command", 404)
        try:
            return to_json(command(**json.loads(request.get_data())))
        except (UsageError, ValueError) as error:
            return text(str(error), 400)
        except CloudtuneError as error:
            return text(str(error), 500)

    def _ping(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "live": len(self._ec2.machines.live()),
            "closing": self._is_closing(),
            "now": self._ec2.clock.now(),
            "clock": self._ec2.clock.offset,
        }

    def _machine(self, instance: str) -> Machine:
        machine = self._ec2.machines.find(instance)
        if machine is None or not self._ec2.is_live(instance):
            raise UsageError(f"{instance}: no such instance, or it is gone")
        return machine

    def _reclaim(self, instance: str, notice: float) -> float:
        machine = self._machine(instance)
        if machine.pool.market != "spot":
            raise UsageError(f"{instance} is on demand: AWS takes back only spot instances")
        if not 0 <= notice < math.inf:
            raise UsageError("a notice is given some seconds before the end, not after it")
        return self._ec2.machines.reclaim(machine, notice)

    def _move_clock(self, seconds: float) -> float:
        if not math.isfinite(seconds):
            raise UsageError(f"{seconds} is no number of seconds")
        self._ec2.clock.offset += seconds
        return self._ec2.clock.offset

    def _shut_down(self, *, only_if_idle: bool) -> None:
        if not self._close(only_if_idle=only_if_idle):
            raise UsageError("the emulator isn't idle")


def to_json(body: object, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return Response(json.dumps(body), status=status, mimetype="application/json")


def text(body: str, status: int = 200) -> Response:
    """Return an answer in plain text."""
    return Response(body, status=status, mimetype="text/plain")

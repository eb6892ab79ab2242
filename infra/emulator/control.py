"""The emulator's control side: who is there, what is to go wrong, and the end of it all.

GET  /_cloudtune/ping                   {"pid", "live", "closing", "now", "clock"}
GET  /_cloudtune/instances              every instance there was, ended ones included
POST /_cloudtune/instances/<id>/shutdown    the machine's `shutdown` command: its arguments
POST /_cloudtune/instances/<id>/interrupt   a spot interruption in ?seconds=120; 0: without notice
POST /_cloudtune/instances/<id>/kill        its processes die, and EC2 doesn't notice
POST /_cloudtune/instances/<id>/freeze      its processes stand still; …/thaw lets them go on
GET  /_cloudtune/faults                 the faults to come, and the newest calls
POST, PATCH, DELETE /_cloudtune/faults  replace, add to, or clear the faults to come
POST /_cloudtune/clock                  move the emulator's clock by ?seconds=
POST /_cloudtune/shutdown               end the emulator; with ?only_if_idle=1 only when idle

Each request carries the token (`requests.Access.headers`), a machine's `shutdown` its own key; what
changes anything says that it is JSON, which a page of elsewhere can't without our leave.
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
from cloudtune.infra.emulator.requests import KEY_HEADER, Access
from cloudtune.infra.emulator.scenario import Scenario

NOTICE_S = 120.0


class Control:
    """What cloudtune and the machines themselves ask of the emulator, besides EC2."""

    def __init__(
        self,
        ec2: EmulatedEC2,
        scenario: Scenario,
        access: Access,
        shut_down: Callable[[Request], Response],
        is_closing: Callable[[], bool],
    ) -> None:
        self._ec2 = ec2
        self._scenario = scenario
        self._access = access
        self._shut_down = shut_down
        self._is_closing = is_closing
        self._reports: dict[str, Callable[[], object]] = {
            "ping": self._ping,
            "instances": ec2.records,
            "faults": scenario.report,
        }

    def answer(self, request: Request) -> Response:
        """Answer one request; a mistake in it gets status 400 and its text, a failure 500."""
        is_let_in = self._access.may_control(request)
        match request.path.split("/")[2:]:
            case ["instances", machine_id, "shutdown"]:
                key = request.headers.get(KEY_HEADER, "")
                is_let_in = is_let_in or self._access.may_ask(key, machine_id)
        if not is_let_in:
            return text("the token is missing, or another emulator's", 403)
        if request.method != "GET" and request.mimetype != "application/json":
            return text("say that it is JSON: Content-Type: application/json", 415)
        try:
            return self._route(request)
        except (UsageError, ValueError) as error:
            return text(str(error), 400)
        except CloudtuneError as error:
            return text(str(error), 500)

    def _route(self, request: Request) -> Response:
        match request.method, request.path.split("/")[2:]:
            case "GET", [report] if report in self._reports:
                return to_json(self._reports[report]())
            case "POST", ["instances", machine_id, verb]:
                return self._command(request, machine_id, verb)
            case "POST" | "PATCH" | "DELETE", ["faults"]:
                data = b"[]" if request.method == "DELETE" else request.get_data()
                change = self._scenario.add if request.method == "PATCH" else self._scenario.replace
                change(parse_faults(json.loads(data)))
                return to_json(self._scenario.report())
            case "POST", ["shutdown"]:
                return self._shut_down(request)
            case "POST", ["clock"]:
                self._ec2.clock.offset += _seconds(request, 0.0)
                return to_json(self._ping())
        return text("no such route", 404)

    def _ping(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "live": len(self._ec2.machines.live()),
            "closing": self._is_closing(),
            "now": self._ec2.clock.now(),
            "clock": self._ec2.clock.offset,
        }

    def _command(self, request: Request, machine_id: str, verb: str) -> Response:
        machines = self._ec2.machines
        machine = machines.find(machine_id)
        if machine is None or not self._ec2.is_live(machine_id):
            return text("no such instance, or it is gone", 404)
        match verb:
            case "shutdown":
                return text(machines.shutdown_command(machine, json.loads(request.get_data())))
            case "interrupt":
                notice = _seconds(request, NOTICE_S)
                if self._ec2.lifecycle(machine) != "spot":
                    return text(
                        f"{machine_id} is on demand: AWS takes back only spot instances", 409
                    )
                if notice < 0:
                    raise ValueError("seconds: a notice is given before the end, not after it")
                return to_json({"due": machines.reclaim(machine, notice)})
            case "kill":
                machines.kill(machine)
            case "freeze":
                machines.freeze(machine)
            case "thaw":
                machines.thaw(machine)
            case _:
                return text("no such route", 404)
        return to_json({"health": machine.health})


def _seconds(request: Request, usual: float) -> float:
    seconds = float(request.args.get("seconds", usual))
    if not math.isfinite(seconds):
        raise ValueError(f"seconds: {seconds} is no number of seconds")
    return seconds


def to_json(body: object, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return Response(json.dumps(body), status=status, mimetype="application/json")


def text(body: str, status: int = 200) -> Response:
    """Return an answer in plain text."""
    return Response(body, status=status, mimetype="text/plain")

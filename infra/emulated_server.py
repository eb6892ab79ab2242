"""The emulator's HTTP side: EC2 for boto3, metadata for the machines, control for cloudtune.

POST /                                  EC2 (signed calls); every other service is moto's own
PUT, GET /_imds/<id>/latest/…           the metadata service of one machine
GET  /_cloudtune/ping                   {"pid", "live", "closing"}
GET  /_cloudtune/instances              every instance there was, ended ones included
POST /_cloudtune/instances/<id>/shutdown    the machine's `shutdown` command: its arguments
POST /_cloudtune/instances/<id>/interrupt   a spot interruption in ?seconds=120
GET, POST /_cloudtune/faults            the faults to come (POST replaces them) and the calls
POST /_cloudtune/shutdown               end the emulator; with ?only_if_idle=1 only when idle
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import psutil
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from cloudtune.infra.emulated_ec2 import DEFAULT_REGION, EmulatedEC2
from cloudtune.infra.emulated_machines import Ending, Machine
from cloudtune.infra.emulated_process import end_leftovers, forget_old
from cloudtune.infra.emulated_requests import Ec2Error, Faults, Tokens
from cloudtune.infra.processes import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from wsgiref.types import StartResponse, WSGIEnvironment

STATE_FILE = "emulator.json"
TICK_S = 0.05
KEPT_FOLDERS = 20
_SCOPE = re.compile(r"/([a-z0-9-]+)/ec2/aws4_request")
_INSTANCE_ID = re.compile(rb"<instanceId>(i-[0-9a-f]+)</instanceId>")
_log = logging.getLogger(__name__)


class Application:
    """The WSGI application: ours in front, moto behind."""

    def __init__(self) -> None:
        self.ec2: EmulatedEC2  # set by `attach`, when the port is known
        self.last_request = time.monotonic()
        self.closing = False
        self._faults = Faults()
        self._moto = DomainDispatcherApplication(create_backend_app)

    def attach(self, ec2: EmulatedEC2) -> None:
        """Take the instances in; before that no request is answered."""
        self.ec2 = ec2
        self._tokens = Tokens(ec2.is_live)
        self._reports: dict[str, Callable[[], object]] = {
            "ping": self._ping,
            "instances": ec2.records,
            "faults": self._faults.report,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        self.last_request = time.monotonic()
        return self._answer(Request(environ))(environ, start_response)

    def close(self, *, only_if_idle: bool) -> bool:
        """Refuse launches from now on; return False, changing nothing, when asked not to."""
        with self.ec2.machines.lock:
            if only_if_idle and self.ec2.machines.live():
                return False
            self.closing = True
            return True

    def _answer(self, request: Request) -> Response:
        if request.path.startswith("/_cloudtune/"):
            return self._control(request)
        if request.path.startswith("/_imds/"):
            return self._metadata(request)
        scope = _SCOPE.search(request.headers.get("Authorization", ""))
        if scope is None:
            return Response.from_app(self._moto, request.environ, buffered=True)
        try:
            return self._ec2_call(request, scope[1])
        except Ec2Error as error:
            return Response(error.xml(), status=error.status, mimetype="text/xml")

    def _ec2_call(self, request: Request, region: str) -> Response:
        parameters = dict(parse_qsl(request.get_data(as_text=True), keep_blank_values=True))
        action = parameters.get("Action", "")
        self._faults.check(action, parameters)
        if action == "RunInstances":
            return self._run_instances(request, region, parameters)
        return self._ask_moto(request, parameters)

    def _run_instances(self, request: Request, region: str, parameters: dict[str, str]) -> Response:
        with self.ec2.machines.lock:
            if self.closing:
                raise Ec2Error("Unavailable", "The emulator is shutting down.", 503)
            again = self._tokens.replay(region, parameters)
            if again is not None:
                return Response(again, mimetype="text/xml")
            # moto starts MinCount; EC2 starts as many as it can up to MaxCount.
            all_of_them = {**parameters, "MinCount": parameters.get("MaxCount", "1")}
            response = self._ask_moto(request, all_of_them)
            if response.status_code == 200:
                body = response.get_data()
                instances = [found.decode() for found in _INSTANCE_ID.findall(body)]
                self._tokens.remember(region, parameters, instances, body)
            return response

    def _ask_moto(self, request: Request, parameters: dict[str, str]) -> Response:
        body = urlencode(parameters).encode()
        environ = {
            **request.environ,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        return Response.from_app(self._moto, environ, buffered=True)

    def _control(self, request: Request) -> Response:
        match request.method, request.path.split("/")[2:]:
            case "GET", [report] if report in self._reports:
                return _json(self._reports[report]())
            case "POST", ["instances", machine_id, verb]:
                return self._command(request, self.ec2.machines.find(machine_id), verb)
            case "POST", ["faults"]:
                return self._replace_faults(request)
            case "POST", ["shutdown"]:
                done = self.close(only_if_idle=request.args.get("only_if_idle") == "1")
                return _json({"closing": done}, 200 if done else 409)
        return _text("no such route", 404)

    def _command(self, request: Request, machine: Machine | None, verb: str) -> Response:
        if machine is None or not self.ec2.is_live(machine.id):
            return _text("no such instance, or it is gone", 404)
        if verb == "shutdown":
            try:
                return _text(
                    self.ec2.machines.shutdown_command(machine, json.loads(request.get_data()))
                )
            except ValueError as error:
                return _text(str(error), 400)
        if verb == "interrupt":
            due = time.time() + float(request.args.get("seconds", "120"))
            machine.ending = Ending(due, "Server.SpotInstanceTermination")
            return _json({"due": due})
        return _text("no such route", 404)

    def _ping(self) -> dict[str, Any]:
        live = len(self.ec2.machines.live())
        return {"pid": os.getpid(), "live": live, "closing": self.closing}

    def _replace_faults(self, request: Request) -> Response:
        try:
            self._faults.replace(json.loads(request.get_data()))
        except (TypeError, ValueError) as error:
            return _text(f"a fault is {{action, code, message, match, times}}: {error}", 400)
        return _json(self._faults.report())

    def _metadata(self, request: Request) -> Response:
        machine_id, _, path = request.path.removeprefix("/_imds/").partition("/")
        machine = self.ec2.machines.find(machine_id)
        if machine is None:
            return _text("no such instance", 404)
        if request.method == "PUT" and path == "latest/api/token":
            seconds = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "21600")
            return Response(
                f"token-of-{machine_id}",
                mimetype="text/plain",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": seconds},
            )
        answer = self.ec2.metadata(machine).get(path.removeprefix("latest/meta-data/"))
        return _text("not found", 404) if answer is None else _text(answer)


def serve(home: Path, port: int, boot_seconds: float, idle_exit: float) -> None:
    """Serve until told to stop or idle for `idle_exit` seconds; leaves no machine running."""
    for machine in end_leftovers(home / "instances"):
        _log.warning("ended %s, left running by an emulator that died", machine)
    application = Application()
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=_Quiet)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    application.attach(EmulatedEC2(home, endpoint, boot_seconds))
    forget_old(home / "instances", keep=KEPT_FOLDERS)
    _warm_up(application)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: application.close(only_if_idle=False))
    threading.Thread(target=server.serve_forever, args=[0.1], daemon=True).start()
    _announce(home, endpoint)
    try:
        _loop(application, idle_exit)
    finally:
        _end(application, server, home)


def _loop(application: Application, idle_exit: float) -> None:
    while not application.closing:
        application.ec2.machines.tick()
        if time.monotonic() - application.last_request > idle_exit:
            application.close(only_if_idle=True)
        time.sleep(TICK_S)


def _end(application: Application, server: BaseWSGIServer, home: Path) -> None:
    machines = application.ec2.machines
    machines.end_all()
    while machines.live():
        machines.tick()
        time.sleep(TICK_S)
    (home / STATE_FILE).unlink(missing_ok=True)
    server.shutdown()
    _log.info("stopped")


def _announce(home: Path, endpoint: str) -> None:
    state = {
        "pid": os.getpid(),
        "create_time": psutil.Process().create_time(),
        "endpoint": endpoint,
        "started_at": time.time(),
    }
    write_atomically(home / STATE_FILE, json.dumps(state))
    resident = psutil.Process().memory_info().rss / 2**20
    _log.info("serving %s as pid %d, %.0f MiB resident", endpoint, os.getpid(), resident)


def _warm_up(application: Application) -> None:
    """Have moto load what the first calls need, which takes it about a second."""
    import moto.autoscaling  # noqa: PLC0415 - terminating an instance tells these two
    import moto.elbv2  # noqa: F401, PLC0415

    environ = Request.from_values(
        method="POST",
        headers={
            "Authorization": f"AWS4-HMAC-SHA256 Credential=x/20260101/{DEFAULT_REGION}"
            "/ec2/aws4_request, SignedHeaders=host, Signature=0"
        },
        data={"Action": "DescribeInstances", "Version": "2016-11-15"},
    ).environ
    Response.from_app(application, environ, buffered=True)


class _Quiet(WSGIRequestHandler):
    """A request handler that writes no line per request."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Log errors only."""
        if type == "error":
            _log.error(message, *args)


def _json(body: object, status: int = 200) -> Response:
    return Response(json.dumps(body), status=status, mimetype="application/json")


def _text(body: str, status: int = 200) -> Response:
    return Response(body, status=status, mimetype="text/plain")

"""The emulator's HTTP side: EC2 for boto3, metadata for the machines, control for cloudtune.

POST /                                  EC2; every other service is moto's own: signed calls only
PUT, GET /_imds/<id>/<key>/latest/…     the metadata service of one machine
POST /_imds/<id>/<key>/shutdown         that machine's `shutdown` command: its arguments
POST /_cloudtune/…                      `control`, with the token

`requests.Access` decides who may call. A request's host must be our address.
"""

import base64
import io
import json
import logging
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode
from wsgiref.types import StartResponse, WSGIEnvironment

import psutil
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from cloudtune.infra.emulator.control import Control, text, to_json
from cloudtune.infra.emulator.ec2 import DEFAULT_REGION, EmulatedEC2
from cloudtune.infra.emulator.faults import Fault
from cloudtune.infra.emulator.launch_form import check_form
from cloudtune.infra.emulator.machine_process import end_leftovers, forget_old
from cloudtune.infra.emulator.machines import Clock
from cloudtune.infra.emulator.requests import Access, Ec2Error, Signed, Tokens
from cloudtune.infra.emulator.rules import AccessRules
from cloudtune.infra.emulator.scenario import Scenario, ec2_error
from cloudtune.infra.processes import birth, write_atomically
from cloudtune.infra.refcount import in_use

STATE_FILE = "emulator.json"
_SERVICES = {"ec2", "iam", "s3", "secretsmanager", "servicequotas", "ssm", "sts"}
TICK_S = 0.05
KEPT_FOLDERS = 20
_ABOUT_INSTANCES = frozenset(
    {"CreateTags", "DescribeInstances", "DescribeInstanceStatus", "TerminateInstances"}
)
_OUTPUT = re.compile(rb"<output>.*?</output>", re.DOTALL)
_INSTANCE_ID = re.compile(rb"<instanceId>(i-[0-9a-f]+)</instanceId>")
_log = logging.getLogger(__name__)


class Application:
    """The WSGI application: ours in front, moto behind."""

    def __init__(self, home: Path, access: Access, boot_seconds: float, rules: AccessRules) -> None:
        self._rules = rules
        self._access = access
        self.last_request = time.monotonic()
        self.closing = False
        clock = Clock()
        self.scenario = Scenario(clock.now, rules.is_throttled)
        self.ec2 = EmulatedEC2(home, access, boot_seconds, clock, self.scenario, rules=rules)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._tokens = Tokens(self.ec2.is_live)
        self._control = Control(self.ec2, self.scenario, access, self.close, lambda: self.closing)
        rules.attach(access, self.ec2.machines, self.scenario, self)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._answer(Request(environ))(environ, start_response)

    def close(self, *, only_if_idle: bool) -> bool:
        """Refuse launches from now on; or return False, changing nothing, if it must be idle."""
        with self.ec2.machines.lock:
            used = in_use(self.ec2.machines.folder.parent)
            if only_if_idle and (used or self.ec2.machines.live()):
                return False
            self.closing = True
            return True

    def _answer(self, request: Request) -> Response:
        if not self._access.is_for_us(request):
            return text("no such host here", 403)
        if request.path.startswith("/_cloudtune/"):
            return self._control.answer(request)
        if request.path.startswith("/_imds/"):
            return self._metadata(request)
        try:
            signed = self._rules.signed(self._access, request)
            self.last_request = time.monotonic()
            if signed.service == "ec2":
                return self._ec2_call(request, signed)
            return self._rules.answer(signed, request, lambda: self._other_call(request, signed))
        except Ec2Error as error:
            return Response(error.xml(), status=error.status, mimetype="text/xml")

    def _other_call(self, request: Request, signed: Signed) -> Response:
        """Return moto's answer, or an error that there is no such service here."""
        if signed.service in _SERVICES:
            return self.pass_on(request, request.get_data())
        message = f"the emulator has {', '.join(sorted(_SERVICES))}, and not {signed.service}"
        return to_json({"__type": "UnknownOperationException", "message": message}, 400)

    def _ec2_call(self, request: Request, signed: Signed) -> Response:
        region = signed.region
        parameters = dict(parse_qsl(request.get_data(as_text=True), keep_blank_values=True))
        action = parameters.get("Action", "")
        self.scenario.refuse(action, parameters, region)
        if action == "RunInstances":
            check_form(parameters)
        self._rules.check(signed, parameters)
        answer = self._act(request, region, action, parameters)
        lost = self.scenario.loses(action, parameters)
        if lost == "reset":
            _break_connection(request)
        elif lost is not None:
            raise ec2_error(lost, "An internal error has occurred.")
        return answer

    def _act(
        self, request: Request, region: str, action: str, parameters: dict[str, str]
    ) -> Response:
        if action == "RunInstances":
            return self._run_instances(request, region, parameters)
        answer = self._ask_moto(request, parameters)
        if action == "GetConsoleOutput" and answer.status_code == HTTPStatus.OK:
            output = self.ec2.console(parameters["InstanceId"])
            body = _OUTPUT.sub(b"<output>%s</output>" % base64.b64encode(output), answer.data)
            return Response(body, mimetype="text/xml")
        if action in _ABOUT_INSTANCES:
            self.ec2.count_call()
        return answer

    def _run_instances(self, request: Request, region: str, parameters: dict[str, str]) -> Response:
        with self.ec2.machines.lock:
            if self.closing:
                raise Ec2Error("Unavailable", "The emulator is shutting down.", 503)
            again = self._tokens.replay(region, parameters)
            if again is not None:
                return Response(again, mimetype="text/xml")
            response = self._ask_moto(request, self.ec2.place(region, parameters))
            if response.status_code == 200:
                body = response.get_data()
                instances = [instance.decode() for instance in _INSTANCE_ID.findall(body)]
                self._tokens.remember(region, parameters, instances, body)
            return response

    def _ask_moto(self, request: Request, parameters: dict[str, str]) -> Response:
        try:
            return self.pass_on(request, urlencode(parameters).encode())
        except NotImplementedError:  # moto lacks it
            action = parameters.get("Action", "")
            raise Ec2Error("UnsupportedOperation", f"The emulator can't {action}.") from None

    def pass_on(self, request: Request, body: bytes) -> Response:
        """Return moto's answer."""
        environ = {
            **request.environ,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        return Response.from_app(self._moto, environ, buffered=True)

    def _metadata(self, request: Request) -> Response:
        machine_id, key, path = [*request.path.split("/", 4)[2:], "", "", ""][:3]
        machine = self.ec2.machines.find(machine_id)
        if machine is None or not self._access.may_ask(key, machine_id):
            return text("no such instance", 404)
        if request.method == "POST" and path == "shutdown":
            try:
                return text(
                    self.ec2.machines.shutdown_command(machine, json.loads(request.get_data()))
                )
            except ValueError as error:
                return text(str(error), 400)
        token = f"token-of-{machine_id}"
        if request.method == "PUT" and path == "latest/api/token":
            seconds = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "21600")
            return Response(
                token,
                mimetype="text/plain",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": seconds},
            )
        item = path.removeprefix("latest/meta-data/")
        has_token = request.headers.get("X-aws-ec2-metadata-token") == token
        ruled = self._rules.metadata(machine, item, has_token=has_token)
        if ruled is not None:
            status, body = ruled
            return text(body, status)
        answer = self.ec2.metadata(machine).get(item)
        return text("not found", 404) if answer is None else text(answer)


def _break_connection(request: Request) -> None:
    """End the connection of a request like a failing network: with a reset, without an answer.

    Raises:
        ConnectionResetError: always; to the server it looks like a lost caller.
    """
    connection = request.environ["werkzeug.socket"]
    # Closed with time 0 to linger, the connection is reset.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("the answer is lost, as the scenario has it")


def serve(
    home: Path,
    port: int,
    boot_seconds: float,
    idle_exit: float,
    *,
    faults: Sequence[Fault],
    rules: AccessRules,
) -> None:
    """Serve until a stop request or `idle_exit` idle seconds; leave no machine running."""
    for machine in end_leftovers(home / "instances"):
        _log.warning("ended %s, left running by an emulator that died", machine)
    listener = socket.create_server((rules.host, port))
    access = Access.create(f"http://{rules.host}:{listener.getsockname()[1]}")
    application = Application(home, access, boot_seconds, rules)
    machines = application.ec2.machines
    server = make_server(
        rules.host,
        port,
        application,
        threaded=True,
        request_handler=QuietHandler,
        fd=listener.fileno(),
    )
    forget_old(home / "instances", keep=KEPT_FOLDERS)
    application.scenario.replace(faults)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: application.close(only_if_idle=False))
    threading.Thread(target=server.serve_forever, args=[0.1], daemon=True).start()
    _announce(home, access)
    _warm_up(application)
    try:
        while not application.closing:
            machines.tick()
            if time.monotonic() - application.last_request > idle_exit:
                application.close(only_if_idle=True)
            time.sleep(TICK_S)
    finally:
        machines.end_all()
        while machines.live():
            machines.tick()
            time.sleep(TICK_S)
        (home / STATE_FILE).unlink(missing_ok=True)
        server.shutdown()
        _log.info("stopped")


def _announce(home: Path, access: Access) -> None:
    state = {
        **asdict(access),
        "pid": os.getpid(),
        "create_time": birth(os.getpid()),
        "started_at": time.time(),
    }
    write_atomically(home / STATE_FILE, json.dumps(state))
    resident = psutil.Process().memory_info().rss / 2**20
    _log.info("serving %s as pid %d, %.0f MiB resident", access.endpoint, os.getpid(), resident)


def _warm_up(application: Application) -> None:
    """Load what moto needs for the first calls, which takes about a second: they come later."""
    import moto.autoscaling  # noqa: PLC0415 - terminating an instance tells these two
    import moto.elbv2  # noqa: F401, PLC0415

    scope = f"{DEFAULT_REGION}/ec2/aws4_request"  # by which moto knows the service
    claim = {"Authorization": f"AWS4-HMAC-SHA256 Credential=warm/20260101/{scope}"}
    asked = Request.from_values(method="POST", headers=claim)
    application.pass_on(asked, b"Action=DescribeInstances&Version=2016-11-15")


class QuietHandler(WSGIRequestHandler):
    """A request handler that writes no line per request."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        if type == "error":
            _log.error(message, *args)

"""A stand-in whose machines live in namespaces: an address, a root, no sight of other processes."""

import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.serving import make_server

from cloudtune.infra.emulator import machine_process
from cloudtune.infra.emulator.control import text
from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.machines import Housing, RunningMachines
from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.scenario import Scenario
from cloudtune.infra.emulator.server import QuietHandler
from cloudtune.infra.node.gpus import STAND_IN
from tests.aws_stand_in import image, names, network, routes
from tests.aws_stand_in.company_proxy import CompanyProxy, NamesOfAws
from tests.aws_stand_in.computer import spawn
from tests.aws_stand_in.rules import StandIn


class IsolatedStandIn(StandIn):
    """In the network namespace of the cloud, which is unreachable from outside."""

    host = network.SERVICES

    def __init__(self) -> None:
        network.open_network()
        self.housing = Housing(start, network.Addresses().next)

    def attach(
        self,
        access: Access,
        machines: RunningMachines,
        scenario: Scenario,
        application: WSGIApplication,
    ) -> None:
        super().attach(access, machines, scenario, application)

        def by_address(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
            """Answer as EC2's metadata service does, which knows an instance by its address."""
            address = environ.get("REMOTE_ADDR")
            machine = next((it for it in machines.live() if it.address == address), None)
            if machine is None:
                return text("no instance has this address", 404)(environ, respond)
            path = f"/_imds/{machine.id}/{access.machine_key(machine.id)}{environ['PATH_INFO']}"
            host = access.endpoint.removeprefix("http://")
            return application({**environ, "PATH_INFO": path, "HTTP_HOST": host}, respond)

        def reaches(address: str, name: str) -> bool:
            """Whether whoever has an address has a route to a name of AWS; others do."""
            machine = next((it for it in machines.live() if it.address == address), None)
            return machine is None or routes.leads_to(machine, name)

        server = make_server(
            network.METADATA, 80, by_address, threaded=True, request_handler=QuietHandler
        )
        home = machines.folder.parent
        proxy = CompanyProxy(access.endpoint, home, network.PROXY)
        names.write(home, self.host)
        aws = NamesOfAws(proxy, self.host, home / names.LOG, reaches)
        for served in (server, proxy, aws, names.NameServer(self.host)):
            threading.Thread(target=served.serve_forever, args=[0.1], daemon=True).start()


def start(machine: Machine, access: Access) -> subprocess.Popen[bytes]:
    """Run a machine's user data in namespaces of its own, as `machine_process.start` does here.

    Raises:
        CloudtuneError: this computer doesn't let us.
    """
    assert machine.script is not None
    folder = machine.folder
    (folder / "user-data").write_text(machine.script)
    home = folder.parent.parent
    root = image.root({**image.list_mounts(_image(machine, access)), **names.files(home)})
    command = image.user_data_command(machine.script)
    machine_process.record(folder, None)
    with (folder / machine_process.CONSOLE_NAME).open("ab") as output:
        process = spawn(
            root,
            command,
            lambda pid: network.attach_instance(pid, machine.address),
            env={machine_process.ID_VARIABLE: machine.id, "PATH": image.PATH},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    machine_process.record(folder, process.pid)
    return process


def _image(machine: Machine, access: Access) -> Path:
    programs = machine.folder / "bin"
    programs.mkdir(exist_ok=True)
    machine_process.write_shutdown_command(machine.folder, machine.id, access)
    image.write_program(programs / "python3", image.python_program())
    image.write_program(programs / "aws", image.aws_program())
    if machine.gpus:
        image.write_program(programs / "nvidia-smi", image.nvidia_smi(machine.gpus, STAND_IN))
    return programs

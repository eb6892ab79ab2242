"""Stand-ins for NVIDIA's programs on a machine without a GPU: nvidia-smi and MPS's control.

They are scripts that keep their state in files: the control starts a daemon that writes its pid
where the real one does, starts a server for the first client, and answers the real one's commands.
What a test puts into the folder of the pipes makes it fail: `hang` (commands get no answer),
`fault` (the server has faulted). Nothing here shows that real MPS does as its documentation says.
"""

import sys
from pathlib import Path

_SMI = """\
#!{python} -IS
print({rows!r}, end="")
"""

_CONTROL = """\
#!{python} -IS
import os, pathlib, signal, subprocess, sys, time

pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
pid_file, clients, server_file = pipes / "{control}.pid", pipes / "clients", pipes / "server"
log = pathlib.Path({log!r})

def daemon():
    os.setsid()
    (pipes / "visible").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    clients.mkdir(exist_ok=True)
    pid_file.write_text(str(os.getpid()))
    server = None
    while not (pipes / "quit").exists():
        if server is None and any(clients.iterdir()):
            server = subprocess.Popen(["/bin/sleep", "600"])
            server_file.write_text(str(server.pid))
        time.sleep(0.01)
    if server is not None:
        server.kill()
        server.wait()
    pid_file.unlink()

def answer(command, *given):
    while (pipes / "hang").exists():
        time.sleep(0.05)
    if command == "get_server_list":
        print(server_file.read_text() if server_file.exists() else "", end="\\n")
    elif command == "get_server_status":
        print("FAULT" if (pipes / "fault").exists() else "ACTIVE")
    elif command == "get_client_list":
        print("\\n".join(path.name for path in clients.iterdir()))
    elif command == "terminate_client":
        (clients / given[1]).unlink()
        print("0")
    elif command == "quit":
        (pipes / "quit").touch()

if sys.argv[1:] == ["-d"]:
    if pid_file.exists():
        sys.exit("An instance of this daemon is already running")
    if {broken!r}:
        sys.exit("Failed to start")
    if os.fork() == 0:
        daemon()
        os._exit(0)
    while not pid_file.exists():
        time.sleep(0.01)
    sys.exit()
words = sys.stdin.readline().split()
with log.open("a") as file:
    file.write(" ".join([pipes.name, *words]) + chr(10))
try:
    status = pathlib.Path(f"/proc/{{int(pid_file.read_text())}}/stat").read_text()
except (OSError, ValueError):
    status = ") Z "
if ") Z " in status:
    sys.exit("Cannot find MPS control daemon process")
answer(*words)
"""

CLIENT = """\
import os, pathlib, signal, sys, time
if sys.argv[1:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
clients = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / "clients"
(clients / str(os.getpid())).touch()
print("ready", flush=True)
time.sleep(600)
"""


def write_smi(folder: Path, rows: str) -> None:
    """Put a stand-in for nvidia-smi into a folder, which prints these rows."""
    _write(folder / "nvidia-smi", _SMI.format(python=sys.executable, rows=rows))


def write_control(folder: Path, log: Path, *, broken: bool = False) -> None:
    """Put a stand-in for MPS's control into a folder; it logs the commands that it is given."""
    name = "nvidia-cuda-mps-control"
    text = _CONTROL.format(python=sys.executable, control=name, log=str(log), broken=broken)
    _write(folder / name, text)


def write_script(path: Path, text: str) -> Path:
    """Write a program of some lines of shell; returns its path."""
    _write(path, f"#!/bin/sh\n{text}\n")
    return path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)

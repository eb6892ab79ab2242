"""The network of an isolated cloud, in the network namespace of its emulator.

    10.77.0.1          where EC2, S3 and the other services answer, and the names of AWS lead (port
                       443, and 53 says so); port 3128: a company's proxy
    169.254.169.254    the metadata service
    10.77.1.0 …        the instances, joined by a bridge: all reach each other, as in one subnet
    10.78.N.2          computers outside, each by a cable of its own: they reach 10.77.0.1 alone

Nothing is routed further: cloud and network of this machine do not reach each other.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path

from cloudtune.errors import CloudtuneError

SERVICES = "10.77.0.1"
METADATA = "169.254.169.254"
PROXY = (SERVICES, 3128)
INSTANCES = "10.77.1."
_BRIDGE = "cloud"
_MAC = "02:00:0a:4d:00:01"
"""The bridge's own: without one it has that of some instance, and another one's when that ends."""
_PROGRAMS = ("unshare", "nsenter", "ip", "mount")
MACHINE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
"""Runs a command, in a cloud, as the first process of a machine."""
CLOUD = (*MACHINE, "--user", "--map-root-user", "--mount-proc")
"""Runs a command as the first process of a cloud, which ends with it.

It needs no root: the user is root within, and only there.
"""
_SECONDS = 10.0
_TRY = "ip link add name t0 type bridge && mount -t tmpfs t /dev/shm && mount -o remount,bind,ro /"


@cache
def unavailable() -> str:
    """Return why namespaces are not to be had on this machine; "" where they are."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing (of util-linux and iproute2)"
    tried = subprocess.run([*CLOUD, "sh", "-c", _TRY], capture_output=True, text=True, check=False)
    said = (tried.stderr.strip().splitlines() or ["no word of why"])[-1]
    return "" if tried.returncode == 0 else f"this machine allows no namespaces: {said}"


def open_network() -> None:
    """Make the bridge and the addresses of the services, in this process's network namespace.

    Raises:
        CloudtuneError: it can't be done here.
    """
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "name", _BRIDGE, "address", _MAC, "type", "bridge")
    _ip("addr", "add", f"{SERVICES}/16", "dev", _BRIDGE)
    _ip("addr", "add", f"{METADATA}/32", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")


class Addresses:
    """The private addresses that instances get, each once."""

    def __init__(self) -> None:
        self._numbers = count(256)

    def next(self) -> str:
        """Return an address that none has had."""
        number = next(self._numbers)
        return f"10.77.{number // 256}.{number % 256}"


def attach_instance(pid: int, address: str) -> None:
    """Give an instance its address; `pid` is in its network namespace, which is new.

    Raises:
        CloudtuneError: it can't be done, or the process has ended.
    """
    number = int(address.rpartition(".")[2]) + 256 * int(address.split(".")[2])
    ours = f"i{number}"
    _cable(pid, ours)
    _ip("link", "set", ours, "master", _BRIDGE, "up")
    _inside(pid, f"{address}/16")
    _enter(pid, "route", "add", "default", "via", SERVICES)


def attach_computer(pid: int, number: int) -> None:
    """Give a computer outside the cloud a cable to the services, and to nothing else.

    Raises:
        CloudtuneError: it can't be done, or the process has ended.
    """
    ours = f"c{number}"
    _cable(pid, ours)
    _ip("addr", "add", f"10.78.{number}.1/30", "dev", ours)
    _ip("link", "set", ours, "up")
    _inside(pid, f"10.78.{number}.2/30")
    _enter(pid, "route", "add", SERVICES, "via", f"10.78.{number}.1")


def await_namespace(pid: int) -> None:
    """Wait until a process that is to have a network of its own has it.

    Raises:
        CloudtuneError: it ended, or has none after ten seconds.
    """
    give_up, ours = time.monotonic() + _SECONDS, namespace("self")
    while (its := namespace(str(pid))) in {ours, ""}:
        if its == "" or time.monotonic() > give_up:
            raise CloudtuneError(f"process {pid} has got no network of its own")
        time.sleep(0.002)


def namespace(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _cable(pid: int, ours: str) -> None:
    _ip("link", "add", "name", ours, "type", "veth", "peer", "name", f"{ours}p")
    _ip("link", "set", f"{ours}p", "netns", str(pid))
    _enter(pid, "link", "set", "lo", "up")
    _enter(pid, "link", "set", f"{ours}p", "name", "eth0")


def _inside(pid: int, address: str) -> None:
    _enter(pid, "addr", "add", address, "dev", "eth0")
    _enter(pid, "link", "set", "eth0", "up")


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _enter(pid: int, *words: str) -> None:
    _run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        env={"PATH": os.environ.get("PATH", "")},
    )
    if done.returncode != 0:
        said = re.sub(r"\s+", " ", done.stderr.strip())
        raise CloudtuneError(f"{' '.join(command)}: {said}")

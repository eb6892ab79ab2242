"""Other people on this machine, for tests of who is let in."""

import json
import os
import socket
import warnings
from collections.abc import Callable
from typing import Any

import psutil
import pytest

_NOBODY = 65534


def as_another_user(look: Callable[[], object]) -> Any:
    """Return what a function returns (as JSON) in a process of `nobody`'s.

    A fork, since `nobody` may not be able to start this Python: what it needs is imported before.
    Only root may; the test is skipped for anybody else.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which it doesn't need
        pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            os.write(writer, json.dumps(look()).encode())
        except BaseException as error:  # noqa: BLE001  reported by the parent
            os.write(writer, json.dumps(f"failed: {error!r}").encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        data = json.load(answer)
    os.waitpid(pid, 0)
    assert not str(data).startswith("failed: "), data
    return data


def other_addresses() -> list[str]:
    """Return the addresses at which other machines reach this one; skips the test without any."""
    result = [
        addresse.address
        for name, addresses in psutil.net_if_addrs().items()
        for addresse in addresses
        if addresse.family == socket.AF_INET
        and name != "lo"
        and not addresse.address.startswith("127.")
    ]
    if not result:
        pytest.skip("this machine has no address but its loopback")
    return result


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=5):
            return True
    except OSError:
        return False

"""What tests load once: the services of boto3, and moto for their emulators.

An emulator is forked from `python -m tests.warm`, which has imported moto: that takes two seconds.
Whole runs start theirs as users do, with a Python of its own.
"""

import functools
import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.client import ClientCreator
from botocore.loaders import JSONFileLoader

from cloudtune.infra.emulator import service

_ROOT = Path(__file__).parents[1]
_SERVICES = ("ec2", "iam", "s3", "ssm", "sts")


@contextmanager
def _services_loaded_once() -> Iterator[None]:
    """Read the description of a service once: EC2 has hundreds of methods, with documentation."""
    create = vars(ClientCreator)["_create_methods"]
    made: dict[str, dict[str, Any]] = {}

    def methods(creator: ClientCreator, service_model: Any) -> dict[str, Any]:
        name = service_model.service_name
        if name not in made:
            made[name] = create(creator, service_model)
        return dict(made[name])

    load = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientCreator, "_create_methods", methods)
        patch.setattr(JSONFileLoader, "load_file", lambda _loader, path: load(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def boto3_services() -> Iterator[None]:
    with _services_loaded_once():
        yield


@pytest.fixture(scope="session")
def _server() -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-m", "tests.warm")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe, text=True) as server:
        yield server


@pytest.fixture(scope="module")
def warm_emulators(_server: subprocess.Popen[str]) -> Iterator[None]:
    """What `ensure_emulator` starts for a module's tests is forked."""
    assert _server.stdin is not None
    assert _server.stdout is not None
    asked, pids = _server.stdin, _server.stdout

    def run(words: Sequence[str], *, env: Mapping[str, str], **_: Any) -> SimpleNamespace:
        options = words[words.index("--boot-seconds") :]
        print(json.dumps(["emulator" in words, options, dict(env)]), file=asked, flush=True)
        return SimpleNamespace(stdout=pids.readline())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
        yield


def main() -> None:
    """Fork what each line of stdin asks for, and print its pid; it outlives this process."""
    import moto.backends

    from cloudtune.infra.emulator import server
    from tests.aws_stand_in import rules

    assert server
    with _services_loaded_once():
        for name in _SERVICES:
            moto.backends.get_backend(name)
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
            boto3.client(name, "us-east-1", **keys)  # type: ignore[call-overload]
        for line in sys.stdin:
            is_stand_in, options, environment = json.loads(line)
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                continue
            os.setsid()
            if pid := os.fork():
                os.write(1, f"{pid}\n".encode())
                os._exit(0)
            _become(environment)
            try:
                service.main(options, rules.StandIn() if is_stand_in else None)
            except BaseException:  # noqa: BLE001  it is for the log alone
                traceback.print_exc()
            os._exit(0)


def _become(environment: Mapping[str, str]) -> None:
    """Make this fork what a shell would have started: its files, environment and random ids."""
    from moto.moto_api._internal import mock_random

    os.umask(0o077)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    log = os.open(environment["CLOUDTUNE_EMULATOR_LOG"], flags, 0o666)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(environment)
    boto3.DEFAULT_SESSION = None
    random.seed()
    mock_random.seed()


if __name__ == "__main__":
    main()

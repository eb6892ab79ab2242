"""One emulated EC2 for all tests of infra/, and clients for it.

Tests end what they launch. A test that needs an emulator of its own starts one in its tmp_path.
"""

from collections.abc import Callable, Iterator

import boto3
import pytest
from botocore.config import Config
from mypy_boto3_ec2 import EC2Client

from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.service import Emulator, ensure_emulator, stop_emulator
from tests.bench import wait_for

BOOT_SECONDS = 0.4


@pytest.fixture(scope="module")
def emulator(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator shared by a module's tests, ended with all its machines.

    Not by those of several modules: one that is asked nothing for two minutes ends by itself.
    """
    home = tmp_path_factory.mktemp("ec2")
    yield ensure_emulator(home, boot_seconds=BOOT_SECONDS)
    assert stop_emulator(home, only_if_idle=False)


@pytest.fixture(scope="session")
def ec2_client() -> Iterator[Callable[[Access], EC2Client]]:
    """Make EC2 clients that try once, closed at the end."""
    clients: list[EC2Client] = []

    def make(access: Access) -> EC2Client:
        client = boto3.client(
            "ec2",
            endpoint_url=access.endpoint,
            region_name="us-east-1",
            aws_access_key_id=access.key,
            aws_secret_access_key=access.secret,
            config=Config(retries={"total_max_attempts": 1}, proxies={}),
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def ec2(emulator: Emulator, ec2_client: Callable[[Access], EC2Client]) -> EC2Client:
    return ec2_client(emulator.access)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until a condition holds."""
    return wait_for

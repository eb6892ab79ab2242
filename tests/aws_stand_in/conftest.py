"""A stand-in for each module's tests."""

from collections.abc import Iterator

import pytest

from benchmarks.rights import World
from cloudtune.infra.emulator.service import stop_emulator
from tests.aws_stand_in.account import Account, start


@pytest.fixture(scope="module")
def account(warm_emulators: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A stand-in shared by a module's tests, ended with all its machines."""
    home = tmp_path_factory.mktemp("ec2")
    account = Account(start(home, boot_seconds=0.2))
    yield account
    account.close()
    assert stop_emulator(home, only_if_idle=False)


@pytest.fixture(scope="module")
def world(account: Account) -> Iterator[World]:
    world = World(account.emulator)
    yield world
    world.close()

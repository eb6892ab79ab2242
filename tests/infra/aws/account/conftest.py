"""An account of a test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtune.infra.emulator.requests import Access
from cloudtune.infra.emulator.service import stop_emulator
from tests.aws_stand_in.account import found_by_boto3, start


@pytest.fixture
def own_account(
    warm_emulators: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Access]:
    """An emulated account with nothing in it, which boto3 finds as it finds AWS."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    access = start(tmp_path / "emulator").access
    found_by_boto3(access, monkeypatch)
    yield access
    stop_emulator(tmp_path / "emulator", only_if_idle=False)

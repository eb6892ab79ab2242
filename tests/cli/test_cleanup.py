"""`cloudtune gc` where a cloud can't be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtune.cli.cleanup import gc
from cloudtune.errors import CleanupError

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_gc_tells_of_a_cloud_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    code = gc.main(["--region", "eu-west-1"], standalone_mode=False)
    said = "error: EC2 can't be asked in eu-west-1: The config profile (nobody) could not be found"
    assert capsys.readouterr().err == f"{said}\n"
    assert code == CleanupError.exit_code

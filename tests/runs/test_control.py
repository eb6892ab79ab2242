"""Who drives a run, and which signals end it."""

import os
import signal
from pathlib import Path

import pytest

from cloudtune.errors import UsageError
from cloudtune.runs import control

WHERE = {"provider": "emulated", "region": "us-east-1"}


def test_a_run_has_one_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_GLANCE_SECONDS", 0.0)
    assert not control.is_driven(tmp_path)
    with control.driving(tmp_path, WHERE):
        assert control.is_driven(tmp_path)
        second = control.driving(tmp_path, WHERE)
        with pytest.raises(UsageError, match=f"is driven by process {os.getpid()}; only a run"):
            second.__enter__()
    assert not control.is_driven(tmp_path)
    assert control.read_place(tmp_path) == ("emulated", "us-east-1")


@pytest.mark.parametrize("text", ["", "null", "[]", '{"pid": 0, "created": 1}'])
def test_a_damaged_record_hides_no_driver(tmp_path: Path, text: str) -> None:
    with control.driving(tmp_path, WHERE):
        (tmp_path / control.CONTROLLER).write_text(text)
        assert control.is_driven(tmp_path)
        assert control.read_place(tmp_path) == ("", "")
    assert not control.is_driven(tmp_path)


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    result: list[str] = []
    with control.outliving_its_terminal():
        os.kill(os.getpid(), signal.SIGHUP)
        with control.interruptible() as interruption:
            interruption.tell(lambda: result.append("end"))
            os.kill(os.getpid(), signal.SIGHUP)
            assert result == []
            os.kill(os.getpid(), signal.SIGTERM)
            assert result == ["end"]
    assert {number: signal.getsignal(number) for number in before} == before

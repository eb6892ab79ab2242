"""What setup waits for: CloudFormation works on after each call has been answered."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.account import stack
from cloudtune.infra.aws.account.stack import ChangeSet, Stack


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Clients of an AWS that accepts everything; `see` says what becomes of the stack."""
    clients = MagicMock()
    described = {"Status": "CREATE_COMPLETE", "Changes": []}
    clients["cloudformation"].describe_change_set.return_value = described
    monkeypatch.setattr(stack, "_PAUSE_SECONDS", 0.0)
    return clients


def see(monkeypatch: pytest.MonkeyPatch, *statuses: str) -> Iterator[Stack | None]:
    """Let the stack be in these states, one for each look; "" if there is none."""
    looks = iter([Stack(status) if status else None for status in statuses])
    monkeypatch.setattr(stack, "read", lambda _clients: next(looks))
    return looks


@pytest.mark.parametrize(
    "statuses",
    [
        ("", "REVIEW_IN_PROGRESS", "CREATE_IN_PROGRESS", "CREATE_COMPLETE"),
        ("UPDATE_IN_PROGRESS", "CREATE_COMPLETE", "UPDATE_IN_PROGRESS", "UPDATE_COMPLETE"),
        ("REVIEW_IN_PROGRESS", "CREATE_COMPLETE"),  # its change set was never executed
    ],
)
def test_a_change_is_waited_for(
    clients: Any, monkeypatch: pytest.MonkeyPatch, statuses: tuple[str, ...]
) -> None:
    looks = see(monkeypatch, *statuses)
    with ChangeSet(clients, {}, {}) as change_set:
        change_set.execute()
    assert list(looks) == []
    clients["cloudformation"].delete_change_set.assert_not_called()


def test_a_deletion_is_waited_for(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = see(monkeypatch, "CREATE_COMPLETE", "DELETE_IN_PROGRESS", "")
    stack.delete(clients)
    assert list(looks) == []
    see(monkeypatch, "DELETE_IN_PROGRESS", "DELETE_FAILED")
    with pytest.raises(CloudtuneError, match="stack cloudtune was not deleted"):
        stack.delete(clients)


def test_an_interrupt_before_it_is_executed_leaves_nothing(
    clients: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(monkeypatch, "")
    with pytest.raises(KeyboardInterrupt), ChangeSet(clients, {}, {}):
        raise KeyboardInterrupt
    clients["cloudformation"].delete_change_set.assert_called_once()
    clients["cloudformation"].delete_stack.assert_called_once()

"""Ray's own waits, where a busy machine needs longer."""

import pytest

from cloudtune.infra.node.ray_access import patient


def test_a_node_that_registers_late_is_waited_for() -> None:
    asked: list[tuple[str, str]] = []

    def get_node(address: str, node_id: str) -> str:
        asked.append((address, node_id))
        if len(asked) < 3:
            raise RuntimeError("no node of that id")
        return "the node"

    assert patient(get_node, seconds=60.0)("127.0.0.1:1", "n1") == "the node"
    assert asked == [("127.0.0.1:1", "n1")] * 3


def test_a_node_that_never_registers_is_given_up() -> None:
    def get_node(_address: str, _node_id: str) -> str:
        raise RuntimeError("no node of that id")

    with pytest.raises(RuntimeError, match="no node"):
        patient(get_node, seconds=0.0)("127.0.0.1:1", "n1")

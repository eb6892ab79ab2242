import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import replace
from types import UnionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.model import commands, events
from cloudtune.model.plans import Charges, Limits, Plan
from cloudtune.model.serialization import decode, decode_kind, encode, encode_kind
from cloudtune.model.trial import EndReason
from tests.builders import NODE_BOUNDARY, Setting, by_hand, group, grouped, offer, profile

CHARGES = Charges(0.25, 0.001)
KINDS = {*typing.get_args(events.Event), *typing.get_args(commands.Command)}
words = st.text(max_size=20)
numbers = st.floats(allow_nan=False)
plain = st.none() | st.booleans() | st.integers() | numbers | words
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    float: numbers,
    str: words,
    int: st.integers(0, 10**9),
    object: st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
    ),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Give values of a type: of a dataclass, with values of its fields' types."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if origin is tuple:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(*map(values, inner), max_size=3)
    if origin in (typing.Union, UnionType):
        return st.one_of(*map(values, inner))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(hint)}
        return st.builds(hint, **fields)  # type: ignore[arg-type]
    return st.from_type(hint)


def through_json(value: object) -> Any:
    return json.loads(json.dumps(value))


@given(value=st.one_of(list(map(values, sorted(KINDS, key=str)))))
def test_every_event_and_command_reads_back_equal(value: Any) -> None:
    again = decode_kind(through_json(encode_kind(value)))
    assert again == value
    assert type(again) is type(value)
    assert encode_kind(again) == encode_kind(value)


def test_a_kind_says_what_it_is() -> None:
    assert encode_kind(commands.EndRun(EndReason.DONE)) == {"type": "EndRun", "reason": "done"}
    with pytest.raises(KeyError, match="Explode"):
        decode_kind({"type": "Explode"})


def test_metrics_that_are_no_numbers_survive() -> None:
    result = events.EpochDone(1.0, "t00.1", 1, {"a": float("nan"), "b": float("inf")}, None, 1.0)
    again = decode_kind(through_json(encode_kind(result)))
    assert again.metrics["a"] != again.metrics["a"]
    assert again.metrics["b"] == float("inf")


def test_plans_read_back_equal() -> None:
    plan = Setting(8, 1, 8, 2, profile=profile(NODE_BOUNDARY), charges=CHARGES).plan()
    assert decode(Plan, through_json(encode(plan))) == plan
    both = grouped(0, 2, group(offer(), 1, 2.0, 3), group(offer(1, zone="us-east-1b"), 2, 1.0, 2))
    mixed = replace(by_hand(both, charges=CHARGES), gap=0.125, status="feasible")
    assert decode(Plan, through_json(encode(mixed))) == mixed
    assert decode(Limits, through_json(encode(Limits(None, 40)))) == Limits(None, 40.0)

"""Faults as people write them: what is read, what is refused and how, and what chance picks."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.errors import UsageError
from cloudtune.infra.emulator.fault_files import parse_fault, parse_faults, read_faults
from cloudtune.infra.emulator.faults import KINDS, Capacity, Hidden, Kill, Pool, Reclaim, to_json
from cloudtune.infra.emulator.machine import Machine
from cloudtune.infra.emulator.pools import find_room
from cloudtune.infra.emulator.requests import Ec2Error
from cloudtune.infra.emulator.scenario import Scenario

SECONDS = st.floats(0, 1e6)
OFTEN = {"times": st.none() | st.integers(0, 9), "rate": st.floats(0, 1), "seed": st.integers()}
CALLS = {"action": st.sampled_from(["RunInstances", "Describe*", "*"]), **OFTEN}
WHERE = {
    "type": st.sampled_from(["*", "g5.xlarge", "g4dn.*"]),
    "market": st.sampled_from(["*", "spot", "on-demand"]),
    "zone": st.sampled_from(["*", "us-east-1a"]),
}
LAUNCHES = {**WHERE, **OFTEN}
COUNT = st.none() | st.integers(0, 99)
FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "error": {**CALLS, "code": st.text(min_size=1), "message": st.text()},
    "lost-answer": {**CALLS, "answer": st.sampled_from(["reset", "InternalError"])},
    "throttle": {"action": CALLS["action"], "burst": st.none() | SECONDS},
    "capacity": {**WHERE, "instances": COUNT},
    "quota": {**WHERE, "vcpus": COUNT},
    "slow-boot": {**LAUNCHES, "seconds": SECONDS},
    "no-boot": LAUNCHES,
    "failed-boot": LAUNCHES,
    "slow-end": {**LAUNCHES, "seconds": SECONDS},
    "hidden": {**LAUNCHES, "calls": st.integers(0, 9), "seconds": SECONDS},
    "reclaim": {**LAUNCHES, "after": SECONDS, "notice": SECONDS},
    "rebalance": {**LAUNCHES, "after": SECONDS},
    "kill": {**LAUNCHES, "after": SECONDS},
    "freeze": {**LAUNCHES, "after": SECONDS},
}


@st.composite
def written(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(KINDS)))
    return {"kind": kind, **draw(st.fixed_dictionaries(FIELDS[kind]))}


@given(written())
def test_faults_survive_json(given_fault: dict[str, Any]) -> None:
    fault = parse_fault(json.loads(json.dumps(given_fault)))
    assert parse_fault(json.loads(json.dumps(to_json(fault)))) == fault
    assert to_json(fault).items() >= given_fault.items()


def test_every_kind_is_drawn_above() -> None:
    assert FIELDS.keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("given_fault", "message"),
    [
        ("ice", "a fault is an object with a kind, not 'ice'"),
        ({"kind": "capacty"}, r"kind: no fault is called 'capacty'.*Did you mean 'capacity'\?"),
        ({"kind": "capacity"}, "capacity needs 'instances'"),
        ({}, "error needs 'action'"),
        (
            {"kind": "slow-boot", "second": 3},
            r"slow-boot has no field 'second'; .*Did you mean 'seconds'\?",
        ),
        (
            {"kind": "slow-boot", "seconds": -1},
            "seconds: -1: Input should be greater than or equal to 0",
        ),
        ({"kind": "no-boot", "rate": 2}, "rate: 2: Input should be less than or equal to 1"),
        ({"kind": "no-boot", "type": "g5.xlarg"}, r"EC2 has no 'g5.xlarg'. Did you mean 'g5.xlar"),
        ({"kind": "no-boot", "type": "m7.*"}, "type: nothing that EC2 has fits the pattern 'm7.*"),
        (
            {"action": "RunInstance", "code": "X"},
            r"action: EC2 has no 'RunInstance'. Did you mean 'RunInstances'\?",
        ),
    ],
)
def test_a_mistake_gets_one_message_that_names_it(given_fault: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_fault(given_fault)


def test_fault_file_errors_have_lines(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    with pytest.raises(UsageError, match=r"faults\.json: can't be read: .*No such file"):
        read_faults(path)
    path.write_text('[\n {"kind": "no-boot"},\n oops]')
    with pytest.raises(UsageError, match=r"faults\.json:3: not JSON: Expecting value"):
        read_faults(path)
    path.write_text('[{"kind": "no-boot"}, {"kind": "no-boots"}]')
    with pytest.raises(UsageError, match=r"faults\.json: fault 2: kind: no fault is called"):
        read_faults(path)
    path.write_text('{"kind": "no-boot"}')
    with pytest.raises(UsageError, match=r"faults\.json: faults are a list of objects, not \{"):
        read_faults(path)


def test_limit_replaces_pool_limit() -> None:
    scenario = Scenario(lambda: 0.0)
    here, there = {"type": "g5.xlarge"}, {"type": "g5.xlarge", "market": "spot"}

    def add(where: dict[str, str], instances: int | None) -> list[tuple[str, int | None]]:
        scenario.add(parse_faults([{"kind": "capacity", **where, "instances": instances}]))
        return [(limit.market, limit.instances) for limit in scenario.capacities()]

    assert add(here, 3) == [("*", 3)]
    assert add(there, 1) == [("*", 3), ("spot", 1)]
    assert add(here, 4) == [("spot", 1), ("*", 4)]
    assert add(there, None) == [("*", 4)]


def test_a_fault_strikes_as_often_as_it_should() -> None:
    scenario, pool = Scenario(lambda: 0.0), Pool("g5.xlarge", "spot", "us-east-1a")
    scenario.replace([Kill(times=2, after=5), Reclaim(type="g6.*"), Hidden(times=0, calls=1)])
    struck = [[type(fault) for fault in scenario.befall(pool)] for _ in range(4)]
    assert struck == [[Kill], [Kill], [], []]
    assert [fault["kind"] for fault in scenario.report()["faults"]] == ["reclaim"]


ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


@given(
    limits=st.lists(
        st.tuples(st.sampled_from(["*", *ZONES]), st.sampled_from(["*", "spot"]), COUNT), max_size=4
    ),
    there=st.lists(st.tuples(st.sampled_from(ZONES), st.sampled_from(["spot", "on-demand"]))),
    zone=st.sampled_from(["", *ZONES]),
    least=st.integers(1, 4),
    more=st.integers(0, 4),
)
def test_a_launch_never_overfills_a_pool(
    limits: list[tuple[str, str, int | None]],
    there: list[tuple[str, Any]],
    zone: str,
    least: int,
    more: int,
) -> None:
    kind = "g5.xlarge"
    capacities = [Capacity(type=kind, market=m, zone=z, instances=n) for z, m, n in limits]
    held = [Machine("i-1", Pool(kind, market, place), Path(), 0.0) for place, market in there]
    zones = [zone] if zone else ZONES
    try:
        counts = (least, least + more)
        pool, count = find_room(Pool(kind, "spot", zone), counts, held, capacities, zones)
    except Ec2Error:
        assert all(overfull(capacities, held, kind, item, least) for item in zones)
    else:
        assert pool.zone in zones
        assert least <= count <= least + more
        assert not overfull(capacities, held, kind, pool.zone, count)


def overfull(
    capacities: list[Capacity], held: list[Machine], kind: str, place: str, count: int
) -> bool:
    """Whether n more would break a limit that is about them."""
    pool = Pool(kind, "spot", place)
    return any(
        limit.instances is not None
        and limit.fits(pool)
        and sum(limit.fits(item.pool) for item in held) + count > limit.instances
        for limit in capacities
    )

"""Ledgers that somebody has changed, cut or mixed up: one clear line, whoever reads them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from cloudtune.engine.ledger import FileLedger, read_entries
from cloudtune.engine.resume import replayed
from cloudtune.errors import CloudtuneError
from cloudtune.jobs.job import job_of_ledger
from cloudtune.jobs.report import cloud_records, load
from tests.builders import Setting, play

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTING = Setting(4, 1, 4, 2, max_instances=2)
BAD = (None, True, -1, 1e308, float("nan"), "x", [], {}, [1], "\ud800", 10**30, "t99.1")
MUTANTS = 150


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The lines of a run's ledger."""
    plan = SETTING.plan()
    entries = play(SETTING, plan).entries
    made: list[str] = []

    class Kept(FileLedger):
        def __init__(self) -> None:
            self._write({"cloudtune_ledger": 3, **SETTING.job(plan).to_json()})

        def _write(self, line: Any) -> None:
            made.append(json.dumps(line))

    ledger = Kept()
    for entry in entries:
        ledger.append(entry.event, entry.commands)
    return made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from places(item, (*path, key))


def mutant(lines: list[str], chance: random.Random) -> bytes:
    """Return a ledger with one thing wrong, in its header every other time."""
    made, number = list(lines), chance.choice([0, chance.randrange(len(lines))])
    kind = chance.choice(["value"] * 6 + ["missing", "line", "order", "bytes"])
    data = json.loads(made[number])
    *path, last = chance.choice(list(places(data)))
    within = data
    for key in path:
        within = within[key]
    if kind == "value":
        within[last] = chance.choice(BAD)
        made[number] = json.dumps(data)
    elif kind == "missing":
        del within[last]
        made[number] = json.dumps(data)
    elif kind == "line":
        del made[number]
    elif kind == "order":
        made.insert(chance.randrange(len(made)), made.pop(number))
    text = "".join(f"{line}\n" for line in made).encode()
    if kind == "bytes":
        at = chance.randrange(len(text))
        return text[:at] + chance.randbytes(3) + text[at + chance.randrange(5) :]
    return text


def test_a_damaged_ledger_is_told_in_a_line_or_read(lines: list[str], tmp_path: Path) -> None:
    path, told = tmp_path / "ledger.jsonl", list[str]()
    for seed in range(MUTANTS):
        path.write_bytes(mutant(lines, random.Random(seed)))
        try:
            load(tmp_path)
            replayed(job_of_ledger(path).policy(), read_entries(path))
        except CloudtuneError as error:
            told.append(str(error))
    assert [text for text in told if len(text.splitlines()) > 1 or "ledger" not in text] == []
    assert MUTANTS / 2 < len(told) < MUTANTS


def test_damaged_records_of_the_cloud_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "provider.jsonl").write_bytes(b'{"what": "asking"}\n{"wh\n\xff\n{}\n')
    (tmp_path / "instances.json").write_bytes(b"[{")
    assert cloud_records(tmp_path) == {
        "autoscaler_events": [],
        "provider_calls": [{"what": "asking"}, {}],
        "instances": [],
    }

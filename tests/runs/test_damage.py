"""Files that somebody has changed, cut or mixed up: one clear message, whoever reads them."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtune.api.experiments import load_experiment
from cloudtune.engine.ledger import FileLedger, parse_entry, read_entries
from cloudtune.engine.resume import replay
from cloudtune.errors import CloudtuneError
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.plan_file import load_plan, make_job, plan_bytes
from cloudtune.profiles.store import read, script_hash, write
from cloudtune.runs.job import job_of_ledger
from cloudtune.runs.report import cloud_records, load
from tests.builders import profile
from tests.builders.ledgers import drop_checksums
from tests.builders.live import LIMITS, RENTABLE, elastic_job, problem, report_of

DEEP = "[" * 20_000
BAD: tuple[Any, ...] = (
    *(None, True, -1, 1e308, float("nan"), float("inf"), 10**30, DEEP, "x", "\ud800", "t99.1"),
    *([], {}, [1]),
)
MUTANTS = 150


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    job = elastic_job(trials=3, epochs={"min": 1, "max": 3})
    path = tmp_path_factory.mktemp("run") / "ledger.jsonl"
    ledger = FileLedger(path, job.to_json())
    for entry in report_of(job).entries:
        ledger.append(entry.event, entry.commands)
    ledger.close()
    return drop_checksums(path).splitlines()  # what else shows damage is tried here


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
        made[number] = json.dumps(data).replace(f'"{DEEP}"', DEEP + "]" * len(DEEP))
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


def test_damaged_ledger_is_reported_or_read(lines: list[str], tmp_path: Path) -> None:
    path, result = tmp_path / "ledger.jsonl", list[str]()
    path.write_text("".join(f"{line}\n" for line in lines))
    assert load(tmp_path).policy.ended
    for seed in range(MUTANTS):
        path.write_bytes(mutant(lines, random.Random(seed)))
        try:
            load(tmp_path)
            replay(job_of_ledger(path).policy(), read_entries(path))
        except CloudtuneError as error:
            result.append(str(error))
    assert [text for text in result if len(text.splitlines()) > 1 or "ledger" not in text] == []
    assert MUTANTS / 2 < len(result) < MUTANTS


def test_another_winner_by_a_changed_bit_is_noticed(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = FileLedger(path, json.loads(lines[0]))
    for line in lines[1:]:
        entry = parse_entry(line, path, 0)
        ledger.append(entry.event, entry.commands)
    ledger.close()
    before = load(tmp_path).policy.best
    assert before is not None
    text = path.read_text()
    metric = f'"score": {before.metric!r}'
    assert metric in text
    path.write_text(text.replace(metric, f'"score": {-before.metric!r}'))
    with pytest.raises(CloudtuneError, match=r"ledger.jsonl:\d+: not a ledger entry as it was"):
        load(tmp_path)


def test_a_record_with_too_many_gpus_is_refused(lines: list[str], tmp_path: Path) -> None:
    header = json.loads(lines[0])
    header["plan"]["offers"][0]["instance_type"]["gpus"] = 10**18
    path = tmp_path / "ledger.jsonl"
    path.write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    with pytest.raises(CloudtuneError, match="no machine has 1000000000000000000 GPUs"):
        load(tmp_path)


def test_damaged_records_of_the_cloud_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "provider.jsonl").write_bytes(b'{"what": "asking"}\n{"wh\n\xff\n{}\n')
    (tmp_path / "instances.json").write_bytes(b"[{")
    assert cloud_records(tmp_path) == {
        "autoscaler_events": [],
        "provider_calls": [{"what": "asking"}, {}],
        "instances": [],
    }


EXPERIMENT = """\
name: small
train: train.py:train
metric: {name: score, mode: max}
search: {x: {uniform: [0, 1]}, y: {choice: [1, 2]}, z: {loguniform: [1e-4, 1]}}
trials: 4
epochs: {min: 1, max: 9}
eta: 3
strategy: {name: asha}
limits: {deadline: 2h, budget: $20}
cloud: {instances: [g4dn.12xlarge], max_instances: 2}
"""
SCRIPT = "def train(config):\n    pass\n"
CELLS = (*("nan", "-inf", "1e999", "-1", "[" * 1100, "9" * 5000), *'",x', *"\udcff\0\n", "")


def change(text: str, chance: random.Random) -> bytes:
    """Return a text with one word or a few bytes of it replaced, or cut."""
    words = re.split(r"(\W)", text)
    kind = chance.choice(["word"] * 4 + ["bytes", "cut"])
    if kind == "word":
        words[chance.randrange(len(words))] = chance.choice(CELLS)
    data = "".join(words).encode("utf-8", "surrogateescape")
    at = chance.randrange(len(data))
    if kind == "bytes":
        return (
            data[:at] + chance.randbytes(chance.randrange(1, 4)) + data[at + chance.randrange(5) :]
        )
    return data[:at] if kind == "cut" else data


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    """By a file's name: what is in it, and what reads it."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "train.py").write_text(SCRIPT)
    write(folder / "profile.json", [profile({1.0: 9.0, 2.0: 5.0}, spread=0.1)])
    limits = {"deadline": "400s", "budget": "$8"}
    planned = make_plan(problem(trials=3, limits=limits, directory=folder), LIMITS)
    plan = plan_bytes(make_job(planned, 0.0, paced=False)).decode()
    plan = plan.replace(RENTABLE.profile.script_hash, script_hash(folder / "train.py"))
    return {
        "experiment.yaml": (EXPERIMENT, lambda path: load_experiment(path, {})),
        "profile.json": ((folder / "profile.json").read_text(), read),
        "plan.json": (plan, load_plan),
    }


@pytest.mark.parametrize("name", ["experiment.yaml", "profile.json", "plan.json"])
def test_a_damaged_file(name: str, readers: dict[str, tuple[str, Any]], tmp_path: Path) -> None:
    text, reader = readers[name]
    path, result = tmp_path / name, list[str]()
    (tmp_path / "train.py").write_text(SCRIPT)
    path.write_text(text)
    assert reader(path) is not None
    for seed in range(MUTANTS):
        chance = random.Random(seed)
        as_json = name.endswith(".json") and chance.random() < 0.7
        made = mutant([json.dumps(json.loads(text))], chance) if as_json else change(text, chance)
        path.write_bytes(made)
        try:
            reader(path)
        except CloudtuneError as error:
            result.append(str(error))
    # What was damaged may be the folder that a plan names.
    nameless = [line for line in result if str(tmp_path.parent) not in line]
    assert [line for line in nameless if "/train.py: no such file" not in line] == []
    assert MUTANTS / 4 < len(result) < MUTANTS

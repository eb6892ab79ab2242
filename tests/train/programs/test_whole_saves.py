"""Saves of several files: which are whole, and that only these are kept."""

import json
import math
import zipfile
from pathlib import Path

import pytest

from cloudtune.train.programs.save_order import Look, SaveOrder
from cloudtune.train.programs.whole_saves import KNOWN_QUIET, SaveShapes, find_unfinished_save
from tests.train.programs.drawn_saves import Way, play

WAYS = [
    # As transformers' Trainer: it prints, then saves a folder of several files.
    Way(files=5, gap=0.05, seconds=1.0, before=False, in_place=False, epochs=3),
    Way(files=3, gap=0.3, seconds=0.5, before=False, in_place=True, epochs=4),
    Way(files=4, gap=0.1, seconds=0.6, before=True, in_place=False, epochs=4, pause=2),
    Way(files=2, gap=1.0, seconds=0.5, before=True, in_place=True, epochs=3),
    Way(files=4, gap=0.6, seconds=1.0, before=False, in_place=False, epochs=4, kill=2.5),
    Way(files=1, gap=0.1, seconds=0.4, before=False, in_place=True, epochs=4, pause=2),
    Way(files=2, gap=0.25, seconds=1.5, before=False, in_place=True, epochs=4, beside=True),
    Way(files=2, gap=0.1, seconds=1.0, before=True, in_place=False, epochs=4, beside=True),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_save_is_kept_whole_or_not_at_all(tmp_path: Path, way: Way) -> None:
    kept = play(way, tmp_path / "trial")
    assert kept.found, "something is kept"
    assert kept.torn == []
    assert kept.lost == []


@pytest.mark.parametrize("before", [True, False], ids=["save first", "report first"])
def test_quick_save_keeps_last_line(tmp_path: Path, before: bool) -> None:
    way = Way(2, 0.001, 1.0, before, in_place=True, epochs=3, goes_on=True)
    kept = play(way, tmp_path / "trial")
    assert 3 in kept.found
    assert kept.torn == []


def test_quick_epochs_that_overwrite_their_saves_go_on(tmp_path: Path) -> None:
    """The next save often begins before the last is known to be whole: then it isn't kept."""
    way = Way(2, 0.005, 0.05, before=False, in_place=True, epochs=60)
    kept = play(way, tmp_path / "trial")
    assert kept.reported == [*range(1, 61)]
    assert 60 in kept.found
    assert kept.torn == []


def test_save_between_lines_sets_no_order() -> None:
    order = SaveOrder()
    between = Look(100.0, 99.99, 0.02, False, math.inf, is_last_line=False, reports=1)
    assert order.learn(between), "it is of this report"
    assert order.after is None
    order.learn(between._replace(newest=99.9))
    assert order.after is False, "it was there before the report was looked for"


def test_unknown_save_rests_its_duration() -> None:
    shapes = SaveShapes()
    first = ["checkpoint-1/a", "checkpoint-1/b"]
    assert shapes.quiet(first, 0.1) == shapes.quiet(first, 2.0) == 2.5
    assert shapes.quiet(first, 9.0) == 9.0
    shapes.learn(first)
    second = ["checkpoint-12/a", "checkpoint-12/b"]
    assert shapes.quiet(second, 9.0) == KNOWN_QUIET
    assert shapes.quiet(second[:1], 0.0) == 2.5, "a part of it"
    assert shapes.quiet([*second, "checkpoint-12/c"], 0.0) == 2.5, "more than it"
    for last in ("trainer_state.json", ".metadata", "random_states_0.pkl"):
        assert shapes.quiet([f"checkpoint-3/{last}"], 9.0) == KNOWN_QUIET


def test_files_that_differ_in_numbers_are_counted() -> None:
    shapes = SaveShapes()
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    shapes.learn(shards)
    assert shapes.quiet(shards[:2], 0.0) == 2.5
    assert shapes.quiet(shards, 9.0) == KNOWN_QUIET


def tensors(size: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}})
    return len(header).to_bytes(8, "little") + header.encode() + b"\0" * size


def archive(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", b"x" * 1000)
    return path.read_bytes()


def test_what_a_format_says_of_its_end(tmp_path: Path) -> None:
    zipped = archive(tmp_path / "zip")
    whole = {
        "model.pt": zipped,
        "model.safetensors": tensors(400),
        "config.json": b'{"a": 1}',
        "notes.txt": b"text",
    }
    for name, data in whole.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert find_unfinished_save([path]) is None
        path.write_bytes(b"")
        assert find_unfinished_save([path]) == path
        path.write_bytes(data[: len(data) * 2 // 3])
        assert (find_unfinished_save([path]) is None) == (name == "notes.txt")


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.json"])
def test_misnamed_file_is_not_torn(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("1" * 5000)
    assert find_unfinished_save([path]) is None


@pytest.mark.parametrize(
    ("name", "text", "other"),
    [
        (
            "model.safetensors.index.json",
            json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}),
            "model-2.safetensors",
        ),
        ("__0_0.distcp", "x", ".metadata"),
        ("checkpoint-7/optimizer.pt", "x", "checkpoint-7/trainer_state.json"),
        ("checkpoint-7/config.json", '{"_class_name": "UNet"}', "checkpoint-7/unet.safetensors"),
    ],
)
def test_what_belongs_to_a_save(tmp_path: Path, name: str, text: str, other: str) -> None:
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "model-1.safetensors").write_bytes(tensors(4))
    path = tmp_path / name
    path.write_text(text)
    assert find_unfinished_save([path]) == path
    (tmp_path / other).write_bytes(b"{}")
    assert find_unfinished_save([path]) is None

"""When a save of a script is whole: by its formats, by earlier saves, and by how long it rests."""

import contextlib
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cloudtune.train.folder_changes import list_below

# What files of models are called.
MODEL_SUFFIXES: Final = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".h5", ".keras", ".npz", ".msgpack"),
    *(".pkl", ".joblib", ".zip", ".onnx", ".tar", ".model", ".weights"),
)
_ZIP: Final = b"PK\x03\x04"
# The seconds without a change after which a save is over that looks like no earlier one.
_QUIET: Final = 2.5
# The same where a save looks like an earlier one, or has the file that its library writes last.
KNOWN_QUIET: Final = 0.06
# The last files of saves by transformers' Trainer, torch.distributed.checkpoint and accelerate.
_LAST: Final = re.compile(r"trainer_state\.json|\.metadata|random_states_\d+\.pkl")
# Files that Trainer writes into the folders of its checkpoints before its state.
_OF_TRAINER: Final = frozenset({"training_args.bin", "optimizer.pt", "scheduler.pt"})
_TRAINERS: Final = re.compile(r"checkpoint-\d+")
_DIGITS: Final = re.compile(r"\d+")
# Larger JSON files aren't read.
_JSON_BYTES: Final = 2**22
# The longest header of the safetensors format: a file that says more is of another one.
_HEADER_BYTES: Final = 100_000_000


class SaveShapes:
    """Which files the saves of a script consist of, by those that were whole.

    Numbers in names don't matter: `checkpoint-10/model.pt` and `checkpoint-20/model.pt` are alike.
    How many files have a name does.
    """

    def __init__(self) -> None:
        self._known: list[Counter[str]] = []

    def learn(self, names: Iterable[str]) -> None:
        """Record the files of a save that was whole."""
        shape = _shape(names)
        if shape not in self._known:
            self._known.append(shape)

    def quiet(self, names: Iterable[str], took: float) -> float:
        """Return the seconds without a change after which a save of these files is whole.

        `took` are the seconds from its first file to its last.
        """
        names = list(names)
        if any(_LAST.fullmatch(name.rpartition("/")[2]) for name in names):
            return KNOWN_QUIET
        return KNOWN_QUIET if self.knows(names) else max(_QUIET, took)

    def knows(self, names: Iterable[str]) -> bool:
        """Whether a save of these files looks like an earlier one, and not like a part of one."""
        shape = _shape(names)
        return shape in self._known and not any(shape < known for known in self._known)


def mask_numbers(name: str) -> str:
    """Return a file's name with # for each number: as the saves of all epochs have it."""
    return _DIGITS.sub("#", name)


def _shape(names: Iterable[str]) -> Counter[str]:
    return Counter(map(mask_numbers, names))


def find_unfinished_save(files: Iterable[Path]) -> Path | None:
    """Return the first file that can't be whole, or that lacks others of its save; None if none.

    An empty file; an archive without its end (torch.save writes a zip archive, whose directory
    comes last); a safetensors file shorter than its header says; an index without all its shards;
    shards of torch.distributed.checkpoint without their metadata; a checkpoint of Trainer without
    its state; a model's configuration without a model.
    """
    for path in files:
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0 or _is_cut(path) or _lacks_others(path):
                return path
    return None


def _is_cut(path: Path) -> bool:
    if path.suffix == ".safetensors":
        return path.stat().st_size < _safetensors_size(path)
    if path.suffix == ".json" and path.stat().st_size <= _JSON_BYTES:
        try:
            json.loads(path.read_bytes(), parse_int=str)  # int() takes 4300 digits
        except ValueError:
            return True
        return False
    with path.open("rb") as file:
        begins = file.read(len(_ZIP))
    return begins == _ZIP and not zipfile.is_zipfile(path)


def _safetensors_size(path: Path) -> int:
    """Return the size that the header of a safetensors file says; 0 if it has none."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _HEADER_BYTES:
            return 0
        header = file.read(length)
    if len(header) < length:
        return path.stat().st_size + 1
    try:
        tensors = json.loads(header)
        ends = [it["data_offsets"][1] for name, it in tensors.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return 0
    return int(8 + length + max(ends, default=0))


def _is_of_model(path: Path) -> bool:
    """Whether a config.json is of a model of transformers or diffusers, written before it."""
    try:
        config = json.loads(path.read_bytes())
        return not {"architectures", "_class_name"}.isdisjoint(config)
    except (ValueError, TypeError):
        return False


def _lacks_others(path: Path) -> bool:
    folder = path.parent
    if path.name.endswith(".index.json"):
        try:
            shards = set(json.loads(path.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return not all((folder / str(shard)).is_file() for shard in shards)
    if path.suffix == ".distcp":
        return not (folder / ".metadata").is_file()
    if path.name == "config.json" and _is_of_model(path):
        return not any(it.suffix in MODEL_SUFFIXES for it in list_below(folder))
    if path.name in _OF_TRAINER and _TRAINERS.fullmatch(folder.name):
        return not (folder / "trainer_state.json").is_file()
    return False

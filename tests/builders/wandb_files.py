"""The files of W&B's offline runs, read by its own format."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def wandb_history(path: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of each step in the file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    result: dict[int, dict[str, float]] = {}
    for data in records(path.read_bytes()):
        record: Any = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            shown = {name: value for name, value in items.items() if name[0] != "_"}
            result[int(shown.pop("epoch"))] = shown
    return result


def records(content: bytes) -> Iterator[bytes]:
    """Give the records of a log as LevelDB writes it: in blocks, each part with its length."""
    at, block, parts = 7, 32768, b""  # after the file's own header
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last of its parts
            yield parts
            parts = b""

"""The numbers in TensorBoard's event files and in W&B's own, which need neither to be installed.

Both are records of protocol buffers in a simple frame: TFRecord's, and that of LevelDB's logs.
"""

import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cloudtune.train.programs.metric_parsers import Values
from cloudtune.train.programs.tables import json_values

# TFRecord: the length of a record, a checksum, the record, and its checksum.
_HEAD: Final = struct.Struct("<QI")
_CHECKSUM_BYTES: Final = 4
# A longer one is an image or a graph, or no record.
_LONGEST: Final = 2**31
# LevelDB's log: blocks of chunks, each with a checksum, its length and its kind.
_BLOCK: Final = 2**15
_CHUNK: Final = struct.Struct("<IHB")
_WANDB_HEAD_BYTES: Final = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# The floats of a TensorProto, by their type.
_FLOAT, _DOUBLE = 1, 2


class EventFile:
    """The scalars of a TensorBoard event file; those of one step are a row, with their `step`.

    Args:
        path: the file.
        start: where its new records begin, in bytes.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._at = start
        self._step: int | None = None
        self._values: Values = {}

    def more(self, *, ended: bool) -> Iterator[Values]:
        """Yield the rows since the last call; the last one if nothing has come since."""
        records = list(self._records())
        for record in records:
            with contextlib.suppress(ValueError, IndexError, struct.error):  # of another kind
                yield from self._note(record)
        if self._values and (ended or not records):
            yield self._row()

    def _records(self) -> Iterator[bytes]:
        data = _read_rest(self._path, self._at)
        at = 0
        while len(data) >= at + _HEAD.size:
            length, _ = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length + _CHECKSUM_BYTES
            if length > _LONGEST or end > len(data):
                break
            yield data[at + _HEAD.size : end - _CHECKSUM_BYTES]
            at = end
        self._at += at

    def _note(self, event: bytes) -> Iterator[Values]:
        """Take in an Event; yield the row before it if it is of another step."""
        fields = dict(_fields(event))
        summary = fields.get(5)
        step = fields.get(2, 0)
        if not isinstance(summary, bytes) or not isinstance(step, int):
            return
        for number, value in _fields(summary):
            scalar = _scalar(value) if number == 1 and isinstance(value, bytes) else None
            if scalar is None:
                continue
            if self._values and step != self._step:
                yield self._row()
            self._step = step
            self._values[scalar[0]] = scalar[1]

    def _row(self) -> Values:
        values: Values = {"step": float(self._step or 0), **self._values}
        self._values = {}
        for name, value in [*values.items()]:  # Trainer's is train/epoch
            if name.rpartition("/")[2] == "epoch":
                values.setdefault("epoch", value)
        return values


def _read_rest(path: Path, start: int) -> bytes:
    """Return the rest of a file; nothing if it isn't there."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""


def _scalar(value: bytes) -> tuple[str, float] | None:
    """Return tag and number of a Summary.Value; None if it is no scalar."""
    fields = dict(_fields(value))
    tag = fields.get(1)
    plugin = fields.get(9, b"")
    if not isinstance(tag, bytes) or not isinstance(plugin, bytes):
        return None
    simple = fields.get(2)
    tensor = fields.get(8)
    number = None
    if isinstance(simple, bytes):
        number = _single(simple)
    elif isinstance(tensor, bytes) and (not plugin or b"scalars" in plugin):
        number = _of_tensor(tensor)
    return None if number is None else (tag.decode(errors="replace"), number)


def _of_tensor(tensor: bytes) -> float | None:
    """Return the number of a TensorProto with one; None otherwise."""
    fields = dict(_fields(tensor))
    packed = fields.get(4) or fields.get(5) or fields.get(6)
    if not isinstance(packed, bytes):
        return None
    if fields.get(1) == _FLOAT and len(packed) == struct.calcsize("f"):
        return _single(packed)
    if fields.get(1) == _DOUBLE and len(packed) == struct.calcsize("d"):
        return float(struct.unpack("<d", packed)[0])
    return None


def _single(data: bytes) -> float:
    """Return the shortest decimal number that is this one of single precision."""
    value = float(struct.unpack("<f", data)[0])
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        with contextlib.suppress(OverflowError):
            if struct.pack("<f", short) == data:
                return short
    return value


class WandbFile:
    """The history of a W&B run that is offline: a row for each of its steps.

    W&B writes it in blocks of 32 KiB, and the rest at the end: its rows are late.

    Args:
        path: the file.
        skip: whether the rows that are there are of an earlier session.
    """

    def __init__(self, path: Path, *, skip: bool = False) -> None:
        self._path = path
        self._at = _WANDB_HEAD_BYTES
        self._record = b""
        if skip:
            list(self.more(ended=False))

    def more(self, *, ended: bool) -> Iterator[Values]:  # noqa: ARG002  records are whole
        """Yield the rows since the last call."""
        for record in self._records():
            with contextlib.suppress(ValueError, IndexError, struct.error):
                history = dict(_fields(record)).get(2)
                if isinstance(history, bytes) and (row := _history(history)):
                    yield row

    def _records(self) -> Iterator[bytes]:
        data = _read_rest(self._path, self._at)
        at = 0
        while True:
            left = _BLOCK - (self._at + at) % _BLOCK
            if left < _CHUNK.size:
                at += left
                continue
            if len(data) < at + _CHUNK.size:
                break
            _, length, kind = _CHUNK.unpack_from(data, at)
            end = at + _CHUNK.size + length
            if end > len(data) or kind not in {_WHOLE, _FIRST, _MIDDLE, _LAST}:
                break
            chunk = data[at + _CHUNK.size : end]
            self._record = chunk if kind in {_WHOLE, _FIRST} else self._record + chunk
            at = end
            if kind in {_WHOLE, _LAST}:
                yield self._record
        self._at += at


def _history(history: bytes) -> Values:
    """Return the values of a HistoryRecord, with its `step`."""
    row: dict[str, object] = {}
    for number, item in _fields(history):
        if number == 1 and isinstance(item, bytes):
            name, value = _item(item)
            row[name] = value
    step = row.get("_step")
    shown = {name: value for name, value in row.items() if not name.startswith("_")}
    return json_values({"step": step, **shown} if shown else {})


def _item(item: bytes) -> tuple[str, object]:
    """Return name and value of a HistoryItem."""
    names = []
    value: object = None
    for number, field in _fields(item):
        if not isinstance(field, bytes):
            value = field if number == 5 else value
        elif number in {1, 2}:
            names.append(field.decode(errors="replace"))
        elif number == 6:
            (value,) = struct.unpack("<d", field)
        elif number in {8, 16}:
            value = json.loads(field)
        elif number == 7:
            value = field.decode(errors="replace")
    return "/".join(name for name in names if name), value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message; numbers of fixed size as bytes.

    Raises:
        ValueError: it is no message.
        IndexError: it is cut.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case _:
                raise ValueError("no protocol buffer")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7

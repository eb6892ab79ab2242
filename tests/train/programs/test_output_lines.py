"""Lines that are rewritten, come in pieces, without a newline, or in another encoding."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cloudtune.train.programs.metric_parsers import Readings
from cloudtune.train.programs.output_lines import Line, Lines

PATTERN = "acc {acc}"


def read(path: Path, pieces: Iterable[bytes], pattern: str = PATTERN, last: int = 3) -> list[float]:
    """Return the metrics that are read from an output that is written in pieces."""
    readings = Readings(path, "acc", pattern, last=last)
    reports = []
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        reports += list(readings.more())
    reports += list(readings.more(ended=True))
    return [report.metrics["acc"] for report in reports]


def tqdm(total: int, values: Iterable[float], label: str = "") -> Iterator[bytes]:
    """Yield the states of a bar of tqdm, without its end."""
    for number, value in enumerate(values):
        done = number * 10 // total
        bar = f"{100 * number // total:3}%|{'█' * done}{' ' * (10 - done)}| {number}/{total}"
        yield f"\r{label}{bar} [00:01<00:02, 5.00it/s, acc={value}]".encode()


# The metric falls within each epoch, so that any state but its last would be a better one.
BATCHES = [[0.9, 0.8, 0.5, 0.1], [0.9, 0.7, 0.5, 0.2], [0.9, 0.6, 0.5, 0.3]]
LAST = [0.1, 0.2, 0.3]


def batch_bars(end: bytes) -> Iterator[bytes]:
    for values in BATCHES:
        yield from tqdm(len(values) - 1, values)
        yield end


def epoch_bar(*, label: str = "") -> Iterator[bytes]:
    """Yield a bar over epochs: each sets its metric, then the bar moves on."""
    yield from tqdm(3, [])
    for number, value in enumerate(LAST):
        before, after = list(tqdm(3, [value] * 4, label))[number : number + 2]
        yield before
        yield after
    yield b"\n"


def nested_bars() -> Iterator[bytes]:
    """Yield a bar over epochs with one over batches below it, as tqdm moves between them."""
    for number, value in enumerate(LAST):
        for state in tqdm(4, [0.0] * 5, "batches "):
            yield b"\n" + state.replace(b"acc=", b"loss=") + b"\x1b[A"
        yield from list(tqdm(3, [value] * 4, "epochs "))[number : number + 2]
    yield b"\n"


def keras() -> Iterator[bytes]:
    """Yield a bar of Keras where the output is no terminal: each state has a line."""
    for epoch, values in enumerate(BATCHES, start=1):
        yield f"Epoch {epoch}/3\n".encode()
        for batch, value in enumerate(values, start=1):
            bar = "━" * batch * 5
            yield f"{batch}/4 {bar} 1s 2ms/step - acc: {value} - loss: 0.1\n".encode()


OUTPUTS: dict[str, list[bytes]] = {
    "lines": [f"acc {value}\n".encode() for value in LAST],
    "carriage returns and newlines": [f"acc {value}\r\n".encode() for value in LAST],
    "no newline at the end": [b"acc 0.1\nacc 0.2\nacc 0.3"],
    "epochs in one line": [f"epoch {n} acc {v}; ".encode() for n, v in enumerate(LAST)],
    "tqdm": list(batch_bars(b"\n")),
    "tqdm that is cleared": list(batch_bars(b"\r" + b" " * 60 + b"\r")),
    "tqdm with a message": [
        *tqdm(3, BATCHES[0][:2]),
        b"\r          \ra message\n",
        *list(tqdm(3, BATCHES[0]))[2:],
        b"\n",
        *tqdm(3, BATCHES[1]),
        b"\n",
        *tqdm(3, BATCHES[2]),
    ],
    "a bar over epochs": list(epoch_bar()),
    "a bar over epochs that says so": list(epoch_bar(label="Epoch: ")),
    "nested bars": list(nested_bars()),
    "Keras": list(keras()),
    "a rewritten line": [
        f"\repoch {epoch} batch {batch}/4 acc: {value}".encode() + b"\n" * (batch == 4)
        for epoch, values in enumerate(BATCHES, start=1)
        for batch, value in enumerate(values, start=1)
    ],
    "one rewritten line": [f"epoch {n} acc {v}\r".encode() for n, v in enumerate(LAST)],
    "UTF-16": ["\ufeffépoque acc 0.1\nacc 0.2\r\nacc 0.3".encode("utf-16-le")],
    "colours": [b"\x1b[2K\x1b[1macc\x1b[0m: \x1b[32m0.1\x1b[0m\n\x1b]0;t\x07acc 0.2\nacc 0.3\n"],
}


@pytest.mark.parametrize("cut", ["as written", "by bytes", "at once"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_last_state_of_each_epoch_is_read(tmp_path: Path, name: str, cut: str) -> None:
    pieces = OUTPUTS[name]
    whole = b"".join(pieces)
    if cut != "as written":
        pieces = [whole] if cut == "at once" else [bytes([byte]) for byte in whole]
    over_epochs = "over epochs" in name or name == "nested bars"
    values = read(tmp_path / "log", pieces, last=3 if over_epochs else 4)
    # A bar over epochs moves on after the last one, too: that is one report too many.
    assert values == ([*LAST, LAST[-1]] if over_epochs else LAST)


def test_words_of_a_pattern_in_another_encoding(tmp_path: Path) -> None:
    lines = ["précision 0.1\n", "précision 0.2\n"]
    written = [lines[0].encode("latin-1"), lines[1].encode()]
    assert read(tmp_path / "log", written, "précision {acc}") == [0.1, 0.2]


def test_lines_without_a_needle_are_left_out(tmp_path: Path) -> None:
    luck = random.Random(2)
    words = [b"acc 1", b"Epoch 2", b"nothing", b"", b"x" * 99]
    path = tmp_path / "log"
    for _ in range(200):
        path.write_bytes(b"")
        chosen, every = Lines(path, (b"acc", b"poch")), Lines(path)
        found: list[Line] = []
        expected: list[Line] = []
        for _ in range(luck.randrange(1, 4)):
            data = luck.choice([b"\n", b"\n", b"\r"]).join(luck.choices(words, k=6))
            with path.open("ab") as file:
                file.write(data + luck.choice([b"", b"\n", b"\r\n"]))
            found += chosen.more()
            expected += every.more()
        found += chosen.more(ended=True)
        expected += every.more(ended=True)
        assert with_newlines(found) == with_newlines(expected)


def with_newlines(lines: list[Line]) -> list[tuple[str, bool]]:
    """Return the lines with a needle, and whether a newline came since the one before."""
    result = []
    newline = False
    for text, after_newline in lines:
        newline |= after_newline
        if "acc" in text or "Epoch" in text:
            result.append((text, newline))
            newline = False
    return [*result, ("", newline)]

"""How many megabytes a second of a program's output are read, by pattern and by kind of line.

python -m benchmarks.output_lines
"""

import tempfile
import time
from pathlib import Path

from cloudtune.train.programs.metric_parsers import Readings

EPOCHS = 40
LINES = 12_500
KINDS = {
    "lines without the metric": b"step 123456 throughput 3841.2/s, grad norm 0.81 lr 1.5e-3\n",
    "each line has the metric": b"step 123456 val_loss 0.5 grad norm 0.81 lr 1.5e-3 31.2 GiB\n",
    "states of a bar": b"\r 42%|####      | 42/100 [00:01<00:02, 5.0it/s, val_loss=0.5]",
}
PATTERNS = ("val_loss {val_loss}", r"\bval_loss\W+(?P<val_loss>[\d.]+)")


def megabytes_per_second(folder: Path, line: bytes, pattern: str) -> float:
    """Return how fast the reports of epochs are read, each after many other lines."""
    path = folder / "log"
    path.write_bytes(b"")
    readings = Readings(path, "val_loss", pattern)
    size = 0
    seconds = 0.0
    for epoch in range(EPOCHS):
        data = line * LINES + b"\nEpoch %d val_loss: 0.25\n" % epoch
        with path.open("ab") as file:
            file.write(data)
        began = time.perf_counter()
        list(readings.more())
        seconds += time.perf_counter() - began
        size += len(data)
    return size / seconds / 1e6


def main() -> None:
    """Print a line for each kind of output and pattern."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, line in KINDS.items():
            for pattern in PATTERNS:
                rate = megabytes_per_second(Path(folder), line, pattern)
                print(f"{kind:26} {pattern:40} {rate:6.0f} MB/s")


if __name__ == "__main__":
    main()

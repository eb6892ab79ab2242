"""Output on which no run can come to grief."""

import os
import sys
import time
from collections.abc import Iterator

import pytest

from cloudtune.display.streams import Steady, never_waiting, use_steady_streams


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    out = Steady(pipe[1])
    assert out.write(b"one") == 3
    os.close(pipe[0])
    assert [out.write(b"two"), out.write(b"three")] == [3, 5]


def test_stalled_reader_delays_no_run(pipe: tuple[int, int]) -> None:
    out = Steady(pipe[1])
    began = time.monotonic()
    with never_waiting():
        for _ in range(1000):
            out.write(b"x" * 1000)
    assert time.monotonic() - began < 60  # and not for ever
    assert os.read(pipe[0], 10) == b"x" * 10
    os.read(pipe[0], 1 << 20)
    with never_waiting():
        out.write(b"again")
    assert os.read(pipe[0], 1 << 20).endswith(b"again"), "it reads again"


def test_full_disk_ends_no_run() -> None:
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        out = Steady(full.fileno())
        with pytest.raises(OSError, match="No space left"):
            out.write(b"a report")
        with never_waiting():
            assert out.write(b"a line") == 6


def test_any_letter_in_any_encoding(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with open(pipe[1], "w", encoding="ascii", closefd=False) as given:
        monkeypatch.setattr(sys, "stdout", given)
        monkeypatch.setattr(sys, "stderr", None)
        use_steady_streams()
        print("é \udcff ok")  # noqa: T201
        assert sys.stdout is not given
        sys.stdout.flush()
    assert os.read(pipe[0], 100) == b"\\xe9 \\udcff ok\n"

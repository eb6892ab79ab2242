"""Drawn jobs are planned and run as they were when `recorded.txt` was written."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.parity import recorded

PARTS = 8


def differences(old: str, new: str) -> Iterator[str]:
    """Yield the words of two lines that differ by more than a rounding."""
    for before, after in zip_longest(old.split(), new.split(), fillvalue="(nothing)"):
        try:
            same = float(after) == pytest.approx(float(before), rel=2e-5)
        except ValueError:
            same = before == after
        if not same:
            yield f"{before} is now {after}"


@pytest.mark.parametrize("part", range(PARTS))
def test_jobs_are_planned_and_run_as_recorded(part: int, tmp_path: Path) -> None:
    """Where they should be, `python -m tests.parity.recorded FOLDER` records them as they are."""
    old = recorded.FILE.read_text("utf-8").splitlines()
    before = {tuple(line.split()[:2]): line for line in old}
    changed = {}
    for line in recorded.lines(tmp_path, part, PARTS):
        job = tuple(line.split()[:2])
        if words := list(differences(before[job], line)):
            changed[job] = words[:5]
    assert not changed

"""Put what `cloudtune plan` shows of the example into the README: its one screen.

    make docs                # or: .venv/bin/python -m docs.screen

What takes more room than it tells is left out (`_KEPT`), and `…` stands for it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from cloudtune.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parents[1] / "README.md"
EXAMPLE = "examples/smudged/experiment.yaml"
_BEGIN = f"```console\n$ cloudtune plan {EXAMPLE}\n"
_END = "\n```\n"
_KEPT = {
    "Plan": ("job",),
    "Stages": None,
    "Forecast": ("time", "cost", "chance", "quality"),
    "Alternatives": ("plan", "this", "best", "cluster", "naive", "cheapest"),
}
"""The rows that are kept of each section, by their first words; None: all of them."""


def main() -> None:
    """Put the screen into the README."""
    before, begin, rest = README.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise SystemExit(f"README.md has no block that begins with {_BEGIN!r}")
    README.write_text(f"{before}{begin}{screen()}{end}{after}", encoding="utf-8")


def screen() -> str:
    """Return what the command shows now, shortened, on a machine that knows nothing yet."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"CLOUDTUNE_HOME": home, "COLUMNS": "100"}
        asked = ["plan", str(README.parent / EXAMPLE)]
        shown = CliRunner(env=os.environ | environment).invoke(cli, asked, standalone_mode=False)
    if shown.exception is not None:
        raise shown.exception
    return "\n".join(_shortened(shown.output)).strip("\n")


def _shortened(shown: str) -> Iterator[str]:
    section = row = ""
    cut = False
    for line in map(str.rstrip, shown.splitlines()):
        indent = len(line) - len(line.lstrip())
        if line and indent == 0 and line[0].isalpha():
            section = row = line.split()[0].rstrip(",")
        elif line and indent <= 2:  # deeper ones go on with the row above
            row = line.split()[0]
        kept = _KEPT.get(section, ())
        wanted = kept is None or not line or row in {*kept, section} or not row[0].isalpha()
        if section not in _KEPT:
            return
        if wanted:
            yield from ["  …"] * cut
            yield line
        cut = not wanted


if __name__ == "__main__":
    main()

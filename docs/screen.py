"""Put what `cloudtune plan` shows first of the example into the README: `make docs`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from click.testing import CliRunner

from cloudtune.cli.main import cli

README = Path(__file__).parents[1] / "README.md"
EXAMPLE = "examples/smudged/experiment.yaml"
_BEGIN = f"```console\n$ cloudtune plan {EXAMPLE}\n"
_END = "\n```\n"


def main() -> None:
    """Put the screen into the README."""
    before, begin, rest = README.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise SystemExit(f"README.md has no block that begins with {_BEGIN!r}")
    README.write_text(f"{before}{begin}{screen()}{end}{after}", encoding="utf-8")


def screen() -> str:
    """Return what the command shows before it says where that comes from, on a new machine."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"CLOUDTUNE_HOME": home, "COLUMNS": "100"}
        asked = ["plan", str(README.parent / EXAMPLE)]
        shown = CliRunner(env=os.environ | environment).invoke(cli, asked, standalone_mode=False)
    if shown.exception is not None:
        raise shown.exception
    lines = [line.rstrip() for line in shown.output.splitlines()]
    origins = next(n for n, line in enumerate(lines) if line.split()[:1] == ["speed"])
    return "\n".join(lines[: origins - 1])


if __name__ == "__main__":
    main()

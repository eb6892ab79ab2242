"""Put what `cloudtune plan` shows first into the pages that show it: `make docs`."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from click.testing import CliRunner

from cloudtune.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "examples/README.md")
_BLOCK = re.compile(r"```console\n\$ cloudtune plan (\S+)\n.*?\n```\n", re.DOTALL)


def main() -> None:
    """Put the screens into the pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if not _BLOCK.search(text):
            raise SystemExit(f"{page} shows no `cloudtune plan`")
        page.write_text(filled(text), encoding="utf-8")


def filled(text: str) -> str:
    """Return a page with the screen of each plan that it shows."""
    return _BLOCK.sub(lambda block: _shown(block[1]), text)


def _shown(example: str) -> str:
    return f"```console\n$ cloudtune plan {example}\n{screen(example)}\n```\n"


def screen(example: str) -> str:
    """Return what the command shows before it says where that comes from, on a new machine."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"CLOUDTUNE_HOME": home, "COLUMNS": "100", "CUDA_VISIBLE_DEVICES": ""}
        asked = ["plan", str(ROOT / example)]
        shown = CliRunner(env=os.environ | environment).invoke(cli, asked, standalone_mode=False)
    if shown.exception is not None:
        raise shown.exception
    lines = [line.rstrip() for line in shown.output.splitlines()]
    origins = next(n for n, line in enumerate(lines) if line.split()[:1] == ["speed"])
    return "\n".join(lines[: origins - 1])


if __name__ == "__main__":
    main()

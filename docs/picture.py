"""Draw a run for the README, on a light and on a dark page.

    make docs RUN=NAME       # or: .venv/bin/python -m docs.picture NAME

Writes docs/img/run-light.svg and docs/img/run-dark.svg; `cloudtune report --figure` is the first.
"""

import argparse
from pathlib import Path

from cloudtune.display.pages.picture import DARK, LIGHT, draw
from cloudtune.runs import home
from cloudtune.runs.report import load

FOLDER = Path(__file__).parent / "img"


def main() -> None:
    """Draw a run in both themes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="A run of this machine, as `cloudtune runs`.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="Folder (default: docs/img).")
    options = parser.parse_args()
    report = load(home.find_run(options.run))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, theme in (("light", LIGHT), ("dark", DARK)):
        (options.out / f"run-{name}.svg").write_text(draw(report, theme), encoding="utf-8")


if __name__ == "__main__":
    main()

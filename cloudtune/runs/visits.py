"""Who entered the instances of a run (`cloudtune exec`, `shell`), and what they did there.

It stands beside the ledger, which only a run's controller writes: anybody may enter, at any time.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from cloudtune.model.serialization import decode, encode

_FILE = "visits.jsonl"


@dataclass(frozen=True)
class Visit:
    """A person's time on an instance; `at` is a Unix time.

    Without a `command` it was a terminal. The exit code is None if the way there failed.
    """

    at: float
    seconds: float
    user: str
    instance: str
    command: tuple[str, ...]
    exit_code: int | None

    def __str__(self) -> str:
        what = " ".join(self.command) or "opened a terminal"
        end = "and didn't get there" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"{self.user} on {self.instance}: {what} ({end})"


def note_visit(folder: Path, visit: Visit) -> None:
    """Add a visit to the record in a run's folder."""
    with (folder / _FILE).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(encode(visit))}\n")


def read_visits(folder: Path) -> tuple[Visit, ...]:
    """Return the visits of a run, in order; a line that was cut off is left out."""
    path = folder / _FILE
    if not path.is_file():
        return ()
    visits = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            visits.append(decode(Visit, json.loads(line)))
        except (ValueError, TypeError, KeyError):
            continue
    return tuple(visits)

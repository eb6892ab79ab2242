"""Who entered the instances of a run (`cloudtune exec`, `shell`), and what they did there.

It stands beside the ledger, which only a run's controller writes: anybody may enter, at any time.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from cloudtune.model.serialization import decode, encode

_FILE = "sessions.jsonl"


@dataclass(frozen=True)
class Session:
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


def note_session(folder: Path, session: Session) -> None:
    """Add a session to the record in a run's folder."""
    with (folder / _FILE).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(encode(session))}\n")


def read_sessions(folder: Path) -> tuple[Session, ...]:
    """Return the sessions of a run, in order; a line that was cut off is left out."""
    path = folder / _FILE
    if not path.is_file():
        return ()
    sessions = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            sessions.append(decode(Session, json.loads(line)))
        except (ValueError, TypeError, KeyError):
            continue
    return tuple(sessions)

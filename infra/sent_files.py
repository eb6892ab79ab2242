"""The files of an experiment's folder that are sent to other machines."""

import os
from collections.abc import Iterator
from pathlib import Path

import pathspec

# A file beside the script with patterns, as in .gitignore, of files that aren't sent.
IGNORE_FILE = ".cloudtuneignore"
# Files that usually hold secrets; never sent. A pattern with `!` in the ignore file sends one.
SECRETS = (
    ".env",
    ".env.*",
    "!.env.example",
    ".aws/",
    ".ssh/",
    ".netrc",
    "*.key",
    "*.pem",
    "id_ecdsa",
    "id_ed25519",
    "id_rsa",
    "kaggle.json",
)
_CACHES = (
    ".git/",
    ".venv/",
    "__pycache__/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    "*.pyc",
)


def excludes(folder: Path) -> list[str]:
    """Return the patterns of files that are never sent, and those of the folder's ignore file."""
    return [*_CACHES, *SECRETS, *_lines(folder / IGNORE_FILE)]


def sent_files(folder: Path) -> Iterator[Path]:
    """Yield the files that are sent: all but `excludes` and those that .gitignore files name."""
    own = pathspec.GitIgnoreSpec.from_lines(excludes(folder))
    by_git: dict[Path, pathspec.GitIgnoreSpec] = {}

    def is_ignored(path: Path, suffix: str = "") -> bool:
        if own.match_file(f"{path.relative_to(folder).as_posix()}{suffix}"):
            return True
        return any(
            spec.match_file(f"{path.relative_to(above).as_posix()}{suffix}")
            for above, spec in by_git.items()
            if path.is_relative_to(above)
        )

    for top, folders, names in os.walk(folder):
        here = Path(top)
        if lines := _lines(here / ".gitignore"):
            by_git[here] = pathspec.GitIgnoreSpec.from_lines(lines)
        folders[:] = sorted(name for name in folders if not is_ignored(here / name, "/"))
        for name in sorted(names):
            path = here / name
            if path.is_file() and not is_ignored(path):
                yield path


def secrets_in(folder: Path) -> list[str]:
    """Return the names of files directly in a folder that are kept back as secrets."""
    spec = pathspec.GitIgnoreSpec.from_lines(excludes(folder))
    secret = pathspec.GitIgnoreSpec.from_lines(SECRETS)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    return [name for name in names if secret.match_file(name) and spec.match_file(name)]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

"""The files of an experiment's folder that are sent to other machines."""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pathspec

from cloudtune.errors import UsageError

# A file beside the script with patterns, as in .gitignore, of files that aren't sent. A pattern
# with `!` sends a file that this file's earlier lines, a .gitignore or `SECRETS` leave out.
IGNORE_FILE: Final = ".cloudtuneignore"
# Files that usually hold secrets.
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
# What a message of Ray, by which nodes get the files, may have is 512 MiB.
MOST_BYTES: Final = 400 * 2**20
# Larger files of the folder are data: they are linked, because a script only reads them.
_LINKED_BYTES: Final = 64 << 20
# The file that a program misses, in the error that it ends with.
MISSING_FILE: Final = re.compile(r"\[Errno \d+\] [^:]+: '([^']+)'")
# A link may lead to a whole file system.
_MOST_ENTRIES: Final = 200_000


def sent_files(
    folder: Path, leave_out: Callable[[Path], object] = lambda _: None
) -> Iterator[Path]:
    """Yield the files that are sent, by their paths in the folder; links stand for their targets.

    Left out are secrets, caches, what the ignore file and .gitignore files name, links that point
    nowhere, and links to a folder that they are in, with which `leave_out` is called.

    Raises:
        UsageError: a folder can't be read, or there are too many files.
    """
    rules = _Rules(folder)
    counted = itertools.count(1)

    def walk(here: Path, inside: tuple[Path, ...]) -> Iterator[Path]:
        rules.enter(here)
        for path in _list(here):
            if next(counted) > _MOST_ENTRIES:
                raise UsageError(
                    f"{folder} has more than {_MOST_ENTRIES:,} files and folders to send, with "
                    f"those behind links such as {_first_link(path, folder)}; name what no trial "
                    f"reads in {IGNORE_FILE}"
                )
            if path.is_dir():
                target = Path(os.path.realpath(path))
                if rules.leave_out_folder(path):
                    continue
                if path.is_symlink() and any(it.is_relative_to(target) for it in inside):
                    leave_out(path)
                    continue
                yield from walk(path, (*inside, target))
            elif path.is_file() and not rules.leave_out(path):
                yield path

    yield from walk(folder, (Path(os.path.realpath(folder)),))


class _Rules:
    """Which files of a folder are left out."""

    def __init__(self, folder: Path) -> None:
        own = _lines(folder / IGNORE_FILE)
        self._folder = folder
        self._caches = pathspec.GitIgnoreSpec.from_lines(_CACHES)
        self._secrets = pathspec.GitIgnoreSpec.from_lines(SECRETS)
        self._own = pathspec.GitIgnoreSpec.from_lines(own)
        self._by_git: dict[Path, pathspec.GitIgnoreSpec] = {}
        self._brought_back = [line[1:].strip().strip("/") for line in own if line.startswith("!")]

    def enter(self, folder: Path) -> None:
        """Learn the patterns of a folder's .gitignore."""
        if lines := _lines(folder / ".gitignore"):
            self._by_git[folder] = pathspec.GitIgnoreSpec.from_lines(lines)

    def leave_out(self, path: Path) -> bool:
        """Whether a file isn't sent."""
        name = self._name(path)
        if self._caches.match_file(name) or self.is_secret(path):
            return True
        own = self._own.check_file(name).include  # by the last pattern that matches, if any
        return self._is_in_git(path, "") if own is None else own

    def leave_out_folder(self, path: Path) -> bool:
        """Whether nothing in a folder is sent."""
        name = f"{self._name(path)}/"
        if self._caches.match_file(name) or self.is_secret(path, "/"):
            return True
        own = self._own.check_file(name).include
        if own is None:
            return self._is_in_git(path, "/") and not self._may_bring_back(path)
        return own

    def is_secret(self, path: Path, suffix: str = "") -> bool:
        """Whether a file is named as secrets are, and no pattern brings back that very name."""
        is_named = self._secrets.match_file(f"{self._name(path)}{suffix}")
        if path.is_symlink():  # a secret by another name
            is_named = is_named or self._secrets.match_file(f"{os.path.realpath(path)}{suffix}")
        return is_named and not any(
            fnmatchcase(path.name, pattern.rpartition("/")[2])
            for pattern in self._brought_back
            if not pattern.endswith("*")  # a folder with all in it, such as data/**
        )

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    def _may_bring_back(self, folder: Path) -> bool:
        """Whether a pattern with `!` may match something in a folder that git leaves out."""
        parts = folder.relative_to(self._folder).parts
        for pattern in self._brought_back:
            names = pattern.split("/")
            if len(names) == 1 or "**" in names:  # matches at any depth
                return True
            if all(fnmatchcase(part, name) for part, name in zip(parts, names, strict=False)):
                return True
        return False

    def _is_in_git(self, path: Path, suffix: str) -> bool:
        return any(
            spec.match_file(f"{path.relative_to(above).as_posix()}{suffix}")
            for above, spec in self._by_git.items()
            if path.is_relative_to(above)
        )


def refuse_unsendable(
    folder: Path, most: int = MOST_BYTES, leave_out: Callable[[Path], object] = lambda _: None
) -> None:
    """Check that what is sent of a folder can be read, and has at most `most` bytes.

    Raises:
        UsageError: it can't, or is larger; the message names the file.
    """
    total = 0
    largest, its_size = folder, 0
    for path in sent_files(folder, leave_out):
        if not os.access(path, os.R_OK):
            raise UsageError(
                f"{_show(path, folder)} can't be read, and would be sent to instances; change its "
                f"rights, or name it in {IGNORE_FILE}"
            )
        size = path.stat().st_size
        total += size
        if size > its_size:
            largest, its_size = path, size
        if total > most:
            raise UsageError(
                f"{folder} holds more than {most >> 20} MiB, which all would be sent to "
                f"instances: {_show(largest, folder)} has {its_size / 2**20:,.0f} MiB. Name data "
                f"and checkpoints in {IGNORE_FILE} or .gitignore, and keep them in storage, or "
                "your own bucket"
            )


def link_sent_files(folder: Path, target: Path) -> None:
    """Fill a folder with links to the files that are sent, at the same paths."""
    for path, link in _sent_to(folder, target):
        link.symlink_to(os.path.realpath(path))


def copy_sent_files(folder: Path, target: Path) -> None:
    """Fill a folder with copies of the files that are sent; large ones are linked."""
    for path, copy in _sent_to(folder, target):
        if path.stat().st_size > _LINKED_BYTES:
            copy.symlink_to(os.path.realpath(path))
        else:
            shutil.copy(path, copy)


def _sent_to(folder: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file that is sent, and its place in another folder, whose folders are made."""
    for path in sent_files(folder):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        yield path, place


def link_folder(folder: Path, target: Path, copied: Collection[str]) -> None:
    """Fill an empty folder with links to all in another, and copies of some of its files.

    `copied` has their paths in the folder. Nothing is left out, and nothing else is copied.
    """
    below: dict[str, list[str]] = {}
    for name in copied:
        first, _, rest = name.partition("/")
        below.setdefault(first, []).append(rest)
    for path in folder.iterdir():
        within = below.get(path.name)
        if within is None:
            (target / path.name).symlink_to(path.absolute())
        elif path.is_dir():
            (target / path.name).mkdir()
            link_folder(path, target / path.name, within)
        else:
            shutil.copy2(path, target / path.name)


def left_out_hint(error: str, folder: Path) -> str:
    """Return how to send the file that an error misses; "" if it isn't there, or is sent."""
    missing = MISSING_FILE.search(error)
    if missing is None or ".." in missing[1] or not (folder / missing[1]).exists():
        return ""
    place = folder / missing[1]
    if not place.is_relative_to(folder):
        return ""
    path = place.relative_to(folder)
    sent = {file.relative_to(folder) for file in sent_files(folder)}
    if path in sent:
        return ""
    top = Path(path.parts[0])
    name = path.as_posix()
    if len(path.parts) > 1 and not any(file.is_relative_to(top) for file in sent):
        name = f"{top}/"
    return f"; it is there, but isn't sent: !{name} in {IGNORE_FILE} sends it"


def secrets_in(folder: Path) -> list[str]:
    """Return the names of files directly in a folder that are kept back as secrets."""
    rules = _Rules(folder)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    return [name for name in names if rules.is_secret(folder / name)]


def _list(folder: Path) -> list[Path]:
    """Return what is in a folder, its files first.

    Raises:
        UsageError: it can't be read.
    """
    try:
        entries = [folder / name for name in sorted(os.listdir(folder))]  # noqa: PTH208
    except OSError as error:
        raise UsageError(
            f"{folder} can't be read ({error.strerror}), and would be sent to instances; change "
            f"its rights, or name it in {IGNORE_FILE}"
        ) from None
    return sorted(entries, key=Path.is_dir)


def _first_link(path: Path, folder: Path) -> str:
    """Return the first link on the way from a folder to a path, or the path's first part."""
    parts = path.relative_to(folder).parts
    for number in range(1, len(parts) + 1):
        if (link := folder.joinpath(*parts[:number])).is_symlink():
            return _show(link, folder)
    return parts[0]


def _show(path: Path, folder: Path) -> str:
    """Return a path in a folder, with what it points to if that is elsewhere."""
    name = path.relative_to(folder).as_posix()
    target = Path(os.path.realpath(path))
    if target.is_relative_to(os.path.realpath(folder)):
        return name
    return f"{name} (linked to {target})"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

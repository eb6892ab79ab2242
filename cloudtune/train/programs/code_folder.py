"""A trial's folder of the user's code: scripts are the trial's own, everything else is a link.

A script finds its folder by `Path(__file__).resolve()`, and reads and saves there. If that were the
folder that all trials share, each would go on from what another has saved.
"""

import fnmatch
import itertools
import os
import shutil
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

# A folder with more than this is one of data: looking through all of it would delay each trial.
_MOST_ENTRIES = 1_000
# Entries that are looked at in all; what lies deeper is linked.
_MOST_IN_ALL = 20_000
# What an installed Python has in its folder, and folders of other people's packages.
_PYTHON = frozenset({"pyvenv.cfg", "conda-meta"})
_PACKAGES = frozenset({"node_modules", "site-packages"})


def link_code(code: Path, folder: Path, own: Sequence[str]) -> None:
    """Fill a folder with what is in the user's, except the paths (or patterns) of its `own`.

    Folders with scripts are made, other folders and files are linked. What is there already stays.
    """
    parts = [PurePosixPath(path).parts for path in own]
    _link(code, folder, parts, _folders_of_scripts(code))


def _folders_of_scripts(code: Path) -> set[Path]:
    """Return the folders that have scripts, the shallow ones first if there are very many files.

    A link isn't one: it leads elsewhere. Nor is a hidden folder, or an installed Python.
    """
    found: set[Path] = set()
    waiting = deque([code])
    looked = 0
    while waiting and looked < _MOST_IN_ALL:
        folder = waiting.popleft()
        with os.scandir(folder) as listed:
            entries = list(itertools.islice(listed, _MOST_ENTRIES))
        looked += len(entries)
        if _PYTHON & {entry.name for entry in entries}:
            continue
        if any(map(_is_script, entries)):
            found.update([folder, *folder.parents])
        for entry in entries:
            is_theirs = entry.name.startswith(".") or entry.name in _PACKAGES
            if entry.is_dir(follow_symlinks=False) and not is_theirs:
                waiting.append(folder / entry.name)
    return found


def _is_script(file: Path | os.DirEntry[str]) -> bool:
    return file.name.endswith(".py") and not file.is_symlink()


def _link(
    source: Path, target: Path, own: Sequence[tuple[str, ...]], scripts: Collection[Path]
) -> None:
    for entry in source.iterdir():
        place = target / entry.name
        within = [parts[1:] for parts in own if parts and fnmatch.fnmatchcase(entry.name, parts[0])]
        if () in within:
            continue
        if entry in scripts:
            place.mkdir(exist_ok=True)
            _link(entry, place, within, scripts)
        elif within or place.exists():  # by its checkpoint
            continue
        elif _is_script(entry):
            _copy(entry, place)
        else:
            place.symlink_to(entry.absolute())


def _copy(script: Path, place: Path) -> None:
    try:
        os.link(script, place)  # at no cost, on one disk
    except OSError:
        shutil.copy2(script, place)

"""A trial's folder of the user's code: scripts are the trial's own, everything else is a link.

A script finds its folder by `Path(__file__).resolve()`, and reads and saves there. If that were the
folder that all trials share, each would go on from what another has saved.
"""

import fnmatch
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath


def link_code(code: Path, folder: Path, own: Sequence[str]) -> None:
    """Fill a folder with what is in the user's, except the paths (or patterns) of its `own`.

    Folders with scripts are made, other folders and files are linked. What is there already stays.
    """
    parts = [PurePosixPath(path).parts for path in own]
    _link(code, folder, parts, _folders_of_scripts(code))


def _folders_of_scripts(code: Path) -> set[Path]:
    """Return the folders that have scripts, however deep. A link isn't one: it leads elsewhere."""
    found: set[Path] = set()
    for name, _, files in os.walk(code):
        folder = Path(name)
        if folder not in found and any(_is_script(folder / file) for file in files):
            found.update([folder, *folder.parents])
    return found


def _is_script(path: Path) -> bool:
    return path.suffix == ".py" and not path.is_symlink()


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

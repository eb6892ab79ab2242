"""The folder of a command's checkpoints: the files of its saves, without logs, and copies of it."""

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil

from cloudtune.train.folder_changes import Changes, State
from cloudtune.train.programs.snapshots import OpenFiles, WriteOrder, last_write
from cloudtune.train.programs.whole_saves import MODEL_SUFFIXES, mask_numbers

# Libraries open these for each entry.
_LOG: Final = re.compile(r"tfevents|\.(wandb|log)$")
# A file that grows so often, for so long, while it isn't held open, is a log.
_APPENDED: Final = 4
_APPENDED_SECONDS: Final = 0.4


class SaveFolder:
    """The files of saves in a folder.

    Logs are left out: files that the command holds open, or appends to again and again.

    Args:
        path: the folder.
        printed: returns the file with the command's latest report.
        is_log: returns whether a file is one that reports are appended to.
        copies: a folder on the same disk, for copies.
        tree: returns the command's processes.
        only_models: whether other things are in it, too, so that only files of models count.
    """

    def __init__(
        self,
        path: Path,
        printed: Callable[[], Path],
        is_log: Callable[[Path], bool],
        copies: Path,
        tree: Callable[[], Iterable[psutil.Process]],
        *,
        only_models: bool,
    ) -> None:
        self.path = path
        self._printed = printed
        self._is_log = is_log
        self._copies_in = copies
        self._only_models = only_models
        self._copies: list[Path] = []
        self._changes = Changes(path)
        self._open = OpenFiles(path, tree)
        self._order = WriteOrder(printed, path)
        self._growth: dict[str, list[tuple[float, int]]] = {}  # times and sizes, by file
        self._appended: set[str] = set()

    def close(self) -> None:
        self._order.close()

    def state(self) -> State:
        """Return the present state of the files."""
        state = self._changes.state()
        self._note_growth(state)
        return {name: it for name, it in state.items() if self._counts(name)}

    def list_changes(self, state: State | None = None) -> list[Path]:
        """Return the files that are new or changed since `take` was called, up to a `state`."""
        changed = self._changes.since(state)
        return [path for path in changed if self._counts(str(path))]

    def take(self, state: State | None = None) -> list[Path]:
        """Return the files that are new or changed since the last call, up to a `state`."""
        self._growth.clear()  # what grew in one save says nothing of the next
        now = self._changes.state()
        state = now if state is None else state
        self._order.forget(but={str(path) for path in Changes.between(state, now)})
        taken = self._changes.take(state)
        return [path for path in taken if self._counts(str(path))]

    def written_last(self) -> list[Path]:
        """Return the files and folders that were written after the last line of the output."""
        written = self._order.written_after()
        if written is None:
            reported = last_write(self._printed())
            return [path for path in self.list_changes() if last_write(path) > reported]
        return [Path(name) for name in written if self._counts(name)]

    def count_saves(self) -> int:
        """Return how often a file was saved since `take`, with lines in between; 0 if unknown.

        Names that differ in numbers are one file, as of a script that has a new one each epoch.
        """
        saves = Counter[str]()
        for written in self._order.between_lines():
            names = (self.name(Path(name)) for name in written if self._counts(name))
            saves.update(set(map(mask_numbers, names)))
        return max(saves.values(), default=0)

    def mark(self) -> None:
        """Record that files are looked at now; see `written_since_mark`."""
        self._order.mark()

    def written_since_mark(self) -> bool:
        """Return whether files were written between `mark` and the last line; True if unknown."""
        written = self._order.written_since_mark()
        return written is None or any(map(self._counts, written))

    def being_written(self) -> set[str]:
        """Return the files that the command has open for writing."""
        return self._open.saving()

    def wait_until_free(self, ended: Callable[[], bool]) -> bool:
        """Wait until none is open for writing; return False if the command ends before that."""
        return self._open.wait(ended)

    def _note_growth(self, state: State) -> None:
        """Find files that the command appends to again and again, opening them each time."""
        now = time.monotonic()
        for name, (_, size, _) in state.items():
            growth = self._growth.setdefault(name, [])
            if growth and size < growth[-1][1]:
                growth.clear()
            if not growth or size > growth[-1][1]:
                growth.append((now, size))
            if len(growth) >= _APPENDED and now - growth[0][0] >= _APPENDED_SECONDS:
                self._appended.add(name)

    def _counts(self, name: str) -> bool:
        """Return whether a file is a part of saves, and no log."""
        if self._only_models and Path(name).suffix not in MODEL_SUFFIXES:
            return False
        path = Path(name)
        if name in self._appended or _LOG.search(path.name) or self._is_log(path):
            return False
        return str(path.resolve()) not in self._open.logs

    def name(self, path: Path) -> str:
        """Return the name of a file within the folder, or within a copy of it."""
        path = path.resolve()
        folders = [it.resolve() for it in (self.path, *self._copies)]
        folder = next(it for it in folders if path.is_relative_to(it))
        return path.relative_to(folder).as_posix()

    def unit(self, path: Path) -> str:
        """Return what a file is saved with: the folder in which it is, or "" for loose files."""
        return save_unit(self.name(path))

    def units(self, paths: Iterable[Path]) -> set[str]:
        return {self.unit(path) for path in paths}

    def copy(self, names: Iterable[str], *, overwritten: Collection[str] = ()) -> Path:
        """Return a copy of some files; `drop_copies` deletes it.

        They are linked. Those of the units `overwritten` may be written again, and are copied.
        """
        copy = self._copies_in / f"whole-{len(self._copies)}"
        copy.mkdir()
        self._copies.append(copy)
        for path in map(Path, names):
            target = copy / self.name(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # it has just been deleted
                if self.unit(path) in overwritten:
                    shutil.copyfile(path, target)
                else:
                    os.link(path, target)
        return copy

    def whole(self) -> Path:
        """Return the folder, or a copy of the files that count if it has others."""
        if not self._only_models:
            return self.path
        return self.copy(self.state(), overwritten={""})  # loose files may be written in place

    def in_copy(self, copy: Path, paths: Sequence[Path]) -> list[Path]:
        """Return where files of the folder are in a copy of it."""
        return [copy / self.name(path) for path in paths]

    def drop_copies(self) -> None:
        for copy in self._copies:
            shutil.rmtree(copy, ignore_errors=True)
        self._copies.clear()


def save_unit(name: str) -> str:
    """Return what a file of a folder is saved with: the folder in which it is, or ""."""
    return name.partition("/")[0] if "/" in name else ""

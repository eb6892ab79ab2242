"""How a program of the user's is called: from which folder, and with which words."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from cloudtune.script.functions import imported_names, parse_file, relative_level

# What the folder of a project has.
_PROJECT: Final = (".git", "pyproject.toml", "setup.py")


def call_folder(script: Path) -> Path:
    """Return the folder that a program is called from: its own, or the current one above it.

    The current one is above it if both are in the same project, as in `python tools/train.py`. A
    module of a package is called from the folder that has the package: `python -m nets.train`.
    """
    current = Path.cwd()
    own = script.resolve().parent
    if above := _folders_to_package(script):
        folder = own.parents[above - 1]
        return Path() if folder == current else folder
    if own.is_relative_to(current) and current.is_relative_to(_project(own) or own):
        return Path()
    return script.parent


def _folders_to_package(script: Path) -> int:
    """Return how many folders above a script's own its package is; 0 if it runs by itself.

    It doesn't if its imports are relative.
    """
    level = relative_level(parse_file(script)) if script.is_file() else 0
    folder = script.resolve().parent
    own = [(above / "__init__.py").exists() for above in (folder, *folder.parents)]
    return max(level, own.index(False)) if level else 0


def _project(folder: Path) -> Path | None:
    """Return the project that a folder is in, the nearest one."""
    return next((above for above in (folder, *folder.parents) if _is_project(above)), None)


def _is_project(folder: Path) -> bool:
    return any((folder / name).exists() for name in _PROJECT)


@dataclass(frozen=True)
class Invocation:
    """A program that is called from `folder`, with `words` after its name."""

    script: Path
    folder: Path
    words: tuple[str, ...] = ()

    @classmethod
    def usual(cls, script: Path, words: Sequence[str] = ()) -> Self:
        """Return the call of a program as its users call it."""
        return cls(script, call_folder(script), tuple(words))

    @property
    def name(self) -> str:
        """The program's path in the folder."""
        return self.script.resolve().relative_to(self.folder.resolve()).as_posix()

    @cached_property
    def call(self) -> tuple[str, ...]:
        """What `python` is given: the program's path in the folder, or its module in a package."""
        if not _folders_to_package(self.script):
            return (self.name,)
        module = self.name.removesuffix(".py").removesuffix("/__main__").replace("/", ".")
        return "-m", module

    @property
    def command(self) -> list[str]:
        return ["python", *self.call, *self.words]

    @property
    def project(self) -> Path | None:
        """The project that it is in."""
        return _project(self.folder.resolve())

    @cached_property
    def imports(self) -> list[str]:
        """The modules of the folder that it imports, and that aren't beside it."""
        if self.call != (self.name,) or self.folder.resolve() == self.script.resolve().parent:
            return []
        names = sorted(imported_names(parse_file(self.script)))
        return [
            name
            for name in names
            if _has_module(self.folder, name) and not _has_module(self.script.parent, name)
        ]

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables with which it finds the modules that it imports, wherever the folder is.

        A PYTHONPATH of the user's own is that of this machine; what is in the folder comes along.
        """
        folder = self.folder.resolve()
        own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        inside = [path for it in own if (path := Path(it).resolve()).is_relative_to(folder) and it]
        paths = ["."] if self.imports else []
        paths += [path.relative_to(folder).as_posix() for path in inside]
        return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))} if paths else {}

    def folders_with(self, module: str) -> Iterator[Path]:
        """Yield the folders above its own, in its project, that have a module."""
        for folder in self.folder.resolve().parents:
            if _has_module(folder, module):
                yield folder
            if _is_project(folder):
                return


def _has_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").exists() or any((folder / name).rglob("*.py"))

"""A module of ours that a command's Python processes run before the script."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

_ENTRY: Final = Path(__file__).with_name("sitecustomize.py")


def install_hook(
    module: ModuleType, folder: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """Write what calls `module.install()`; return the variables of processes that are to call it.

    The folder of copies goes before the PYTHONPATH of their `environment`. A process has no more of
    cloudtune than that, as its Python may lack it: the module only imports the standard library.
    """
    folder.mkdir(exist_ok=True)
    assert module.__file__ is not None
    shutil.copy(module.__file__, folder / "cloudtune_hook.py")
    shutil.copy(_ENTRY, folder)
    before = environment.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else str(folder)}

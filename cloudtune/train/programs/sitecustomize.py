"""Calls `cloudtune_hook` in a command's process; `install_hook` writes a copy of this file.

Python imports `sitecustomize` from its path before any script.
"""

import sys
from pathlib import Path

import cloudtune_hook  # type: ignore[import-not-found]  # a copy of the module, beside this one


def _give_way() -> None:
    """Run the `sitecustomize` that this one shadows, if there is one."""
    this = sys.modules.pop("sitecustomize")
    beside = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != beside]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415
    except ImportError:
        sys.modules["sitecustomize"] = this


cloudtune_hook.install()
_give_way()

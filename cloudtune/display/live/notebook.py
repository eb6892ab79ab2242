"""A run in a notebook: one output, updated in place."""

import importlib
import io
import sys
import time
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.text import Text

_COLUMNS: Final = 110
_LINES: Final = 45
_LAST_LINES: Final = 8
_GLANCE_SECONDS: Final = 1.0
_HTML: Final = (
    '<pre style="line-height: 1.25; overflow-x: auto; font-family: monospace">{code}</pre>'
)


def in_notebook() -> bool:
    """Whether this program is a notebook's kernel, whose outputs can be updated."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


class NotebookOutput:
    """An output of the running cell: the last lines printed to `out`, and a panel below."""

    def __init__(self) -> None:
        self._output = io.StringIO()
        self.out = Console(
            file=self._output,
            width=_COLUMNS,
            height=_LINES,
            highlight=False,
            force_jupyter=False,
            force_terminal=False,  # a kernel's environment has FORCE_COLOR
            soft_wrap=True,
        )
        self._handle: Any = None
        self._shown_at = 0.0

    def show(self, panel: RenderableType, *, at_once: bool = False) -> None:
        """Update it, at most once a second."""
        now = time.monotonic()
        if at_once or now >= self._shown_at + _GLANCE_SECONDS:
            self._shown_at = now
            html = self._render(panel)
            # This is IPython's own kernel.
            display: Any = importlib.import_module("IPython.display").display
            if self._handle is None:
                self._handle = display(html, raw=True, display_id=True)
            else:
                self._handle.update(html, raw=True)

    def _render(self, panel: RenderableType) -> dict[str, str]:
        page = Console(
            file=io.StringIO(),
            record=True,
            width=_COLUMNS,
            highlight=False,
            force_jupyter=False,
            force_terminal=False,
        )
        for line in self._output.getvalue().splitlines()[-_LAST_LINES:]:
            page.print(Text(line, no_wrap=True, overflow="ellipsis"))
        page.print(panel)
        return {
            "text/plain": page.export_text(clear=False),
            "text/html": page.export_html(inline_styles=True, code_format=_HTML),
        }

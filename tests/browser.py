"""A headless Chromium that opens files and pages on loopback.

It tells what they show, ask for and complain of.

It is driven through a pipe (the DevTools protocol), has no network and no display.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE = 120.0
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
    "--hide-scrollbars",
    *("--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--window-size=1300,1000"),
)


@dataclass
class Page:
    """What a page shows; `asked` are the addresses that it wanted to load from anywhere."""

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def __call__(self, script: str) -> Any:
        """Return the value of an expression of JavaScript; a promise's once it is settled."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_until(self, script: str) -> None:
        give_up = time.monotonic() + _PATIENCE
        while not self(script):
            assert time.monotonic() < give_up, f"never true: {script}; {self.complaints}"
            time.sleep(0.05)

    def scheme(self, name: str = "light", media: str = "") -> None:
        """Let the page be seen in a light or a dark scheme, on a screen or on paper (`print`)."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])


class Browser:
    """A running Chromium; its pages live as long as it does."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        # The protocol is spoken on descriptors 3 and 4.
        program = f'exec 3<&{from_us} 4>&{to_us}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", program, CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
        )
        os.close(from_us)
        os.close(to_us)
        self._number, self._rest, self._pages = 0, b"", dict[str, Page]()

    def open(self, place: Path | str) -> Page:
        """Open a file, or an address of this machine, in a page; wait until it has loaded."""
        url = place.as_uri() if isinstance(place, Path) else place
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Page.navigate", url=url)
        page.wait_until(f"document.readyState == 'complete' && location.href == '{url}'")
        return page

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        sent = {**message, "sessionId": session} if session else message
        os.write(self._to, json.dumps(sent).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, (method, heard["error"])
                return dict(heard["result"])
            self._note(heard)

    def _hear(self) -> dict[str, Any]:
        give_up = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, give_up - time.monotonic()))
            assert ready, "Chromium says nothing"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        page, result = self._pages.get(event.get("sessionId", "")), event.get("params", {})
        if page is None:
            return
        match event["method"]:
            case "Runtime.exceptionThrown":
                page.complaints.append(str(result["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if result["type"] in {"error", "warning", "assert"}:
                page.complaints.append(str(result["args"]))
            case "Log.entryAdded" if result["entry"]["level"] in {"error", "warning"}:
                page.complaints.append(str(result["entry"]))
            case "Network.requestWillBeSent":
                page.asked.append(result["request"]["url"])
            case _:
                pass

    def close(self) -> None:
        started = [psutil.Process(self._process.pid)]
        started += started[0].children(recursive=True)
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        os.close(self._to)
        os.close(self._from)
        _, left = psutil.wait_procs(started, timeout=10)
        for item in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                item.kill()
        self._process.wait()


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Browser]:
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()

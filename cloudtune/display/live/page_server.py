"""The live page of a run, served to this machine's browsers by a process of its own.

`python -m cloudtune.display.live.page_server RUN PORT` prints its address as a line of JSON, and
serves until its standard input ends; then it shows the run's end, prints by what its reader wants
to extend the run, and ends. It listens on loopback only, and answers nobody who lacks the random
token in the address.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from cloudtune.display.pages.document import strict_json
from cloudtune.display.pages.reports import live_content, run_page
from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.lifecycle.following import LedgerTail
from cloudtune.lifecycle.stopping import stop_run
from cloudtune.model.units import parse_dollars, parse_seconds
from cloudtune.runs import home
from cloudtune.runs.job import job_of_ledger
from cloudtune.runs.report import Report, build

if TYPE_CHECKING:
    from pathlib import Path

    from cloudtune.engine.ledger import Entry

_LOOPBACK = "127.0.0.1"
# A page asks again after so many times the seconds that its content took to make, so that it takes
# at most a tenth of a core.
_PATIENCE = 10.0
_LEAST_WAIT = 2.0
# Seconds in which an open page must have asked for the run's end.
_FAREWELL = 5.0
_LONGEST_BODY = 1000
# Seconds in which a run that has begun has a record.
_FIRST_RECORD = 30.0


@dataclass
class LiveRun:
    """A run as far as its ledger goes; `extension` is what a reader of the page wants to add."""

    folder: Path
    over: bool = False
    extension: dict[str, str] = field(default_factory=dict)
    asked_at: float = 0.0
    shown_end: bool = False

    def __post_init__(self) -> None:
        self._tail = LedgerTail(self.folder / home.LEDGER)
        self._entries: list[Entry] = []
        self._lock = threading.Lock()

    def report(self) -> Report:
        """Return the report so far; waits for the run's first record.

        Raises:
            CloudtuneError: there is none, or it can't be read.
        """
        ledger = self.folder / home.LEDGER
        give_up = time.monotonic() + _FIRST_RECORD
        while not ledger.exists() and time.monotonic() < give_up:
            time.sleep(0.1)
        self._read()
        return build(job_of_ledger(ledger), tuple(self._entries))

    def _read(self) -> int:
        """Read new events, and return the number of all."""
        with self._lock:
            self._entries += self._tail.read()
            return len(self._entries)

    def page(self) -> str:
        return run_page(self.report(), live=True)

    def content(self, seen: int) -> dict[str, Any] | None:
        """Return what a page shows that has seen so many events; None if that is all."""
        self.asked_at = time.monotonic()
        over = self.over
        number = self._read()
        if number == seen and not over:
            return None
        began = time.monotonic()
        shown = live_content(self.report())
        wait = max(_LEAST_WAIT, _PATIENCE * (time.monotonic() - began))
        self.shown_end = over
        return {**shown, "number": number, "wait": wait, "over": over}

    def stop(self) -> str:
        """Ask the run to end, and return what to tell the reader.

        Raises:
            CloudtuneError: it isn't running.
        """
        stop_run(self.folder)
        self.extension = {}
        return "stopping: the run returns its instances and saves its best model"

    def extend(self, deadline: str, budget: str) -> str:
        """Note what the run is to have more, and return what to tell the reader.

        Raises:
            CloudtuneError: one isn't an amount.
        """
        extension = {}
        if budget and job_of_ledger(self.folder / home.LEDGER).plan.free:
            raise UsageError("GPUs cost nothing here: extend the time")
        if deadline:
            parse_seconds(deadline.removeprefix("+"))
            extension["deadline"] = f"+{deadline.removeprefix('+')}"
        if budget:
            parse_dollars(budget.removeprefix("+"))
            extension["budget"] = f"+{budget.removeprefix('+')}"
        self.extension = extension
        if not extension:
            return "not extended"
        return f"at its limits the run goes on with {' and '.join(extension.values())}"


class _Handler(BaseHTTPRequestHandler):
    """Answers for the page, its content, and its buttons."""

    server: PageServer

    def do_GET(self) -> None:
        try:
            self._get(self._place())
        except (CloudtuneError, OSError) as error:
            self._answer(503, str(error), "text/plain")

    def _get(self, place: str | None) -> None:
        if place == "":
            self._answer(200, self.server.run.page(), "text/html")
        elif place == "content":
            seen = parse_qs(urlsplit(self.path).query).get("seen", ["0"])[0]
            number = int(seen) if seen.isdecimal() else 0
            content = self.server.run.content(number)
            if content is None:
                self._answer(204, "", "application/json")
            else:
                self._answer(200, strict_json(content), "application/json")
        else:
            self._answer(404, "not here", "text/plain")

    def do_POST(self) -> None:
        place = self._place()
        if place not in {"stop", "extend"}:
            self._answer(404, "not here", "text/plain")
            return
        length = self.headers.get("Content-Length", "")
        try:
            size = min(int(length), _LONGEST_BODY) if length.isdecimal() else 0
            fields = json.loads(self.rfile.read(size) or b"{}")
            if place == "stop":
                text = self.server.run.stop()
            else:
                given = [str(fields.get(name) or "").strip() for name in ("deadline", "budget")]
                text = self.server.run.extend(*given)
        except (CloudtuneError, ValueError, AttributeError) as error:
            self._answer(400, str(error), "text/plain")
        else:
            self._answer(200, text, "text/plain")

    def _place(self) -> str | None:
        """Return the part of the path after the token; None for whoever lacks it.

        A name that another site gives this machine (DNS rebinding) isn't answered either.
        """
        port = self.server.server_address[1]
        if self.headers.get("Host") not in {f"{_LOOPBACK}:{port}", f"localhost:{port}"}:
            return None
        _, token, *rest = (*urlsplit(self.path).path.split("/", 2), "")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return None
        return rest[0]

    def _answer(self, code: int, text: str, kind: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(code)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: the terminal is the run's."""


class PageServer(ThreadingHTTPServer):
    """Serves the page of one run on loopback; port 0 is any free one."""

    daemon_threads = True

    def __init__(self, run: LiveRun, port: int) -> None:
        super().__init__((_LOOPBACK, port), _Handler)
        self.run = run
        self.token = secrets.token_urlsafe(16)

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self.server_address[1]}/{self.token}/"


def main() -> None:
    """Serve the page of a run until standard input ends."""
    name, port = sys.argv[1:]
    run = LiveRun(home.runs() / name)  # which may have no record yet, and so can't be found
    try:
        server = PageServer(run, int(port))
    except OSError as error:
        print(json.dumps({"error": f"port {port}: {error.strerror}"}), flush=True)  # noqa: T201
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": server.url}), flush=True)  # noqa: T201
    sys.stdin.read()
    run.over = True
    give_up = time.monotonic() + _FAREWELL
    is_open = run.asked_at > time.monotonic() - 2 * _FAREWELL
    while is_open and not run.shown_end and time.monotonic() < give_up:
        time.sleep(0.1)
    time.sleep(0.1)  # the answer is on its way
    print(json.dumps(run.extension), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

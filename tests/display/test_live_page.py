"""The live page of a run: who is answered, what changes on it, and what its buttons do."""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from cloudtune.display.live.page import LivePage
from cloudtune.display.live.page_server import LiveRun, PageServer
from cloudtune.engine.ledger import FileLedger
from tests.bench import Bench, called
from tests.browser import CHROMIUM, started
from tests.builders import play
from tests.builders.experiments import write_experiment
from tests.display.test_pages import PLAN, SETTING


class Growing:
    """A simulated run whose ledger grows as a test wants, and its page."""

    def __init__(self, folder: Path) -> None:
        job = SETTING.job(PLAN)
        self.entries = iter(play(SETTING, PLAN).entries)
        self.folder = folder / "runs" / "r1"
        self.folder.mkdir(parents=True)
        self.ledger = FileLedger(self.folder / "ledger.jsonl", job.to_json())
        self.run = LiveRun(self.folder)
        self.server = PageServer(self.run, 0)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def grow(self, count: int) -> None:
        for _ in range(count):
            entry = next(self.entries)
            self.ledger.append(entry.event, entry.commands)

    def ask(
        self, place: str, method: str = "GET", body: str = "", host: str = "", token: str = ""
    ) -> tuple[int, str]:
        port = self.server.server_address[1]
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Host": host or f"127.0.0.1:{port}"}
        path = f"/{token or self.server.token}/{place}"
        with contextlib.closing(connection):
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.ledger.close()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    made = Growing(tmp_path)
    yield made
    made.close()


def test_only_who_has_the_token_is_answered(growing: Growing) -> None:
    growing.grow(40)
    status, page = growing.ask("")
    assert status == 200
    assert "connect-src 'self'" in page
    assert 'id="stop"' in page
    port = growing.server.server_address[1]
    assert growing.ask("", host=f"localhost:{port}")[0] == 200
    assert growing.ask("", token="x" * 22)[0] == 404
    assert growing.ask("stop", "POST", token="x")[0] == 404
    assert growing.ask("", host=f"evil.example:{port}")[0] == 404
    assert growing.ask("../../etc/passwd")[0] == 404
    assert growing.server.server_address[0] == "127.0.0.1"


def test_page_is_served_before_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    page = LivePage("r1")
    try:
        assert page.address().startswith("http://127.0.0.1:")
    finally:
        assert page.end() == {}


def test_page_content_changes_with_the_run(growing: Growing) -> None:
    growing.grow(40)
    status, text = growing.ask("content?seen=0")
    content = json.loads(text)
    assert (status, content["number"], content["over"]) == (200, 40, False)
    assert "ends at about" in content["head"]
    assert growing.ask("content?seen=40") == (204, "")
    growing.grow(1)
    assert json.loads(growing.ask("content?seen=40")[1])["number"] == 41
    growing.run.over = True
    assert json.loads(growing.ask("content?seen=41")[1])["over"]
    assert growing.run.shown_end


def test_the_buttons_say_what_they_do(growing: Growing) -> None:
    growing.grow(40)
    refused = growing.ask("stop", "POST", "{}")
    assert refused == (400, "run r1 isn't running; nothing to stop")
    more = json.dumps({"deadline": "1h", "budget": "+$10"})
    assert growing.ask("extend", "POST", more) == (
        200,
        "at its limits the run goes on with +1h and +$10",
    )
    assert growing.run.extension == {"deadline": "+1h", "budget": "+$10"}
    status, text = growing.ask("extend", "POST", '{"deadline": "soon"}')
    assert (status, "'soon' is not a duration" in text) == (400, True)
    assert growing.run.extension == {"deadline": "+1h", "budget": "+$10"}
    assert growing.ask("extend", "POST", "[1]")[0] == 400
    assert growing.ask("extend", "POST", "{}") == (200, "not extended")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
@pytest.mark.walk("a browser takes seconds to draw a page")
def test_browser_follows_and_stays_in_place(
    growing: Growing, tmp_path: Path, leaves_nothing: None
) -> None:
    growing.grow(60)
    with started(tmp_path / "chromium") as browser:
        page = browser.open(growing.server.url)
        page.wait_until("document.documentElement.dataset.drawn !== undefined")
        size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        page("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        page("scrollTo(0, 500)")
        before = page("document.getElementById('head').innerText")
        growing.grow(60)
        page.wait_until(f"document.getElementById('head').innerText !== {json.dumps(before)}")
        assert page("scrollY") == 500
        assert page("[...document.querySelectorAll('details')].every(each => each.open)")
        assert page("document.documentElement.scrollWidth") == 400
        assert page("[...document.querySelectorAll('.scrolls')].every(e => e.scrollWidth <= 400)")
        svg = page("Plotly.toImage(document.getElementById('figure-0'), {format: 'svg'})")
        assert svg.startswith("data:image/svg+xml")
        growing.run.over = True
        page.wait_until("document.getElementById('stop').disabled")
        assert page.complaints == []
        addresses = {re.sub(r"\?.*", "", address) for address in page.asked}
        assert addresses - {growing.server.url, f"{growing.server.url}content"} == set()


def test_a_port_that_is_no_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "watch", "--html", "--port", "70000").refused("not in the range")


SLOW = """
import time
import cloudtune

def train(config):
    for epoch in cloudtune.epochs():
        time.sleep(0.5)
        cloudtune.report({"loss": config["lr"] / epoch})
"""
LIMITED = """
train: train.py:train
metric: {name: loss, mode: min}
search: {lr: {uniform: [0.1, 1]}}
trials: 400
epochs: {min: 1, max: 4}
strategy: asha
limits: {deadline: 80s}
cloud: {provider: local, slots: 2}
"""


@pytest.mark.cluster
@pytest.mark.walk("a whole run to its deadline, and on")
def test_run_extended_on_page_continues(bench: Bench) -> None:
    path = write_experiment(bench.folder, LIMITED, SLOW)
    process = bench.start("run", path, "--html", "-q", "--force")
    assert process.stderr is not None
    url = ""
    while not url:
        line = process.stderr.readline()
        assert line, "no page"
        url = "".join(re.findall(r"http://\S+", line))
    host, _, token = url.removeprefix("http://").strip("/").partition("/")
    connection = HTTPConnection(host, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", f"/{token}/extend", json.dumps({"deadline": "+60s"}))
        assert connection.getresponse().status == 200
    out, err = process.communicate(timeout=280)
    assert "Extended on its page: cloudtune resume" in err
    assert out.count("Best: loss") == 2, err
    assert process.returncode in {0, 5}

"""Commands on instances by Systems Manager, against a server that answers as AWS does."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cloudtune.infra.aws.entering import run_command
from cloudtune.infra.provider import Endpoint

ID = "6c8e6e4a-0000-4000-8000-000000000000"


class SystemsManager(ThreadingHTTPServer):
    """Begins each command; the person who sent it interrupts before the answer is there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.cancelled: list[str] = []

    def answer(self, action: str, asked: dict[str, str]) -> object:
        if action == "SendCommand":
            os.kill(os.getpid(), signal.SIGINT)
            return {"Command": {"CommandId": ID}}
        if action == "CancelCommand":
            self.cancelled.append(asked["CommandId"])
            return {}
        return {"Status": "InProgress"}


class Answers(BaseHTTPRequestHandler):
    server: SystemsManager

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        action = self.headers["X-Amz-Target"].rpartition(".")[2]
        body = json.dumps(self.server.answer(action, asked)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def manager() -> Iterator[SystemsManager]:
    with SystemsManager() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_interrupt_before_its_id_is_known_ends_a_command(manager: SystemsManager) -> None:
    url = f"http://127.0.0.1:{manager.server_port}"
    endpoint = Endpoint("us-east-1", url, key="k", secret="s")
    with pytest.raises(KeyboardInterrupt):
        run_command(endpoint, "i-0123456789abcdef0", ["sleep", "4321"])
    assert manager.cancelled == [ID]

"""What a head prints as it boots reaches whoever waits for it."""

import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest

from cloudtune.infra.heads import launch
from cloudtune.infra.heads.launch import Remote, user_data

REMOTE = Remote("s3://b/p/r", "aws", "us-east-1", until=2e9, asked_at=1.9e9, usd_per_hour=0.1)


class _Uploads(http.server.ThreadingHTTPServer):
    """Keeps what is uploaded, as S3 does at a presigned address."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Upload)
        self.kept: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}/boot.log?X-Amz-Signature=a"


class _Upload(http.server.BaseHTTPRequestHandler):
    server: _Uploads

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.kept.append(data.decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def uploads() -> Iterator[_Uploads]:
    with _Uploads() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.skipif(shutil.which("curl") is None, reason="heads upload with curl")
def test_the_boot_is_uploaded_while_it_runs_and_when_it_fails(
    uploads: _Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_SEND_SECONDS", 0.2)
    lines = launch._sending(uploads.address)
    script = f"{lines}echo one; sleep 1; echo two; sleep 0.5; send_boot_log; sleep 0.5"
    done = subprocess.run(
        ["/bin/bash", "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "one\ntwo\n", "the console has it as well"
    assert "one\n" in uploads.kept, "before the script ended"
    assert uploads.kept[-1] == "one\ntwo\n"


def test_a_storage_in_a_folder_has_no_uploads() -> None:
    assert "boot_log" not in user_data(REMOTE)
    assert "-T \"$boot_log\" 'https://x'" in user_data(REMOTE, "https://x")

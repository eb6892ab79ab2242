"""What an instance prints as it boots reaches whoever waits for it."""

import http.server
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from cloudtune.errors import CloudtuneError
from cloudtune.infra.aws.errors import error_code, is_definite, is_permanent
from cloudtune.infra.environments.delivery import Delivery
from cloudtune.infra.heads import launch
from cloudtune.infra.heads.launch import Remote, user_data
from cloudtune.infra.node import boot
from cloudtune.infra.node.boot import Join
from cloudtune.infra.provider import HeadOffer
from tests.builders.servers import serving
from tests.infra.mps_stand_in import write_script

FAILED = "cloudtune-node: setup.commands failed: false"
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

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def uploads() -> Iterator[_Uploads]:
    with serving(_Uploads()) as server:
        yield server


@pytest.mark.skipif(shutil.which("curl") is None, reason="instances upload with curl")
def test_failing_boot_is_uploaded(
    uploads: _Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "_SEND_SECONDS", 0.2)
    node = Join("10.0.0.1:6379", "i000", 1)
    started = user_data(REMOTE, uploads.address)
    for script in (started, boot.user_data(node, "", "t", boot_log=uploads.address)):
        assert boot.uploading(uploads.address) in script
    delivery = Delivery(commands=("sleep 1", "echo two", "false"), python=sys.executable)
    script = f"{boot.uploading(uploads.address)}echo one\n{delivery.lines()}"
    write_script(tmp_path / "shutdown", "")
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        env={**own, "CLOUDTUNE_MACHINE": "i-1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert (lines[0], *lines[3:]) == ("one", "two", FAILED), "the console has it as well"
    first = next(kept for kept in uploads.kept if kept)  # it may be asked before the script begins
    assert first.startswith("one\n")
    assert first != done.stdout, "before the script ended"
    assert uploads.kept[-1] == done.stdout, "with its last line, before the machine ends"


class Refusing:
    """EC2's calls, which refuse types with a code and a message."""

    errors = (ClientError,)
    code = staticmethod(error_code)
    is_definite = staticmethod(is_definite)
    is_permanent = staticmethod(is_permanent)

    def __init__(self, **refused: tuple[str, str]) -> None:
        self._refused = {f"{name}.large".replace("_", "-"): why for name, why in refused.items()}
        self.asked: list[str] = []

    def run_instance(self, token: str, tags: object, request: dict[str, str]) -> str:
        assert token
        assert tags
        self.asked.append(request["InstanceType"])
        if why := self._refused.get(self.asked[-1]):
            said: Any = {"Error": {"Code": why[0], "Message": why[1]}}
            raise ClientError(said, "RunInstances")
        return "i-1"


OFFER = HeadOffer("m7i.large", 0.1, {"ImageId": "ami-1"}, {}, "m7i-flex.large")
FREE = ("InvalidParameterCombination", "The specified instance type is not eligible for Free Tier")
FULL = ("InsufficientInstanceCapacity", "We currently do not have sufficient capacity")
DENIED = ("UnauthorizedOperation", "You are not authorized")


@pytest.mark.parametrize(("why", "times"), [(FREE, 1), (FULL, 4)])
def test_another_type(why: tuple[str, str], times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PAUSE_SECONDS", 0.0)
    calls = Refusing(m7i=why)
    said: list[str] = []
    what: Any = (calls, "r", REMOTE, OFFER, lambda _: {})
    assert launch.launch(*what, say=said.append) == "i-1"
    assert calls.asked == ["m7i.large"] * times + ["m7i-flex.large"]
    assert said[0].startswith("note: no head of type m7i.large")


@pytest.mark.parametrize("why", [FREE, DENIED])
def test_what_refuses_every_type_is_said_once(why: tuple[str, str]) -> None:
    calls = Refusing(m7i=why, m7i_flex=why)
    with pytest.raises(CloudtuneError, match="nothing was launched"):
        launch.launch(cast("Any", calls), "r", REMOTE, OFFER, lambda _: {})
    assert len(calls.asked) == (2 if why is FREE else 1)

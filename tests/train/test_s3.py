"""S3 is reached as boto3 reaches it: by the profile's credentials, and through a proxy."""

import contextlib
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cloudtune.train.storage import StorageError, filesystem, try_storage
from tests.builders.servers import serving


class _Proxy(socketserver.ThreadingTCPServer):
    """A proxy in front of one server, which takes absolute addresses; keeps S3's access keys."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        address = urlsplit(behind)
        assert address.hostname
        assert address.port
        self.behind = (address.hostname, address.port)
        self.seen = b""
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def keys(self) -> list[str]:
        return [key.decode() for key in re.findall(rb"Credential=(\w+)/[^ ]*/s3/", self.seen)]


class _Relay(socketserver.BaseRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        with socket.create_connection(self.server.behind) as behind:
            back = threading.Thread(target=self._pass, args=(behind, self.request))
            back.start()
            while data := self.request.recv(1 << 16):
                self.server.seen += data
                behind.sendall(data)
            behind.shutdown(socket.SHUT_WR)
            back.join()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, moto_address: str) -> Iterator[_Proxy]:
    with serving(_Proxy(moto_address)) as server:
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", server.address)
        monkeypatch.setenv("http_proxy", server.address)
        yield server


@pytest.fixture
def profile(
    no_aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moto_address: str
) -> Path:
    """Write profiles `base` (static keys), `team` (a role) and `process` (short-lived keys)."""
    command = tmp_path / "keys.py"
    command.write_text(
        "import datetime, json, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=1)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'KEY{number}',\n"
        "    'SecretAccessKey': 's', 'SessionToken': 't', 'Expiration': soon.isoformat()}))\n"
    )
    config = tmp_path / "config"
    config.write_text(
        f"[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
        f"region = eu-west-1\nendpoint_url = {moto_address}\n"
        "[profile team]\nrole_arn = arn:aws:iam::123456789012:role/team\nsource_profile = base\n"
        f"region = eu-west-1\nendpoint_url = {moto_address}\n"
        f"[profile process]\ncredential_process = {sys.executable} {command}\n"
        f"region = eu-west-1\nendpoint_url = {moto_address}\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))  # where credentials of roles are cached
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return config


def test_an_assumed_role(profile: Path, proxy: _Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    try_storage("s3://shelf/runs")
    assert proxy.keys, "the requests went through the proxy"
    assert {key[:4] for key in proxy.keys} == {"ASIA"}, "temporary keys of the role"


def test_its_region_is_asked(profile: Path, proxy: _Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "base")
    for number in range(3):
        storage, root = filesystem("s3://shelf/runs")
        storage.get_file_info(f"{root}/{number}")
    assert len(re.findall(rb"HEAD http://[^/]+/shelf HTTP", proxy.seen)) == 1


def test_keys_are_renewed(profile: Path, proxy: _Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "process")
    storage, root = filesystem("s3://shelf/runs")
    for name in ("first", "second"):
        with storage.open_output_stream(f"{root}/{name}") as file:
            file.write(b"x")
    used = [key for key in proxy.keys if key.startswith("KEY")]
    assert len(set(used)) > 1
    assert storage.get_file_info(f"{root}/second").size == 1


def test_no_credentials_say_how_to_log_in(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile.write_text("[profile lost]\nsso_start_url = https://x\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_PROFILE", "lost")
    with pytest.raises(StorageError, match=r"no AWS credentials.*aws sso login") as caught:
        try_storage("s3://shelf/runs")
    assert caught.value.denied

"""A package index over TLS with a password, as companies have them (PEP 503)."""

import base64
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from packaging.utils import canonicalize_name


class IndexServer(ThreadingHTTPServer):
    """Serves the wheels of a folder at 127.0.0.2, to those who know its user and password."""

    daemon_threads = True

    def __init__(self, wheels: Path, context: ssl.SSLContext, login: str) -> None:
        super().__init__(("127.0.0.2", 0), _Request)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.wheels = wheels
        self.login = f"Basic {base64.b64encode(login.encode()).decode()}"

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that doesn't trust the certificate."""


class _Request(BaseHTTPRequestHandler):
    server: IndexServer

    def do_GET(self) -> None:
        if self.headers["Authorization"] != self.server.login:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        *_, folder, name = self.path.split("/")
        if folder == "files":
            self._answer((self.server.wheels / name).read_bytes(), "application/octet-stream")
            return
        project = folder if name == "" else name
        links = [
            f'<a href="/files/{path.name}">{path.name}</a>'
            for path in self.server.wheels.glob("*.whl")
            if canonicalize_name(path.name.partition("-")[0]) == project
        ]
        self._answer("\n".join(links).encode(), "text/html")

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815  uv asks so for lengths

    def log_message(self, *_: object) -> None: ...

"""AWS by its own names, without AWS_ENDPOINT_URL, over TLS: directly or behind a company's proxy.

The proxy opens what is encrypted, and only its own CA vouches for its certificates. The stand-in
answers whatever is asked.
"""

import datetime as dt
import http.client
import ipaddress
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# As whose request, and with which path, a request was signed: see `rules.StandIn.signed`.
SIGNED_HOST = "X-Signed-Host"
SIGNED_PATH = "X-Signed-Path"
BUNDLE = "company-ca.pem"
_OF_A_HOP = {"Transfer-Encoding", "Content-Length", "Connection"}
_DAY = dt.timedelta(days=1)
_SILENCE = 300.0  # longer than anybody waits


class CompanyProxy(socketserver.ThreadingTCPServer):
    """Takes CONNECT to any name of AWS, and passes it to one server; `names` has those asked for.

    `bundle` is the file with the certificate of its CA. With a `page` it answers with that.
    """

    daemon_threads = True

    def __init__(
        self, behind: str, folder: Path, place: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        super().__init__(place, _Tunnel)
        self.behind = behind.removeprefix("http://")
        self.names: set[str] = set()
        self.page = b""
        self.bundle = folder / BUNDLE
        self._folder = folder
        self._lock = threading.Lock()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._ca = self._certificate("Company CA", ca=True)
        self.bundle.write_bytes(self._ca.public_bytes(serialization.Encoding.PEM))

    @property
    def address(self) -> str:
        return "http://{}:{}".format(*self.server_address)

    def _certificate(self, name: str, *, ca: bool = False) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        of_ca = subject if ca else self._ca.subject
        builder = x509.CertificateBuilder(of_ca, subject, self._key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - _DAY).not_valid_after(now + _DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
        if not ca:
            named = _address(name) if name[0].isdigit() else x509.DNSName(name)
            builder = builder.add_extension(x509.SubjectAlternativeName([named]), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def context(self, name: str) -> ssl.SSLContext:
        """Return what speaks TLS as if it were that host."""
        with self._lock:
            if name not in self._contexts:
                self._contexts[name] = self._context(name)
            return self._contexts[name]

    def _context(self, name: str) -> ssl.SSLContext:
        key = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain = self._folder / f"{name}.pem"
        chain.write_bytes(key + self._certificate(name).public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context


def _address(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name))


class NamesOfAws(socketserver.ThreadingTCPServer):
    """Where the names of AWS lead without a proxy: what is asked there, `proxy` passes on.

    `log` gets a line for each connection: whose, and the name that was asked for. Whoever has no
    route to it, as `reaches` says of an address and a name, gets no answer.
    """

    daemon_threads = True

    def __init__(
        self, proxy: CompanyProxy, address: str, log: Path, reaches: Callable[[str, str], bool]
    ) -> None:
        super().__init__((address, 443), _Direct)
        self.proxy = proxy
        self._reaches = reaches
        self.log = log
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sni_callback = self._choose

    def _choose(self, connection: Any, name: str | None, _: ssl.SSLContext) -> int | None:
        address = connection.getpeername()[0]
        if not self._reaches(address, name or ""):
            time.sleep(_SILENCE)
            return int(ssl.ALERT_DESCRIPTION_ACCESS_DENIED)
        connection.context = self.proxy.context(name or "")
        with self.log.open("a") as log:
            log.write(f"{address} {name}\n")
        return None


class _PassesOn(BaseHTTPRequestHandler):
    """Has the stand-in answer what was asked of a name of AWS."""

    protocol_version = "HTTP/1.1"
    proxy: CompanyProxy
    name = ""

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _pass_on(self) -> None:
        """Have the stand-in answer, under its own name, with what was signed beside it."""
        bucket = self.name.partition(".s3.")[0] if ".s3." in self.name else ""
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers |= {"host": self.proxy.behind, SIGNED_HOST: self.name}
        headers.pop("transfer-encoding", None)
        headers.pop("expect", None)
        headers[SIGNED_PATH] = self.path
        body = self._body()
        if self.proxy.page:
            self._answer(200, {"Content-Type": "text/html"}, self.proxy.page)
            return
        stand_in = http.client.HTTPConnection(self.proxy.behind)
        try:
            path = f"/{bucket}{self.path}" if bucket else self.path
            stand_in.request(self.command, path, body, headers)
            answer = stand_in.getresponse()
            content = answer.read()
            kept = {name: value for name, value in answer.getheaders() if name not in _OF_A_HOP}
            if self.command == "HEAD":
                kept["Content-Length"] = answer.getheader("Content-Length", "0")
            self._answer(answer.status, kept, content)
        finally:
            stand_in.close()

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def log_message(self, *_: object) -> None: ...


class _Tunnel(_PassesOn):
    def setup(self) -> None:
        super().setup()
        self.proxy = cast("CompanyProxy", self.server)

    def do_CONNECT(self) -> None:
        self.name = self.path.partition(":")[0]
        self.proxy.names.add(self.name)
        self.send_response(200)
        self.end_headers()
        context = self.proxy.context(self.name)
        try:
            self.connection = context.wrap_socket(self.connection, server_side=True)
        except OSError:  # whoever asks doesn't trust the CA
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False  # whatever version of HTTP asked for the tunnel


class _Direct(_PassesOn):
    def setup(self) -> None:
        server = cast("NamesOfAws", self.server)
        self.proxy = server.proxy
        self.request = server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.name = self.headers.get("Host", "") if parsed else ""
        return parsed

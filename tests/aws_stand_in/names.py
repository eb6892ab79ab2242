"""The names of AWS within an isolated cloud: where they lead, and whose certificates are trusted.

An image that boots in the cloud differs from one of AWS in these files alone, and in no variable:
`/etc/resolv.conf` names our name server, and each bundle of certificates has the cloud's CA besides
(the system's for curl and OpenSSL, certifi's for botocore).
"""

import socketserver
import ssl
import struct
from pathlib import Path

import botocore
import certifi

from tests.aws_stand_in.company_proxy import BUNDLE

LOG = "names.log"
"""A file of the cloud's home: a line for each connection to a name of AWS, whose and to which."""
_TRUSTED = "trusted.pem"
_RESOLVER = "resolv.conf"
_SUFFIX = b"\x09amazonaws\x03com\x00"
_A = 1
_ANSWER = 0x8180  # a response to a recursive query
_NO_SUCH_NAME = 3
_SYSTEM = Path("/etc/ssl/certs/ca-certificates.crt")


def write(home: Path, address: str) -> None:
    """Write the files of a cloud whose name server is at that address; its CA's is there."""
    (home / _RESOLVER).write_text(f"nameserver {address}\n")
    known = next(path for path in (_SYSTEM, Path(certifi.where())) if path.exists())
    (home / _TRUSTED).write_bytes(known.read_bytes() + (home / BUNDLE).read_bytes())


def files(home: Path) -> dict[Path, Path]:
    """Return what is visible in an image: where, and which file."""
    own = ssl.get_default_verify_paths().openssl_cafile
    bundles = (_SYSTEM, Path(own), Path(certifi.where()), Path(botocore.__file__, "../cacert.pem"))
    trusted = {path.resolve(): home / _TRUSTED for path in bundles if path.exists()}
    return {**trusted, Path("/etc/resolv.conf").resolve(): home / _RESOLVER}


class NameServer(socketserver.ThreadingUDPServer):
    """Answers that each name of AWS is at one address (IPv4), and that there is no other name."""

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__((address, 53), _Query)
        self.address = address


class _Query(socketserver.DatagramRequestHandler):
    server: NameServer

    def handle(self) -> None:
        packet: bytes = self.request[0]
        end = packet.index(b"\x00", 12) + 1
        name, question = packet[12:end], packet[12 : end + 4]
        (kind,) = struct.unpack_from(">H", packet, end)
        is_ours = name.lower().endswith(_SUFFIX)
        flags = _ANSWER if is_ours else _ANSWER | _NO_SUCH_NAME
        answer = b""
        if is_ours and kind == _A:
            address = bytes(map(int, self.server.address.split(".")))
            answer = struct.pack(">HHHIH", 0xC00C, _A, 1, 60, 4) + address
        header = packet[:2] + struct.pack(">HHHHH", flags, 1, bool(answer), 0, 0)
        self.wfile.write(header + question + answer)

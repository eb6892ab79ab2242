"""A company's package index: its address and certificates reach the head and its instances.

They are those of the variables that pip and uv read on the machine that starts a run. uv doesn't
read pip's: where one names an index alone, the other one uses it too.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cloudtune.errors import UsageError

# A file of a run's storage, and on a head the variable with its address.
CERTIFICATES: Final = "certificates.pem"
CERTIFICATES_VARIABLE: Final = "CLOUDTUNE_CERTIFICATES"
_PLACE = "/opt/cloudtune/certificates.pem"
_SYSTEM = "/etc/ssl/certs/ca-certificates.crt"
# What names a file of certificates: for uv and Python, for pip, for requests.
_FILES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
_OF_UV = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_OF_PIP = "PIP_INDEX_URL"
_NAMES = (
    *(*_OF_UV, "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INSECURE_HOST", "UV_PYTHON_INSTALL_MIRROR"),
    *(_OF_PIP, "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"),
)
_CREDENTIALS = re.compile(r"UV_INDEX_\w+_(USERNAME|PASSWORD)")
# An index of uv's may have a name in front of its address.
_NAMED = re.compile(r"[\w.-]+=(?=https?://)")
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


def index_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an index that other machines reach; {} if none is named."""
    found = {
        name: value
        for name, value in environment.items()
        if value and (name in _NAMES or _CREDENTIALS.fullmatch(name)) and not _is_here(value)
    }
    of_uv = next((found[name] for name in _OF_UV if name in found), "")
    if _OF_PIP in found and not of_uv:
        found["UV_DEFAULT_INDEX"] = found[_OF_PIP]
    if of_uv and _OF_PIP not in found:
        found[_OF_PIP] = _NAMED.sub("", of_uv)
    return found


def hosts(variables: Mapping[str, str]) -> list[str]:
    """Return the hosts of indexes, without the passwords in their addresses."""
    addresses = [text for name in _NAMES for text in variables.get(name, "").split()]
    found = (urlsplit(_NAMED.sub("", address)).hostname for address in addresses)
    return list(dict.fromkeys(filter(None, found)))


def read_certificates(environment: Mapping[str, str]) -> bytes:
    """Return the certificates that this machine trusts for its index; b"" for the usual ones.

    Raises:
        UsageError: their file can't be read.
    """
    if not index_variables(environment):
        return b""
    files = {environment[name]: name for name in _FILES if environment.get(name)}
    return b"\n".join(_read(name, file) for file, name in files.items())


def _read(name: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{name}: {file} can't be read: {error.strerror}; nothing was launched"
        ) from None


def export_lines(environment: Mapping[str, str], certificates: str = "") -> str:
    """Return lines of bash after which pip and uv use the index of an environment.

    `certificates` is the address of its certificates in S3, if it has some of its own; the usual
    ones stay valid.
    """
    variables = index_variables(environment)
    lines = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
    if not certificates:
        return lines
    uri = shlex.quote(certificates)
    exports = " ".join(f"{name}={_PLACE}" for name in _FILES)
    return (
        f"{lines}mkdir -p {Path(_PLACE).parent}\n"
        f"aws s3 cp --only-show-errors {uri} {_PLACE}.own &&\n"
        f"  cat {_SYSTEM} {_PLACE}.own > {_PLACE} &&\n"
        f"  export {exports} {CERTIFICATES_VARIABLE}={uri} ||\n"
        '  echo "cloudtune-node: the certificates of the package index can\'t be fetched"\n'
    )


def _is_here(value: str) -> bool:
    return any(urlsplit(_NAMED.sub("", text)).hostname in _HERE for text in value.split())

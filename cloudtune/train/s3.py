"""S3 through Arrow, with the settings of boto3.

Arrow finds credentials by itself, but not those of profiles that assume a role or of `aws login`:
without any it sends anonymous requests. It ignores proxies and CA bundles. So if a machine has
profiles, a proxy or a CA bundle, boto3 provides the settings, and renews expiring credentials.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from cloudtune import aws_session

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

_TRIES: dict[str, Any] = {
    "connect_timeout": 10,
    "read_timeout": 30,
    "retries": {"mode": "standard", "total_max_attempts": 2},
}
_PROXIES = {"http", "https", "all"}
_CA = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


def needs_boto3() -> bool:
    """Whether this machine has settings for AWS that Arrow ignores."""
    proxied = _PROXIES.intersection(getproxies())
    return bool(proxied) or any(map(os.environ.get, _CA)) or aws_session.has_profiles()


def file_system(bucket: str) -> S3:
    """Return the file system of a bucket, shared within this process.

    Raises:
        PermissionError: there are no credentials, or they can't be renewed.
        OSError: the bucket's region can't be determined.
    """
    # A fork lacks the threads that its parent's file system needs.
    return _file_system(bucket, aws_session.session(), os.getpid())


@lru_cache(maxsize=8)
def _file_system(bucket: str, session: object, process: int) -> S3:
    del session, process  # the cache's key
    return S3(bucket)


class S3:
    """Arrow's file system of a bucket, with all its methods and boto3's credentials.

    Raises:
        PermissionError: there are no credentials, or they can't be renewed; any method may.
        OSError: the bucket's region can't be determined.
    """

    type_name = "s3"

    def __init__(self, bucket: str) -> None:
        self._lock = threading.Lock()
        self._credentials: ReadOnlyCredentials | None = None
        self._made: Any = None
        self._options = _options(bucket)

    @property
    def region(self) -> str:
        return str(self._options["region"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)

    def _current(self) -> Any:
        """Return the file system, with renewed credentials if necessary."""
        from pyarrow import fs  # noqa: PLC0415  takes a while

        with self._lock:
            credentials = _credentials()
            if credentials != self._credentials:
                self._made = fs.S3FileSystem(
                    access_key=credentials.access_key,
                    secret_key=credentials.secret_key,
                    session_token=credentials.token,
                    **self._options,
                )
                self._credentials = credentials
            return self._made


def upload_address(uri: str, seconds: int) -> str:
    """Return an address to which anyone may upload one object (HTTP PUT) for that many seconds.

    Raises:
        PermissionError: there are no credentials, or they can't be renewed.
        OSError: the bucket's region can't be determined.
    """
    from botocore.config import Config  # noqa: PLC0415

    bucket, _, key = uri.removeprefix("s3://").partition("/")
    client = aws_session.session().client(
        "s3", region_name=file_system(bucket).region, config=Config(signature_version="s3v4")
    )
    wanted = {"Bucket": bucket, "Key": key}
    address = client.generate_presigned_url("put_object", Params=wanted, ExpiresIn=seconds)
    return str(address)


def _credentials() -> ReadOnlyCredentials:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    try:
        credentials = aws_session.session().get_credentials()
        # This renews credentials that expire within 15 minutes.
        frozen = None if credentials is None else credentials.get_frozen_credentials()
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise PermissionError(f"no AWS credentials: {error}; {aws_session.LOG_IN}") from None
    if frozen is None or not frozen.access_key:
        raise PermissionError(f"no AWS credentials; {aws_session.LOG_IN}")
    return frozen


def _options(bucket: str) -> dict[str, Any]:
    """Return the region, the address, the proxy and the certificates for a bucket."""
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    from botocore.parsers import ResponseParserError  # noqa: PLC0415
    from botocore.utils import get_environ_proxies  # noqa: PLC0415

    _credentials()  # its message is clearer than S3's
    try:
        client = aws_session.session().client("s3", config=Config(**_TRIES))
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response  # without permission S3 still says where the bucket is
    except (BotoCoreError, ResponseParserError) as error:
        raise OSError(f"bucket {bucket}: {aws_session.unreachable(error) or error}") from None
    headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region", client.meta.region_name)
    options: dict[str, Any] = {"region": region}
    address = client.meta.endpoint_url
    if ".amazonaws.com" not in address:
        options["endpoint_override"] = address
    proxies = get_environ_proxies(address)
    proxy = proxies.get(address.partition(":")[0]) or proxies.get("all")
    if proxy:
        options["proxy_options"] = proxy
    core = aws_session.session()._session  # noqa: SLF001  boto3 shows no other way to it
    bundles = (*map(os.environ.get, _CA), core.get_config_variable("ca_bundle"))
    if bundle := next(filter(None, bundles), None):
        options["tls_ca_file_path"] = bundle
    return options

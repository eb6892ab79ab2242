"""The storage of checkpoints, a local folder or S3: access, and what to do if it fails."""

import contextlib
import errno
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from cloudtune.errors import CloudtuneError
from cloudtune.train import s3

T = TypeVar("T")

# Seconds between retries after a failure of the storage.
WAITS: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
# The folder of a run's storage for the output of its workers.
LOGS: Final = "logs"
# A folder on a fast disk where files wait for their upload; by default that of temporary files.
STAGING_VARIABLE: Final = "CLOUDTUNE_STAGING"
# A request to S3 takes tens of milliseconds before its first byte, and a connection gets a part of
# the machine's network.
_REQUEST_BYTES: Final = 16 << 20
_REQUESTS_AT_ONCE: Final = 8
_SPARE_BYTES: Final = 64 << 20  # left free on a disk for other uses
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = ("ACCESS_DENIED", "AccessDenied", "Forbidden")


class CheckpointError(CloudtuneError):
    """A checkpoint is missing or was changed; the message names the file."""


class StorageError(CheckpointError):
    """The storage can't be written or read, even after retries.

    `denied`: this machine has no permission.
    """

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


class Patience:
    """Retries failed requests to a storage after each of `waits` (seconds).

    A storage that has failed all retries is tried only once each time, until it works again, so
    that training isn't held up forever.
    """

    def __init__(self, uri: str, waits: tuple[float, ...] = WAITS) -> None:
        self._uri = uri
        self._waits = self._all_waits = waits

    def insist(self, work: Callable[[], T], no_room: Callable[[], object] | None = None) -> T:
        """Do something with the storage, with retries.

        `no_room` is called if it is full, and may make room, which is waited for.

        Raises:
            StorageError: it failed each time.
        """
        waits = self._waits or (self._all_waits[:1] if no_room is not None else ())
        for wait in (*waits, None):
            try:
                done = work()
            except OSError as error:
                if no_room is not None and error.errno in _FULL:
                    no_room()
                if wait is None:
                    self._waits = ()
                    raise StorageError(
                        f"storage {self._uri}: {error}", denied=_is_denied(error)
                    ) from error
                tell(f"{error}; asked again in {wait:g} s")
                time.sleep(wait)
            else:
                self._waits = self._all_waits
                return done
        raise AssertionError("the last try returns or raises")


@contextlib.contextmanager
def storage_errors(uri: str) -> Iterator[None]:
    """Turn pyarrow's errors into a StorageError that names the storage."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own are either
        raise StorageError(f"storage {uri}: {error}") from None


def try_storage(uri: str) -> None:
    """Write a small file under `uri`, read it back and delete it.

    Raises:
        StorageError: one of these failed.
    """
    text = b"may be deleted: cloudtune tried whether the storage works\n"
    try:
        fs, root = filesystem(uri)
        path = f"{root}/.cloudtune-{uuid.uuid4().hex[:12]}"
        write_file(fs, path, text)
        data = read_file(fs, path)
        fs.delete_file(path)
    except (OSError, ValueError) as error:  # pyarrow's own are either
        raise StorageError(f"can't be used: {error}", denied=_is_denied(error)) from None
    if data != text:
        raise StorageError("gives back something else than was written")


def filesystem(uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system for `uri`, and the path within it.

    Raises:
        OSError: S3 can't be reached, or there are no credentials (PermissionError).
    """
    from pyarrow import fs  # noqa: PLC0415  # a user's script imports this file; pyarrow is heavy

    parts = urlsplit(uri)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if "://" not in uri:
        return fs.LocalFileSystem(), os.fspath(Path(uri).absolute())
    if parts.scheme == "s3" and s3.needs_boto3():
        return s3.file_system(parts.netloc), f"{parts.netloc}{parts.path}".rstrip("/")
    if parts.scheme == "s3" and endpoint:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        arrow = fs.S3FileSystem(endpoint_override=endpoint, region=region)
        return arrow, f"{parts.netloc}{parts.path}".rstrip("/")
    filesystem, path = fs.FileSystem.from_uri(uri)
    return filesystem, path.rstrip("/")


def upload_address(uri: str, seconds: int) -> str:
    """Return an address where anyone may write a file on S3 by HTTP PUT; "" for a local file.

    Raises:
        StorageError: S3 can't be reached.
    """
    if not uri.startswith("s3://"):
        return ""
    with storage_errors(uri):
        return s3.upload_address(uri, seconds)


def content(uri: str) -> bytes:
    """Return the contents of a file; b"" if there is none.

    Raises:
        StorageError: the storage can't be reached.
    """
    with storage_errors(uri):
        return read_file(*filesystem(uri)) or b""


def read_file(files: Any, path: str) -> bytes | None:
    """Return the contents of a file, decompressed by its name; None if there is none."""
    try:
        with files.open_input_stream(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


class ReadAhead:
    """A remote file that is read from its beginning on, by several requests at once."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size = file.size()
        self._asked = 0
        self._requests: deque[Future[bytes]] = deque()
        self._pool = ThreadPoolExecutor(_REQUESTS_AT_ONCE)

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()

    def read(self, _size: int) -> bytes:
        """Return the next bytes, as many as a request gets; b"" at the end."""
        while self._asked < self._size and len(self._requests) < _REQUESTS_AT_ONCE:
            request = self._pool.submit(self._file.read_at, _REQUEST_BYTES, self._asked)
            self._requests.append(request)
            self._asked += _REQUEST_BYTES
        return self._requests.popleft().result() if self._requests else b""


def open_file(files: Any, path: str) -> Any:
    """Open a file to be read once, from its beginning to its end."""
    if is_local(files):
        # By default Arrow decompresses by the name.
        return files.open_input_stream(path, compression=None)
    return ReadAhead(files.open_input_file(path))


def write_file(files: Any, path: str, data: bytes, compression: str | None = "detect") -> None:
    """Write a file to pyarrow's file system, by default compressed by its name."""
    if is_local(files):  # S3 has no folders
        files.create_dir(path.rpartition("/")[0], recursive=True)
    with files.open_output_stream(path, compression=compression) as out:
        out.write(data)


def is_local(filesystem: Any) -> bool:
    """Whether a file system is on this machine."""
    return bool(filesystem.type_name == "local")


def staging_folder(size: int = 0, what: str = "a checkpoint") -> str:
    """Return the folder where `size` bytes may wait: the staging folder, or the usual one.

    `what` is for the error.

    Raises:
        OSError: neither has that much room.
    """
    own = os.environ.get(STAGING_VARIABLE)
    usual = tempfile.gettempdir()
    if own and os.access(own, os.W_OK) and shutil.disk_usage(own).free >= size + _SPARE_BYTES:
        return own
    free = shutil.disk_usage(usual).free
    if free < size:
        room = f"{what} of {size / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB free"
        raise OSError(errno.ENOSPC, f"{room} in {usual}{f' and too few in {own}' if own else ''}")
    return usual


def entries(filesystem: Any, folder: str) -> list[Any]:
    """Return the entries of a folder; none if it doesn't exist.

    Names that aren't UTF-8 are left out: pyarrow can't read them, and they aren't ours.

    Raises:
        OSError: the storage fails.
    """
    from pyarrow import fs  # noqa: PLC0415

    selected = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return [info for info in selected if _is_readable(info)]


def _is_readable(info: Any) -> bool:
    try:
        return bool(info.path)  # reading it decodes it
    except UnicodeError:
        return False


def delete(filesystem: Any, info: Any) -> None:
    """Delete a file or a folder."""
    if info.is_file:
        filesystem.delete_file(info.path)
    else:
        filesystem.delete_dir(info.path)


def _is_denied(error: Exception) -> bool:
    return isinstance(error, PermissionError) or any(word in str(error) for word in _DENIED)


@contextlib.contextmanager
def best_effort() -> Iterator[None]:
    """Ignore failures of mere clean-up, which don't harm a trial."""
    try:
        yield
    except OSError as error:
        tell(f"an old checkpoint could not be deleted: {error}")


def tell(text: str) -> None:
    """Log that the storage is in trouble."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"storage: {text}\n")

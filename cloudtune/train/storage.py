"""Where checkpoints are kept, a local folder or S3: how it is reached, and what if it fails."""

import contextlib
import errno
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from cloudtune.errors import CloudtuneError
from cloudtune.train import s3

T = TypeVar("T")

# Seconds until a storage that failed is asked again, and again.
WAITS: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
# The folder of a run's storage that has what its workers printed.
LOGS: Final = "logs"
# A folder of a fast disk, where files wait for the storage; else they do among temporary ones.
STAGING_VARIABLE: Final = "CLOUDTUNE_STAGING"
_SPARE_BYTES: Final = 64 << 20  # of a disk, for what else is on it
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = ("ACCESS_DENIED", "AccessDenied", "Forbidden")


class CheckpointError(CloudtuneError):
    """A checkpoint is missing or isn't what was saved; the message names the file."""


class StorageError(CheckpointError):
    """The storage can't be written or read, though it was asked several times.

    `denied` says that it doesn't let this machine in.
    """

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


class Patience:
    """Asks a storage that fails again, after each of `waits` (seconds).

    One that failed to the last is asked once each time, until it works again: what trains there
    isn't held up for ever.
    """

    def __init__(self, uri: str, waits: tuple[float, ...] = WAITS) -> None:
        self._uri = uri
        self._waits = self._all_waits = waits

    def insist(self, work: Callable[[], T], no_room: Callable[[], object] | None = None) -> T:
        """Do something with the storage, again where it fails.

        `no_room` is called where it is full, and may have some made: that is waited for.

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
    """Raise what pyarrow raises of a storage as a StorageError that names it."""
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
    """Give pyarrow's file system for `uri`, and the path within it.

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
    """Return an address where anyone may write a file of S3 by HTTP PUT; "" for a folder's.

    Raises:
        StorageError: S3 can't be reached.
    """
    if not uri.startswith("s3://"):
        return ""
    with storage_errors(uri):
        return s3.upload_address(uri, seconds)


def content(uri: str) -> bytes:
    """Return what is in a file; b"" where there is none.

    Raises:
        StorageError: the storage can't be reached.
    """
    with storage_errors(uri):
        return read_file(*filesystem(uri)) or b""


def read_file(files: Any, path: str) -> bytes | None:
    """Return what is in a file of pyarrow's file system, unpacked by its name; None without one."""
    try:
        with files.open_input_stream(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


def write_file(files: Any, path: str, data: bytes, compression: str | None = "detect") -> None:
    """Write a file to pyarrow's file system; by default packed as its name says."""
    if is_local(files):  # S3 has no folders
        files.create_dir(path.rpartition("/")[0], recursive=True)
    with files.open_output_stream(path, compression=compression) as out:
        out.write(data)


def is_local(filesystem: Any) -> bool:
    """Whether a file system is a folder of this machine."""
    return bool(filesystem.type_name == "local")


def staging_folder(size: int = 0) -> str:
    """Give the folder where `size` bytes may wait: of the staging disk, or the usual one.

    Raises:
        OSError: neither has that much room.
    """
    own = os.environ.get(STAGING_VARIABLE)
    usual = tempfile.gettempdir()
    if own and os.access(own, os.W_OK) and shutil.disk_usage(own).free >= size + _SPARE_BYTES:
        return own
    free = shutil.disk_usage(usual).free
    if free < size:
        room = f"a checkpoint of {size / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB free"
        raise OSError(errno.ENOSPC, f"{room} in {usual}{f' and too few in {own}' if own else ''}")
    return usual


def entries(filesystem: Any, folder: str) -> list[Any]:
    """Give what is in a folder; nothing if there is none.

    What has a name that isn't UTF-8 is left out: pyarrow can't read it, and it isn't ours.

    Raises:
        OSError: the storage fails.
    """
    from pyarrow import fs  # noqa: PLC0415

    selected = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return [info for info in selected if _is_readable(info)]


def _is_readable(info: Any) -> bool:
    try:
        return bool(info.path)  # it is decoded as it is looked at
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
    """Let what only tidies up fail: a trial is no worse for it."""
    try:
        yield
    except OSError as error:
        tell(f"an old checkpoint could not be deleted: {error}")


def tell(text: str) -> None:
    """Say in the log of whoever trains that the storage is in trouble."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"storage: {text}\n")

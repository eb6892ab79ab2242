"""Packs of environments in the storage of runs, by the hash of what they are made from.

    STORAGE/environments/HASH/BUILD.building   somebody packs it, since it was written
    STORAGE/environments/HASH/BUILD.tar.zst    the pack; gzip's where zstd isn't to be had
    STORAGE/environments/HASH/manifest.json    which pack counts, written last

Two who build the same at once disturb nobody: each has a pack of its own, and the last manifest
names one of them. What a crash has left is removed by whoever packs the same a day later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import subprocess
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cloudtune.errors import CloudtuneError
from cloudtune.infra.environments import fetch
from cloudtune.infra.environments.build import Built, found
from cloudtune.infra.environments.delivery import Pack
from cloudtune.train.storage import StorageError, best_effort, delete, entries, filesystem, is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOLDER = "environments"
MANIFEST = "manifest.json"
_BUILDING = ".building"
_OLD_SECONDS = 24 * 3600.0
_PIECE = 8 << 20


def is_there(pack: Pack) -> bool:
    """Whether a pack is still where it was put: a rule of the bucket may have deleted it.

    Raises:
        StorageError: the storage can't be reached.
    """
    try:
        fs, path = filesystem(pack.uri)
        return bool(fs.get_file_info(path).size == pack.bytes)
    except (OSError, ValueError) as error:  # pyarrow's own are of these two
        raise StorageError(f"storage {pack.uri}: {error}") from None


class Shelf:
    """The packs of one environment, which stands at `place`, in a storage.

    Raises:
        StorageError: the storage can't be reached; any method may.
    """

    def __init__(self, storage: str, place: Path) -> None:
        self.place = place
        self.uri = f"{storage.rstrip('/')}/{FOLDER}/{place.name}"
        with self._told():
            self._fs, self._root = filesystem(self.uri)

    def pack(self) -> Pack | None:
        """Return the pack that counts; None where there is none."""
        with self._told():
            try:
                with self._fs.open_input_stream(f"{self._root}/{MANIFEST}") as file:
                    told = json.loads(file.read())
                found = Pack(**told["pack"])
                info = self._fs.get_file_info(f"{self._root}/{found.uri.rpartition('/')[2]}")
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                return None
        return found if info.is_file and info.size == found.bytes else None

    def put(self, built: Built, say: Callable[[str], None]) -> Pack:
        """Pack what was built, and return it; from then on it counts."""
        began, name = time.monotonic(), f"{int(time.time())}-{secrets.token_hex(4)}"
        tail, compress = _compressor()
        path = f"{self._root}/{name}{tail}"
        with self._told():
            if is_local(self._fs):  # S3 has no folders
                self._fs.create_dir(self._root, recursive=True)
            self._write(f"{name}{_BUILDING}", {"began": time.time()})
            size, digest = self._pack(path, compress)
            seconds = built.seconds + time.monotonic() - began
            uri = f"{self.uri}/{name}{tail}"
            pack = Pack(uri, digest, size, str(self.place), built.version, round(seconds, 1))
            told = {"pack": asdict(pack), "packages": built.packages}
            self._write(MANIFEST, told)
            with best_effort():
                self._fs.delete_file(f"{self._root}/{name}{_BUILDING}")
                self._tidy()
        say(f"setup: {size / 1e6:.0f} MB packed into {uri} in {time.monotonic() - began:.0f} s")
        return pack

    def bring(self, pack: Pack) -> Built:
        """Return the environment of a pack, unpacked here if it isn't there.

        Raises:
            CloudtuneError: it can't be unpacked.
        """
        there = found(self.place)
        if there is None:
            try:
                with self._told():
                    shutil.rmtree(self.place, ignore_errors=True)
                    fetch.unpack(self._pieces(pack), asdict(pack))
            except StorageError as error:
                raise CloudtuneError(f"setup: {pack.uri} can't be unpacked: {error}") from None
            there = found(self.place)
            if there is None:
                raise CloudtuneError(f"setup: {pack.uri} is no environment: delete it")
        return there

    def _pieces(self, pack: Pack) -> Iterator[bytes]:
        path = f"{self._root}/{pack.uri.rpartition('/')[2]}"
        with self._fs.open_input_stream(path, compression=None) as file:
            while data := file.read(_PIECE):
                yield data

    def _pack(self, path: str, compress: list[str]) -> tuple[int, str]:
        """Write the pack, and return its length and its SHA-256."""
        size, digest, pipe = 0, hashlib.sha256(), subprocess.PIPE
        command = ["tar", "-cf", "-", "--owner=0", "--group=0", "-C", str(self.place), "."]
        with (
            subprocess.Popen(command, stdout=pipe) as tar,
            subprocess.Popen(compress, stdin=tar.stdout, stdout=pipe) as packed,
            self._fs.open_output_stream(path, compression=None) as out,
        ):
            assert tar.stdout is not None
            assert packed.stdout is not None
            tar.stdout.close()
            while data := packed.stdout.read(_PIECE):
                digest.update(data)
                size += len(data)
                out.write(data)
            if (tar.wait(), packed.wait()) != (0, 0):
                raise StorageError(f"{self.place} can't be packed: tar or {compress[0]} failed")
        return size, digest.hexdigest()

    def _write(self, name: str, told: dict[str, Any]) -> None:
        with self._fs.open_output_stream(f"{self._root}/{name}") as out:
            out.write(json.dumps(told, indent=1).encode())

    def _tidy(self) -> None:
        """Remove packs that don't count, of builds that began a day ago or before."""
        counts = self.pack()
        for info in entries(self._fs, self._root):
            began = info.base_name.partition("-")[0]
            old = began.isdecimal() and int(began) < time.time() - _OLD_SECONDS
            if old and counts is not None and info.base_name != counts.uri.rpartition("/")[2]:
                delete(self._fs, info)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except (OSError, ValueError) as error:  # pyarrow's own are of these two
            raise StorageError(f"storage {self.uri}: {error}") from None


def _compressor() -> tuple[str, list[str]]:
    if shutil.which("zstd") is not None:
        return ".tar.zst", ["zstd", "-q", "-T0", "-3", "-c"]
    return ".tar.gz", ["gzip", "-1", "-c"]

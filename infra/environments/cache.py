"""Packs of environments in the storage of runs, by the hash of their inputs.

    STORAGE/environments/HASH/TIME-….tar.zst    a pack; with gzip if zstd isn't installed
    STORAGE/environments/HASH/manifest.json     the pack that counts, written last

Two machines may build the same environment at once: each writes its own pack, and the last manifest
names one of them. A pack made a day later deletes the others.
"""

import hashlib
import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from cloudtune.errors import CloudtuneError
from cloudtune.infra.environments.build import Built, read_built
from cloudtune.infra.environments.delivery import Pack, zip_program
from cloudtune.train import storage

FOLDER = "environments"
MANIFEST = "manifest.json"
_OLD_SECONDS = 24 * 3600.0
_PIECE = 8 << 20


def is_there(pack: Pack) -> bool:
    """Whether a pack still exists: a rule of the bucket may have deleted it.

    Raises:
        StorageError: the storage can't be reached.
    """
    with storage.storage_errors(pack.uri):
        fs, path = storage.filesystem(pack.uri)
        return bool(fs.get_file_info(path).size == pack.bytes)


class EnvironmentCache:
    """The packs in a storage of the environment at `place`.

    Raises:
        StorageError: the storage can't be reached; any method may.
    """

    def __init__(self, root: str, place: Path) -> None:
        self.place = place
        self.uri = f"{root.rstrip('/')}/{FOLDER}/{place.name}"
        with storage.storage_errors(self.uri):
            self._fs, self._root = storage.filesystem(self.uri)

    def pack(self) -> Pack | None:
        """Return the pack that counts; None if there is none."""
        with storage.storage_errors(self.uri):
            try:
                text = storage.read_file(self._fs, f"{self._root}/{MANIFEST}")
                manifest = json.loads(text or b"")
                pack = Pack(**manifest["pack"])
                info = self._fs.get_file_info(self._path(pack))
            except (ValueError, KeyError, TypeError):
                return None
        return pack if info.is_file and info.size == pack.bytes else None

    def put(self, built: Built, say: Callable[[str], None]) -> Pack:
        """Pack a built environment, and return the pack, which counts from then on."""
        began = time.monotonic()
        tail = ".tar.gz"
        compress = "gzip -1"
        if shutil.which("zstd") is not None:
            tail = ".tar.zst"
            compress = "zstd -q -T0 -3"
        name = f"{int(time.time())}-{secrets.token_hex(4)}{tail}"
        with storage.storage_errors(self.uri):
            if storage.is_local(self._fs):  # S3 has no folders
                self._fs.create_dir(self._root, recursive=True)
            size, digest = self._write(f"{self._root}/{name}", compress)
            seconds = round(built.seconds + time.monotonic() - began, 1)
            uri = f"{self.uri}/{name}"
            pack = Pack(uri, digest, size, str(self.place), built.version, seconds)
            manifest = json.dumps({"pack": asdict(pack), "packages": built.packages}, indent=1)
            storage.write_file(self._fs, f"{self._root}/{MANIFEST}", manifest.encode())
            with storage.best_effort():
                self._tidy()
        say(f"setup: {size / 1e6:.0f} MB packed into {uri} in {time.monotonic() - began:.0f} s")
        return pack

    def bring(self, pack: Pack) -> Built:
        """Return the environment of a pack, unpacked here if necessary.

        Raises:
            CloudtuneError: it can't be unpacked.
        """
        if (built := read_built(self.place)) is not None:
            return built
        shutil.rmtree(self.place, ignore_errors=True)
        part = self.place.with_name(f"{self.place.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            with storage.storage_errors(self.uri):
                self._unpack(pack, part)
        except storage.StorageError as error:
            raise CloudtuneError(f"setup: {pack.uri} can't be unpacked: {error}") from None
        part.rename(self.place)
        if (built := read_built(self.place)) is None:
            raise CloudtuneError(f"setup: {pack.uri} is no environment: delete it")
        return built

    def _path(self, pack: Pack) -> str:
        return f"{self._root}/{pack.uri.rpartition('/')[2]}"

    def _write(self, path: str, compress: str) -> tuple[int, str]:
        """Write a pack, and return its length and SHA-256."""
        size = 0
        digest = hashlib.sha256()
        command = ["tar", "-I", compress, "-cf", "-", "--owner=0", "--group=0"]
        with (
            subprocess.Popen([*command, "-C", self.place, "."], stdout=subprocess.PIPE) as tar,
            self._fs.open_output_stream(path, compression=None) as out,
        ):
            assert tar.stdout is not None
            for data in iter(partial(tar.stdout.read, _PIECE), b""):
                digest.update(data)
                size += len(data)
                out.write(data)
        if tar.returncode != 0:
            raise storage.StorageError(f"{self.place} can't be packed: tar or {compress} failed")
        return size, digest.hexdigest()

    def _unpack(self, pack: Pack, folder: Path) -> None:
        digest = hashlib.sha256()
        command = ["tar", "-I", zip_program(pack.uri), "-xf", "-", "--no-same-owner"]
        with (
            self._fs.open_input_stream(self._path(pack), compression=None) as file,
            subprocess.Popen([*command, "-C", folder], stdin=subprocess.PIPE) as tar,
        ):
            assert tar.stdin is not None
            for data in iter(partial(file.read, _PIECE), b""):
                digest.update(data)
                tar.stdin.write(data)
        if tar.returncode != 0 or digest.hexdigest() != pack.sha256:
            raise storage.StorageError("it isn't what was packed, or the disk is full")

    def _tidy(self) -> None:
        """Delete packs that don't count and are older than a day."""
        counts = self.pack()
        for info in storage.entries(self._fs, self._root):
            began = info.base_name.partition("-")[0]
            is_old = began.isdecimal() and int(began) < time.time() - _OLD_SECONDS
            if is_old and counts is not None and info.base_name != counts.uri.rpartition("/")[2]:
                storage.delete(self._fs, info)

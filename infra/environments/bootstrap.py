"""The environment of a head whose image has no cloudtune.

The launcher puts cloudtune as a wheel into the bucket, with the versions of all packages that this
release was tested with, and the hashes of their files. The head fetches it, gets uv, and only
installs files with these hashes; later heads fetch the pack of the first one, whoever launches
them. Its instances get the same environment, because they boot the same image.
"""

import gzip
import hashlib
import io
import json
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtune.infra.environments import delivery
from cloudtune.infra.environments.cache import FOLDER, EnvironmentCache
from cloudtune.infra.environments.release import release_pins
from cloudtune.infra.environments.spec import ROOT
from cloudtune.infra.environments.wheel import code_hash, write_wheel
from cloudtune.train.storage import filesystem, storage_errors, write_file

_DIGITS = 20
# Ends the machine after a failed install; uv and pip name a file that differs from its record.
_REFUSE = r"""refuse() {
  cat "$source/why" >&2
  other=$(sed -nE 's/.*Hash mismatch for `([^ `]+).*/\1/p; s/^ +(uv==[^ ]+) from .*/\1/p' \
    "$source/why" | head -n 1)
  [ -z "$other" ] || end "$other doesn't match its recorded hash: the index, or a proxy, serves\
 another file than this release was tested with; nothing was installed"
  end "$1"
}
"""


@dataclass(frozen=True)
class Foundation:
    """A pack of the files to install, and where; `packed` is an earlier result, if there is one.

    `unhashed` says what is installed without recorded hashes, and why; "" if nothing is.
    """

    source: delivery.Pack
    place: str
    python: str
    packed: delivery.Pack | None = None
    unhashed: str = ""

    def lines(self) -> str:
        """Return the lines of bash after which `$python` has cloudtune: the image's, or ours."""
        built = self._build_lines() if self.packed is None else delivery.fetch_lines(self.packed)
        return (
            f"{delivery.AWAIT_APT}"
            f"{delivery.end_lines('cloudtune-head')}"
            f"{delivery.search_lines(delivery.image_pythons())}"
            'if [ -z "$python" ]; then\n'
            f"{built}{delivery.activate_lines(Path(self.place))}"
            "fi\n"
            'echo "cloudtune-head: $("$python" -V 2>&1) at $python"\n'
        )

    def _build_lines(self) -> str:
        place = shlex.quote(self.place)
        source = shlex.quote(self.source.into)
        strict = "--require-hashes --no-build "
        warning = ""
        if self.unhashed:
            strict = ""
            line = f"cloudtune-head: installed without recorded hashes: {self.unhashed}"
            warning = f"echo {shlex.quote(line)}\n"
        return (
            f"{delivery.fetch_lines(self.source)}{_REFUSE}"
            f"place={place} source={source}\n"
            'rm -rf "$place"\n'
            "python=$(command -v python3) || end 'the image has no python3'\n"
            "uv=$(command -v uv) || {\n"
            '  "$python" -m pip --version > /dev/null 2>&1 || {\n'
            "    await_apt; apt-get update -qq; apt-get install -qq -y python3-pip || "
            "dnf install -q -y python3-pip\n"
            "  } > /dev/null 2>&1\n"
            '  "$python" -m pip install -q --target "$source/uv" --require-hashes '
            '-r "$source/uv.txt" 2> "$source/why" || refuse "no uv from its index"\n'
            "  uv=$source/uv/bin/uv\n"
            "}\n"
            f'echo "cloudtune-head: installing Python {self.python}, Ray, torch and cloudtune; '
            'that takes minutes, and later heads fetch them"\n'
            f"{warning}"
            f'"$uv" python install -q --no-bin --install-dir "$place/python" {self.python} ||\n'
            '  echo "cloudtune-head: uv has no such Python for us; one of the image is taken"\n'
            'export UV_PYTHON_INSTALL_DIR="$place/python"\n'
            f'"$uv" venv -q --python {self.python} "$place/venv" || end "no Python {self.python}"\n'
            "python=$place/venv/bin/python\n"
            f'"$uv" pip install -q --compile-bytecode {strict}--python "$python" '
            '-r "$source/ours.txt" -r "$source/uv.txt" -c "$source/pins.txt" 2> "$source/why" || '
            'refuse "cloudtune can\'t be installed"\n'
            '"$python" -I -m cloudtune.infra.environments.build "$place" $SECONDS || '
            'end "its environment isn\'t whole"\n'
            'rm -rf "$source"\n'
        )


def _python() -> str:
    return f"3.{sys.version_info.minor}"  # uv has few patch levels, and images have others


def _place(root: Path, pins: Sequence[str]) -> Path:
    inputs = json.dumps(["head", _python(), pins, code_hash(), str(root)])
    return root / hashlib.sha256(inputs.encode()).hexdigest()[:_DIGITS]


def is_packed(storage: str) -> bool:
    """Whether a storage has the environment of an earlier head, so that none is installed.

    Raises:
        StorageError: the storage can't be reached.
    """
    pins, _ = release_pins()
    return EnvironmentCache(storage, _place(ROOT, pins)).pack() is not None


def lay(storage: str, root: Path = ROOT) -> Foundation:
    """Put the files for a head's environment into a storage, once for equal code.

    Raises:
        StorageError: the storage can't be reached.
    """
    python = _python()
    pins, unhashed = release_pins()
    place = _place(root, pins)
    data = _source(pins, f"{place}.source")
    uri = f"{storage.rstrip('/')}/{FOLDER}/{place.name}/source.tar.gz"
    with storage_errors(uri):
        fs, path = filesystem(uri)
        if fs.get_file_info(path).size != len(data):
            write_file(fs, path, data, compression=None)
    digest = hashlib.sha256(data).hexdigest()
    source = delivery.Pack(uri, digest, len(data), f"{place}.source", python, 0.0)
    packed = EnvironmentCache(storage, place).pack()
    return Foundation(source, str(place), python, packed, unhashed)


def _source(pins: Sequence[str], into: str) -> bytes:
    """Return the pack of cloudtune's wheel and its requirements; equal code gives equal bytes.

    A head builds environments itself, so it needs uv.
    """
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = write_wheel(Path(folder))
        wheel = path.read_bytes()
    ours = (
        f"cloudtune @ file://{into}/{path.name} --hash=sha256:{hashlib.sha256(wheel).hexdigest()}"
    )
    uv = next(line for line in pins if line.startswith("uv=="))
    files = {
        path.name: wheel,
        "ours.txt": f"{ours}\n".encode(),
        "uv.txt": f"{uv}\n".encode(),
        "pins.txt": "".join(f"{line}\n" for line in pins).encode(),
    }
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)

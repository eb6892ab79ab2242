"""Builds an environment with uv: its own Python, cloudtune, and the script's requirements.

It contains its Python, so it only needs C libraries of the image. It is built at its final path,
which its programs contain, and counts once it has its `.complete`: an incomplete one is built
again.
"""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cloudtune.errors import CloudtuneError, UsageError, need
from cloudtune.file_locks import lock_file
from cloudtune.infra.environments.delivery import COMPLETE, python_path
from cloudtune.infra.environments.spec import Spec
from cloudtune.infra.environments.wheel import write_wheel
from cloudtune.infra.processes import write_atomically

_LINES = 15
_SYSTEM = {"/", "/usr", "/usr/local"}
# Parts of a Python that aren't copied: its tests, and installed packages.
_NOT_COPIED = (
    *("__pycache__", "test", "tests", "idlelib", "turtledemo", "*.a", "share", "site-packages"),
)


@dataclass(frozen=True)
class Built:
    """An environment on this machine: its folder, and how it was made.

    `python` is its interpreter, `version` the interpreter's version; `seconds` the time of the
    build.
    """

    place: Path
    version: str
    seconds: float
    packages: tuple[str, ...]

    @property
    def python(self) -> Path:
        return python_path(self.place)


def read_built(place: Path) -> Built | None:
    """Return the environment in a folder; None if there is none, or an incomplete one."""
    try:
        written = json.loads((place / COMPLETE).read_text(encoding="utf-8"))
        return Built(place, written["version"], written["seconds"], tuple(written["packages"]))
    except (OSError, ValueError, KeyError):
        return None


def build(spec: Spec, say: Callable[[str], None]) -> Built:
    """Return the environment of a specification, built if necessary.

    Raises:
        UsageError: uv is missing, its folder can't be written, or the requirements can't be
            installed together: the message has uv's last lines.
    """
    with _alone(spec.place):
        if (built := read_built(spec.place)) is not None:
            return built
        uv = uv_program()
        began = time.monotonic()
        shutil.rmtree(spec.place, ignore_errors=True)
        work = spec.place / "work"
        work.mkdir(parents=True)
        try:
            _build(spec, uv, work, say)
        except BaseException:
            shutil.rmtree(spec.place, ignore_errors=True)
            raise
        shutil.rmtree(work)
        return complete(spec.place, uv, time.monotonic() - began)


def uv_program() -> str:
    """Return the path of uv, on the PATH or from the package.

    Raises:
        UsageError: it isn't installed.
    """
    program = shutil.which("uv")
    if program is None:
        need("aws", "setup", "uv")
        from uv import find_uv_bin  # noqa: PLC0415

        program = str(find_uv_bin())
    return program


def _build(spec: Spec, uv: str, work: Path, say: Callable[[str], None]) -> None:
    say(f"setup: {spec.source} is resolved for Python {spec.python}")
    ours = work / "ours.txt"
    pins = work / "pins.txt"
    lock = work / "lock.txt"
    ours.write_text(f"cloudtune @ {write_wheel(work).as_uri()}\n" + "\n".join(spec.lines) + "\n")
    pins.write_text("\n".join(spec.pins) + "\n")
    own = spec.folder if spec.file is None else spec.file.parent
    files = [str(ours)] if spec.file is None else [str(spec.file), str(ours)]
    _uv(
        [
            *(uv, "pip", "compile", *files, "-c", str(pins), "--python-version", spec.python),
            *("-o", str(lock), "--quiet", "--no-annotate", "--no-emit-package", "cloudtune"),
        ],
        f"{spec.source}: the requirements can't be had together",
        cwd=own,
    )
    count = sum(not line.startswith(("-", "#", " ")) for line in lock.read_text().splitlines())
    say(f"setup: Python {spec.python} and {count} packages are installed into {spec.place}")
    python = _python(spec, uv, say)
    venv = spec.place / "venv"
    _uv([uv, "venv", "--quiet", "--python", str(python), str(venv)], "no environment can be made")
    wanted = [word for file in files for word in ("-r", file)]  # their options count here too
    _uv(
        [
            *(uv, "pip", "install", "--quiet", "--python", str(python_path(spec.place))),
            *("--compile-bytecode", *wanted, "-c", str(lock)),
        ],
        f"{spec.source}: can't be installed",
        cwd=own,
    )
    check = "import cloudtune.infra.node.boot, ray"
    _run([str(python_path(spec.place)), "-I", "-c", check], "the environment doesn't work")


def _python(spec: Spec, uv: str, say: Callable[[str], None]) -> Path:
    """Put a Python of the wanted version into the environment, and return its interpreter.

    It is one of uv's, which run on any Linux, or else a copy of a local one.

    Raises:
        UsageError: neither is available.
    """
    folder = spec.place / "python"
    try:
        _uv(
            [uv, "python", "install", spec.python, "--install-dir", str(folder), "--no-bin"],
            f"Python {spec.python} can't be had",
        )
        (interpreter,) = folder.glob("cpython-*/bin/python3")
    except (UsageError, ValueError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        base = _base_here(spec.python, uv)
        if base is None:
            raise UsageError(f"setup.python: {error}") from None
        say(f"setup: uv has no Python {spec.python} for us, so that of {base} is copied")
        copied = folder / "copied"
        shutil.copytree(base, copied, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        interpreter = copied / "bin" / "python3"
    return interpreter


def _base_here(wanted: str, uv: str) -> Path | None:
    """Return the folder of a local Python of this version that can be copied (not the system's)."""
    if platform.python_version() == wanted or platform.python_version().startswith(f"{wanted}."):
        base = sys.base_prefix
    else:
        command = [uv, "python", "find", "--no-python-downloads", "--system", wanted]
        try:
            answer = _run(command, "")
        except CloudtuneError:
            return None
        base = str(Path(answer.strip()).resolve().parents[1])
    return None if base in _SYSTEM else Path(base)


def complete(place: Path, uv: str, seconds: float) -> Built:
    """Mark an environment as complete, and return it."""
    python = python_path(place)
    version = _run([str(python), "-c", "import platform; print(platform.python_version())"], "")
    listed = _uv([uv, "pip", "freeze", "--quiet", "--python", str(python)], "can't be listed")
    packages = tuple(line for line in listed.splitlines() if "==" in line)
    built = Built(place, version.strip(), round(seconds, 1), packages)
    text = json.dumps({**asdict(built), "place": str(place)}, indent=1)
    write_atomically(place / COMPLETE, text)
    return built


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Let one process at a time build an environment.

    Raises:
        UsageError: its folder can't be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_file(place.parent / f".{place.name}.lock"))
        except OSError as error:
            raise UsageError(
                f"setup: {place.parent} can't be written ({error.strerror}); environments stand "
                f"there on each instance, and are built in the same place: sudo install -d -o "
                f"$USER {place.parent}"
            ) from None
        yield


def _uv(command: Sequence[str], what: str, cwd: Path | None = None) -> str:
    try:
        return _run(command, what, cwd)
    except CloudtuneError as error:
        raise UsageError(str(error)) from None


def _run(command: Sequence[str], what: str, cwd: Path | None = None) -> str:
    own_python = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON")
    done = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in own_python},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LINES:])
        raise CloudtuneError(f"{what}; nothing was launched.\n{last}")
    return done.stdout


if __name__ == "__main__":  # by the lines of `foundation`, which have built it
    complete(Path(sys.argv[1]), uv_program(), float(sys.argv[2]))

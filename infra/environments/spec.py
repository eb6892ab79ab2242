"""The inputs of an environment: read, checked and hashed.

The hash covers everything that determines the result: the version of Python, the requirements with
every file that they name, cloudtune's own code and the versions of Ray and torch, the package
index, the platform, and the environment's folder. Requirements that leave a version open keep the
version found when the environment was built.
"""

import hashlib
import json
import os
import platform
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cloudtune.errors import UsageError, quote
from cloudtune.experiment.schema import Experiment
from cloudtune.infra.environments.wheel import code_hash

# The folder of environments on instances; installed programs contain their paths.
ROOT = Path("/opt/cloudtune/environments")
# Controller and nodes need the same Ray; torch is pinned unless the script names a version.
PINNED = ("ray", "torch")
_FORMAT = 1
_DIGITS = 20
# Options that name another file, and whether its lines are installed.
_FILES = {"-r": True, "--requirement": True, "-c": False, "--constraint": False}
_CONTINUED = re.compile(r"\\\n")
_COMMENT = re.compile(r"(^|\s)#.*")
_AFTER = re.compile(r"\s--(hash|config-settings?|global-option)[= ].*")
_WHERE_FROM = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("UV_NO_INDEX", "UV_TORCH_BACKEND", "UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_RESOLUTION"),
)


@dataclass(frozen=True)
class Spec:
    """The inputs of one environment.

    `source` is where the requirements were written: a file, or the field. `lines` are requirements
    outside files. Relative paths start in `folder`. `inputs` has everything that determines the
    result, by name.
    """

    python: str
    source: str
    folder: Path
    file: Path | None
    lines: tuple[str, ...]
    pins: tuple[str, ...]
    root: Path
    inputs: Mapping[str, str] = field(repr=False)

    @property
    def digest(self) -> str:
        text = json.dumps([_FORMAT, dict(self.inputs)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    @property
    def place(self) -> Path:
        """The environment's folder, here and on every instance."""
        return self.root / self.digest


def requirement_files(experiment: Experiment) -> tuple[Path, ...]:
    """Return the files of the requirements, and those that they name.

    Raises:
        UsageError: a file is missing, or a line isn't a requirement; the message has its place.
    """
    return tuple(path for path in _read(experiment).files if path.is_file())


def requirement_names(experiment: Experiment) -> list[str]:
    """Return the packages that an experiment requires, by their canonical names.

    Raises:
        UsageError: as `requirement_files`.
    """
    return [canonicalize_name(requirement.name) for requirement in _read(experiment).requirements]


def make_spec(experiment: Experiment, root: Path = ROOT) -> Spec:
    """Return the specification of an experiment's environment.

    Raises:
        UsageError: as `requirement_files`.
    """
    setup = experiment.setup
    folder = experiment.directory
    reader = _read(experiment)
    file = folder / setup.pip if isinstance(setup.pip, str) else None
    lines = setup.pip if isinstance(setup.pip, tuple) else ()
    python = platform.python_version()
    if setup.python is not None and not python.startswith(f"{setup.python}."):
        python = setup.python
    pinned = tuple(pins({canonicalize_name(named.name) for named in reader.requirements}))
    inputs = {
        "python": python,
        "lines": "\n".join(lines),
        **{f"file {os.path.relpath(path, folder)}": text for path, text in reader.files.items()},
        "pins": "\n".join(pinned),
        "cloudtune": code_hash(),
        "platform": f"{sys.platform} {platform.machine()}",
        "root": str(root),
        **{name: os.environ[name] for name in _WHERE_FROM if name in os.environ},
    }
    source = "setup.pip" if file is None else str(file)
    return Spec(python, source, folder, file, lines, pinned, root, inputs)


def _read(experiment: Experiment) -> "_Reader":
    reader = _Reader()
    wanted = experiment.setup.pip
    if isinstance(wanted, str):
        path = experiment.directory / wanted
        reader.read(path, str(path))
    else:
        reader.requirements += [Requirement(line) for line in wanted or ()]
    return reader


def pins(named: Collection[str]) -> Iterator[str]:
    """Yield the versions of packages that must match this machine's, unless the user names them."""
    for name in PINNED:
        if name == "ray" or name not in named:
            try:
                yield f"{name}=={version(name).partition('+')[0]}"
            except PackageNotFoundError:  # a laptop that only sends runs may lack it
                continue


class _Reader:
    """Reads files of requirements, each once."""

    def __init__(self) -> None:
        self.files: dict[Path, str] = {}
        self.requirements: list[Requirement] = []

    def read(self, path: Path, place: str, *, counts: bool = True) -> None:
        """Read a file, and those that it names; `place` is where it is named.

        Raises:
            UsageError: it doesn't exist, or a line isn't a requirement.
        """
        if path in self.files:
            return
        try:
            self.files[path] = text = path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise UsageError(f"{place}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{place}: can't be read: {error}") from None
        if path.suffix == ".toml":
            self._project(path, text)
            return
        for number, line in _logical(text):
            self._line(path, f"{path}:{number}", line, counts=counts)

    def _line(self, path: Path, place: str, line: str, *, counts: bool) -> None:
        option, _, value = line.replace("=", " ", 1).partition(" ")
        if option in _FILES:
            self.read(path.parent / value.strip(), place, counts=counts and _FILES[option])
        elif option in {"-e", "--editable"}:
            raise UsageError(f"{place}: {line}: what is editable stays where it is; leave out -e")
        elif _is_place(line):
            self._local(path.parent / line.partition(" ")[0], place)
        elif counts and not line.startswith("-"):  # options are for uv
            self.requirements.append(_parse(_AFTER.sub("", line), place))

    def _local(self, path: Path, place: str) -> None:
        """Record the content of a wheel, or of a project's folder, beside the script."""
        if "://" in str(path):
            return
        if not path.exists():
            raise UsageError(f"{place}: {path}: no such file; write a requirement such as tqdm>=4")
        digest = hashlib.sha256()
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(file.name.encode() + file.read_bytes())
        self.files[path] = digest.hexdigest()

    def _project(self, path: Path, text: str) -> None:
        try:
            project = tomllib.loads(text).get("project")
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: malformed TOML: {error}") from None
        if not isinstance(project, dict):
            raise UsageError(f"{path}: it has no [project]; list its dependencies there")
        for line in project.get("dependencies", ()):
            number = text[: max(0, text.find(str(line)))].count("\n") + 1
            self.requirements.append(_parse(str(line), f"{path}:{number}"))


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that aren't empty with their numbers, continued ones joined."""
    number = 1
    for line in _CONTINUED.sub("\0", text).split("\n"):
        content = _COMMENT.sub("", line.replace("\0", " ")).strip()
        if content:
            yield number, content
        number += 1 + line.count("\0")


def _is_place(line: str) -> bool:
    first = line.partition(" ")[0]
    bare = " @ " not in line and "@" not in first.partition("/")[0]
    return bare and ("/" in first or first.endswith((".whl", ".tar.gz", ".zip")) or first == ".")


def _parse(line: str, place: str) -> Requirement:
    try:
        return Requirement(line)
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"{place}: {quote(line)} is no requirement: {why}") from None

"""The tree is as docs/architecture.md and docs/decisions/0001-layout.md say."""

import ast
import importlib
import os
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from cloudtune.model.commands import Command
from cloudtune.model.events import Event

ROOT = Path(__file__).parents[2]
LINKED = ("infra", "planners", "profiles")
SOURCES = sorted(
    path
    for folder in ("cloudtune", *LINKED)
    for path in (ROOT / folder).rglob("*.py")
    if not any(part.is_symlink() for part in path.parents)
)
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES: list[str] = SETUPTOOLS["packages"]
CLOSED_UNIONS = {kind.__name__ for kind in (*get_args(Event), *get_args(Command))}


def module_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def folder_of(package: str) -> Path:
    return ROOT.joinpath(*package.split("."))


def modules(package: str) -> list[Path]:
    """Give the modules of a package, those of packages within it aside."""
    return [path for path in folder_of(package).glob("*.py") if not path.stem.startswith("__")]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Give the name of each function in a file and its lines, docstring and decorators included."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min((d.lineno for d in node.decorator_list), default=node.lineno)
            assert node.end_lineno is not None
            yield f"{module_name(path)}:{node.name}", node.end_lineno - first + 1


@pytest.mark.parametrize("name", [*LINKED, "docs"])
def test_package_link_is_relative(name: str) -> None:
    link = ROOT / "cloudtune" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)


def test_what_pip_installs_is_the_one_name() -> None:
    """An editable install puts .package/ on the path: whatever lies there can be imported."""
    assert SETUPTOOLS["package-dir"] == {"": ".package"}
    result = [path for path in (ROOT / ".package").iterdir() if path.suffix != ".egg-info"]
    assert result == [ROOT / ".package" / "cloudtune"]
    assert result[0].readlink() == Path("..", "cloudtune")


def test_every_package_that_exists_is_installed() -> None:
    result = os.walk(ROOT / "cloudtune", followlinks=True)
    folders = [
        Path(folder).relative_to(ROOT) for folder, _, files in result if "__init__.py" in files
    ]
    assert sorted(SETUPTOOLS["packages"]) == sorted(".".join(folder.parts) for folder in folders)


def test_every_data_file_is_installed() -> None:
    for package in SETUPTOOLS["packages"]:
        folder = ROOT.joinpath(*package.split("."))
        below = SETUPTOOLS["package-data"].get(package, [])
        patterns = [pattern for pattern in below if "/" not in pattern]
        data = {path for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
        assert data == {path for pattern in patterns for path in folder.glob(pattern)}


def test_packages_have_one_sentence() -> None:
    said = {item: ast.get_docstring(parse(folder_of(item) / "__init__.py")) for item in PACKAGES}
    unsaid = {name for name, text in said.items() if not re.fullmatch(r"[^\n]+\.", text or "")}
    assert unsaid - {"cloudtune"} == set()  # which says how scripts use it


def test_modules_dont_repeat_package_names() -> None:
    pairs = [(item.rpartition(".")[2], path.stem) for item in PACKAGES for path in modules(item)]
    assert [pair for pair in pairs if pair[1].startswith(pair[0])] == []


@pytest.mark.parametrize("name", LINKED)
def test_the_bare_name_can_not_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match=rf"import it as cloudtune\.{name}"):
        importlib.import_module(name)


def test_every_module_says_what_it_is() -> None:
    assert [module_name(path) for path in SOURCES if not ast.get_docstring(parse(path))] == []


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "cloudtune" else ("cloudtune", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in SOURCES}


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of ours that each imports: at once, later, or for its types."""
    result: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        names: set[str] = set()
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                names.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                wholes = {f"{node.module}.{name.name}" for name in node.names}
                names |= wholes if wholes <= MODULES.keys() else {*wholes, node.module}
        result[module] = names & MODULES.keys()
    return result


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


TO_BE_OPENED = {
    ("cloudtune.engine", "cloudtune.engine.record"),
    ("cloudtune.infra", "cloudtune.infra.cluster"),
    ("cloudtune.infra.aws", "cloudtune.infra.aws.account"),
    ("cloudtune.planners", "cloudtune.planners.dp"),
    ("cloudtune.policy", "cloudtune.policy.schedule"),
}
"""Packages that still import each other, a package and one within it; no pair is to be added."""


def test_no_two_packages_import_each_other() -> None:
    """`cloudtune` itself apart, where names for users are: all import its errors."""

    def package(name: str) -> str:
        return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]

    edges = {
        (package(name), package(other)) for name, others in imports().items() for other in others
    }
    pairs = {(a, b) for a, b in edges if a < b and (b, a) in edges and a != "cloudtune"}
    assert pairs <= TO_BE_OPENED


OPTIONS = "most of its lines are the options of a command"
LONG_FUNCTIONS = {
    "cloudtune/cli/profile.py:profile": OPTIONS,
    "cloudtune/api/runs.py:run": "a third is its documentation for users",
    "cloudtune/lifecycle/measuring.py:measure": "one measurement from renting to the profile",
}
"""Functions of more than 60 lines, each with the reason."""
LONG_CLASSES = {
    "cloudtune/policy/measure.py:MeasurePolicy": "it makes the profile that RunPolicy goes by",
    "cloudtune/policy/run.py:RunPolicy": "the one place where an event becomes commands",
    "cloudtune/policy/state.py:RunState": "what the policy knows; strategies see it as a View",
    "cloudtune/strategies/best.py:BestSearch": "one strategy: exploring, and the plans of the end",
}
"""Classes of more than 400 lines, each with the reason."""


def test_long_functions_and_classes_have_a_reason() -> None:
    lengths = dict(function for path in SOURCES for function in functions(path))
    assert {name for name, count in lengths.items() if count > 60} == set(LONG_FUNCTIONS)
    assert {name for path in SOURCES for name in long_classes(path)} == set(LONG_CLASSES)
    assert statistics.median(lengths.values()) <= 10
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 35


SAME_NAMES = {
    "Group": "users know the fused one by it; a stage of a plan has the other",
    "Interruption": "the signal of a person, and EC2's notice between processes",
    "Plan": "what users hold, and what planners make",
    "ReportCallback": "one for each framework",
    "Trainer": "one for each framework",
    "Trial": "users know Optuna's by it",
}
"""Names that two public classes have, each with the reason."""


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set(SAME_NAMES)


def long_classes(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno >= 400:
                yield f"{module_name(path)}:{node.name}"


def test_new_event_breaks_the_type_check() -> None:
    """A screen may tell of some events only; who acts on events or commands handles them all."""
    result = [
        (module_name(path), node)
        for path in SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Match) and match_kinds(node) & CLOSED_UNIONS
    ]
    partial = {name for name, node in result if not ends_in_assert_never(node)}
    assert len(result) >= 4
    assert partial <= {"cloudtune/display/run_screen.py"}


def match_kinds(node: ast.Match) -> set[str]:
    patterns = [item for case in node.cases for item in ast.walk(case.pattern)]
    kinds = [ast.unparse(item.cls) for item in patterns if isinstance(item, ast.MatchClass)]
    return {kind.rpartition(".")[2] for kind in kinds}


def ends_in_assert_never(node: ast.Match) -> bool:
    last = node.cases[-1]
    return ast.unparse(last.pattern) == "_" and ast.unparse(last.body[0]).startswith(
        "assert_never("
    )


UNPICKLES = re.compile(
    r"\b(pickle|cloudpickle|dill|joblib|marshal|shelve)\b.*\bimport\b|"
    r"\bimport (pickle|cloudpickle|dill|joblib|marshal|shelve)\b|"
    r"\b(torch|np|numpy)\.load\(|\bread_pickle\(|\byaml\.(unsafe_|full_)?load\(|_connection\.recv\(|"
    r"\.connection\.recv\("
)


def test_only_node_processes_unpickle_messages() -> None:
    """Nothing that comes from storage or a file; Ray's own messages aside (docs/security.md)."""
    result = {module_name(path) for path in SOURCES if UNPICKLES.search(path.read_text("utf-8"))}
    known = {f"infra/node/{name}.py" for name in ("agent", "forks", "worker", "zygote")}
    writes = {"cloudtune/api/functions.py"}  # the user's function, into the user's code
    shared = "cloudtune/train/shared_input"
    pickles = {f"{shared}/by_value.py", f"{shared}/fingerprint.py"}  # to compare, and for `writes`
    trials = {f"{shared}/frames.py"}  # of a node among each other, by its kernel's word
    assert result == known | writes | pickles | trials

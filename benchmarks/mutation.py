"""How many small faults in planners, strategies, allocators and limits some test notices.

    python -m benchmarks.mutation [--sample 240] [--seed 0] [--only PATH ...] [--json FILE]

Mutations are cosmic-ray's (`pip install cosmic-ray==8.7.0`; it is no dependency of cloudtune): an
operator or comparison replaced by another, a number by one more or less, a condition negated, a
loop that does nothing … A seeded sample is drawn, the same share of each module, and each mutation
is made in a copy of the tree, never in the tree itself. Some tests that import the module or bear
its name run first, until one fails; where none does, those of whole runs (`WIDE`) and of the
module's package. Mutations of annotations alone are left out. One that has the tests run several
times as long as they do otherwise counts as noticed: they would have been ended.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.runner import parser

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
MODULES = (
    *("planners/*.py", "planners/dp/*.py", "planners/estimate/*.py", "planners/ilp/*.py"),
    *(
        "cloudtune/strategies/allocators/*.py",
        "cloudtune/strategies/*.py",
        "cloudtune/policy/limits.py",
    ),
    *("cloudtune/policy/fleet_manager.py", "cloudtune/policy/sessions.py"),
    *("cloudtune/policy/free_gpus.py", "cloudtune/policy/speed_estimates.py"),
)
WIDE = ("tests/parity/test_recorded.py", "tests/policy", "tests/engine")
_LEFT_OUT = ("__init__.py", "base.py")
_AT_ONCE = ("-n", "2")
_NARROW = 5
_SLOWER = 5.0
_LEAST_SECONDS = 60.0


@dataclass
class Mutation:
    """One fault: where it is, and what became of it."""

    module: str
    operator: str
    occurrence: int
    line: int
    before: str
    after: str
    fate: str = ""
    seconds: float = 0.0


def modules() -> list[str]:
    """Return the modules that are mutated, relative to the root."""
    paths = (path for pattern in MODULES for path in ROOT.glob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in paths if path.name not in _LEFT_OUT)


def operators() -> list[str]:
    """Return the names of the operators that are used.

    Among arithmetic, and among comparisons of what is less and what is equal, each is replaced by
    each; what would only crash (a shift of a float, `is` in place of `<`) is left out.
    """
    from cosmic_ray.plugins import operator_names  # noqa: PLC0415  only this benchmark has it

    kept = []
    for name in operator_names():
        _, _, kind = name.partition("/")
        first, *others = kind.split("_")
        if first == "ReplaceBinaryOperator":
            kept += [name] if {*others} <= {"Add", "Sub", "Mul", "Div", "FloorDiv"} else []
        elif first == "ReplaceComparisonOperator":
            kept += [name] if {*others} <= {"Lt", "LtE", "Gt", "GtE", "Eq", "NotEq"} else []
        elif first == "ReplaceUnaryOperator":
            kept += [name] if kind.endswith(("Delete_Not", "USub_UAdd")) else []
        elif first not in {"VariableReplacer", "VariableInserter", "RemoveDecorator"}:
            kept.append(name)
    return sorted(kept)


def places(module: str) -> list[tuple[str, int]]:
    """Return all that could be mutated in a module: an operator, and which of its places."""
    from cosmic_ray.ast import Visitor, get_ast  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415

    class Counting(Visitor):  # type: ignore[misc]
        def __init__(self, operator: object) -> None:
            self.operator, self.count = operator, 0

        def visit(self, node: object) -> object:
            self.count += sum(1 for _ in self.operator.mutation_positions(node))  # type: ignore[attr-defined]
            return node

    tree, positions = get_ast((ROOT / module).read_text("utf-8")), []
    for name in operators():
        counting = Counting(get_operator(name)())
        counting.walk(tree)
        positions += [(name, number) for number in range(counting.count)]
    return positions


def mutated(source: str, operator: str, occurrence: int) -> str:
    """Return a program with one place changed; "" if that changes nothing but annotations."""
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415

    text = mutate_code(source, get_operator(operator)(), occurrence)
    return "" if text is None or _bare(text) == _bare(source) else str(text)


def _bare(source: str) -> str:
    """Return the program without annotations and docstrings; "" if it is none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs):
                argument.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def _difference(before: str, after: str) -> tuple[int, str, str]:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    for number, (old, new) in enumerate(pairs, 1):
        if old != new:
            return number, old.strip(), new.strip()
    return 0, "", ""


# ---- tests ---------------------------------------------------------------------------------------


def tests_of(module: str) -> list[str]:
    """Return the test files that bear a module's name, and then some that import it."""
    path = Path(module)
    dotted = ".".join(path.with_suffix("").parts)
    dotted = dotted if dotted.startswith("cloudtune") else f"cloudtune.{dotted}"
    package, _, name = dotted.rpartition(".")
    tests = []
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        if "e2e" in test.parts or "infra" in test.parts:
            continue
        text = test.read_text("utf-8")
        imports = f"from {dotted} import" in text or f"from {package} import {name}" in text
        if imports or test.stem == f"test_{name}":
            tests.append(str(test.relative_to(ROOT)))
    return sorted(tests, key=lambda test: Path(test).stem != f"test_{name}")[:_NARROW]


def wide_of(module: str) -> tuple[str, ...]:
    """Return the folders whose tests run where those that are nearest notice nothing."""
    package = Path(module.removeprefix("cloudtune/")).parts[0]
    return tuple(dict.fromkeys((*WIDE, f"tests/{package}")))


def notices(tree: Path, tests: Sequence[str], limit: float) -> tuple[str, float]:
    """Return "killed", "survived" or "timeout", and the seconds that the tests took."""
    began = perf_counter()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    home = {"PYTHONPATH": f"{tree / '.package'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, **home},
            timeout=limit,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout", perf_counter() - began
    # Errors of collection, which have another code than failed tests, are noticed too.
    return "killed" if done.returncode else "survived", perf_counter() - began


def copy_of_tree(folder: Path) -> Path:
    """Copy what is tracked, and the link by which it is imported."""
    named = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in named.stdout.splitlines():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    package = folder / ".package" / "cloudtune"
    if not package.is_symlink():
        package.parent.mkdir(exist_ok=True)
        package.symlink_to("../cloudtune")
    return folder


# ---- the run -------------------------------------------------------------------------------------


def sample(count: int, seed: int, only: Sequence[str]) -> list[Mutation]:
    """Draw mutations: from each module as many as its share of all, at least one."""
    candidates = {module: places(module) for module in only or modules()}
    total = sum(map(len, candidates.values()))
    rng = random.Random(seed)
    drawn: list[Mutation] = []
    for module, positions in candidates.items():
        source = (ROOT / module).read_text("utf-8")
        share = max(1, round(count * len(positions) / total))
        changed = (
            Mutation(module, *place, *_difference(source, text))
            for place in rng.sample(positions, len(positions))
            if (text := mutated(source, *place))
        )
        drawn += itertools.islice(changed, share)
    print(f"{total} places, {len(drawn)} drawn", file=sys.stderr)
    rng.shuffle(drawn)  # so that one that is cut short is a sample too
    return drawn


def judge(tree: Path, drawn: Sequence[Mutation]) -> None:
    """Make each mutation, run the tests, and take the mutation back."""
    usual: dict[str, float] = {}
    for number, mutation in enumerate(drawn, 1):
        file, narrow = tree / mutation.module, tests_of(mutation.module)
        nearest = narrow or wide_of(mutation.module)
        source = file.read_text("utf-8")
        if mutation.module not in usual:
            fate, usual[mutation.module] = notices(tree, nearest, 3600.0)
            if fate != "survived":
                raise SystemExit(f"{mutation.module}: its tests fail as they are")
        file.write_text(mutated(source, mutation.operator, mutation.occurrence), "utf-8")
        try:
            limit = max(_LEAST_SECONDS, _SLOWER * usual[mutation.module])
            mutation.fate, mutation.seconds = notices(tree, nearest, limit)
            if mutation.fate == "survived" and narrow:
                mutation.fate, more = notices(tree, (*_AT_ONCE, *wide_of(mutation.module)), 1200.0)
                mutation.seconds += more
        finally:
            file.write_text(source, "utf-8")
        print(
            f"{number}/{len(drawn)} {mutation.fate:9} {mutation.module}:{mutation.line}",
            file=sys.stderr,
        )
        if mutation.fate == "survived":
            print(f"    - {mutation.before}\n    + {mutation.after}", file=sys.stderr)


def main() -> None:
    options = parser(__doc__, sample=240, seed=0)
    options.add_argument("--only", nargs="*", default=[])
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    drawn = sample(given.sample, given.seed, given.only)
    with tempfile.TemporaryDirectory() as folder:
        judge(copy_of_tree(Path(folder)), drawn)
    for module in dict.fromkeys(mutation.module for mutation in drawn):
        fates = [mutation.fate for mutation in drawn if mutation.module == module]
        print(f"{module:44} {len(fates) - fates.count('survived'):4} of {len(fates)}")
    noticed = sum(mutation.fate != "survived" for mutation in drawn)
    print(f"noticed: {noticed} of {len(drawn)} ({noticed / len(drawn):.1%})")
    for mutation in (mutation for mutation in drawn if mutation.fate == "survived"):
        print(f"{mutation.module}:{mutation.line}\n    - {mutation.before}\n    + {mutation.after}")
    if given.json:
        given.json.write_text(json.dumps([asdict(mutation) for mutation in drawn], indent=1))


if __name__ == "__main__":
    main()

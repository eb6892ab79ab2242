"""The size of the repository, as `make check` prints it: `python -m tests.architecture.budget`.

Lines are those of `.py` files; words are those of docs/, but for the generated reference.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("cloudtune", "planners", "infra", "profiles")
GOALS = {"product": 56_000, "tests": 46_000, "benchmarks": 9_000, "docs": 40_000}
"""What issues allow: lines, of docs words."""


def sizes() -> dict[str, int]:
    """Return the lines of code, and the words of docs."""
    pages = {*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs/reference.md"}
    return {
        "product": sum(map(_lines, _sources(PRODUCT))),
        "tests": sum(map(_lines, _sources(["tests"]))),
        "benchmarks": sum(map(_lines, _sources(["benchmarks"]))),
        "docs": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
    }


def _sources(folders: Iterable[str]) -> Iterator[Path]:
    """Give every module once: planners, infra and profiles are linked into cloudtune."""
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    for name, size in sizes().items():
        unit = "words" if name == "docs" else "lines"
        print(f"{name:11} {size:7,} {unit}, goal {GOALS[name]:,}")  # noqa: T201

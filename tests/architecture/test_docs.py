"""What README and docs say is what is there: facts, figures of the screen, paths, recipes."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cloudtune.cli import main
from cloudtune.experiment import Experiment
from cloudtune.forecast import staged_plans as job_stages
from cloudtune.infra.aws import ec2
from cloudtune.infra.aws.account.policies import Place, head
from cloudtune.infra.provider import RUN_TAG
from cloudtune.model import menu
from cloudtune.model.plans import BY_PLAN, Limits
from cloudtune.planners.static import StaticPlanner
from cloudtune.policy import registry
from cloudtune.policy.schedule import stages
from docs import reference, reference_words, screen
from tests.builders import LINEAR, Setting, profile

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
BESIDE = [ROOT / "README.md", ROOT / "examples/README.md", ROOT / "benchmarks/compare/README.md"]
PAGES = sorted([*BESIDE, ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
TODAY = [page for page in PAGES if page.parent.name != "decisions" and page.stem != "CHANGELOG"]
"""Pages that tell of the code as it is; decisions and changes tell of what it was, too."""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
EXAMPLE = ROOT / "examples/digits/experiment.yaml"
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_ANCHOR = re.compile(r"\]\(((?:(?!http)[^)#]+\.md)?)#([^)]+)\)")
_MENTION = re.compile(r"docs/[\w/.-]+\.md")
_PATH = re.compile(r"(?:[\w<>.-]+/)+[\w<>.-]+\.(?:py|md|yaml|csv)|pyproject\.toml")
_CODE = re.compile(r"`([^`]+)`")
_OF_A_COMMIT = re.compile(r"[\w/]+\.py at [0-9a-f]{7}|[0-9a-f]{7}:[\w/]+\.py")
"""A file that the newest commit needn't have."""


def below(page: str, heading: str) -> str:
    """Return what stands on a page below a heading, up to the next one of its level."""
    level = heading.partition(" ")[0]
    assert f"\n{heading}\n" in page, f"no heading {heading!r}"
    return page.partition(f"\n{heading}\n")[2].partition(f"\n{level} ")[0]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of the tables of a text, without their heads."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| package"):
            yield [cell.strip(" `") for cell in line.strip("|").split(" | ")]


@cache
def all_tests() -> str:
    return "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def first_sentence(module: str) -> str:
    doc = importlib.import_module(module).__doc__
    assert doc is not None
    return " ".join(doc.partition("\n\n")[0].split())


def test_the_reference_is_what_make_docs_would_write() -> None:
    assert reference.PAGE.read_text("utf-8") == reference.page(), "run `make docs`"


def test_undocumented_names_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(menu, "STRATEGIES", (*menu.STRATEGIES, "made-up"))
    with pytest.raises(SystemExit, match=r"reference_words.py, NAMES\['strategy'\].*made-up"):
        reference.page()


def test_the_variables_of_the_environment_are_read_somewhere() -> None:
    source = "\n".join(path.read_text("utf-8") for path in sources())
    named = [name.strip("`") for name, _ in reference_words.ENVIRONMENT]
    assert [name for name in named if f'"{name}"' not in source] == []


def test_the_page_of_strategies_has_each_of_them() -> None:
    page = (ROOT / "docs/strategies.md").read_text("utf-8")
    listed = [row[0] for row in rows(below(page, "## Which one"))]
    assert tuple(name for name in listed if name != "name") == menu.STRATEGIES


def test_names_off_the_menu_are_papers() -> None:
    section = below((ROOT / "docs/papers.md").read_text("utf-8"), "## All other names")
    others = {*registry.STRATEGIES, *registry.ALLOCATORS, BY_PLAN, registry.SEER}
    listed = set(re.findall(r"^- `([^`]+)`: ", section, re.MULTILINE))
    assert listed == others - {*menu.STRATEGIES, *menu.ALLOCATORS}


def test_each_row_of_the_papers_has_a_test() -> None:
    page = (ROOT / "docs/papers.md").read_text("utf-8")
    tests = all_tests()
    for paper in ("## Fluid", "## HyperSched", "## SEER"):
        listed = re.findall(r"^- \*\*(\w+)\*\* (.*)$", below(page, paper), re.MULTILINE)
        assert listed
        for number, row in listed:
            if "test_" not in row and "benchmarks.md" not in row:
                name = re.sub(r"(\D+)(\d+)", r"\g<1>0?\2_", number.lower())
                assert re.search(rf"def test_(\w+_)?{name}", tests), f"{number}: no test of it"


def test_readme_shows_the_real_screen() -> None:
    shown = screen.screen("examples/smudged/experiment.yaml")
    assert len(README.splitlines()) <= 120
    assert len(shown.splitlines()) <= 16
    assert f"\n{shown}\n```\n" in README, "run `make docs`"


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(text.split("```")[1::2])
    named = set(re.findall(r"^(?:\$ )?cloudtune ([a-z]+)", blocks, re.MULTILINE))
    named |= set(re.findall(r"`cloudtune ([a-z]+)", text))
    assert named - set(main.cli.commands) == set()


def test_its_experiment_is_one(tmp_path: Path) -> None:
    text = README.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "experiment.yaml").write_text(text)
    assert Experiment.load(tmp_path / "experiment.yaml").limits.budget == 40.0


def test_skill_script_calls_existing_names() -> None:
    import cloudtune

    tree = ast.parse(README.partition("```python\n")[2].partition("```")[0])
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "cloudtune"
    }
    assert {"report", "epochs"} <= used <= set(cloudtune.__all__)


def test_the_architecture_is_a_page() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 140


@pytest.mark.parametrize(
    ("page", "heading", "depth"),
    [("architecture.md", "## The packages", 1), ("inside.md", "## Packages within packages", 2)],
)
def test_each_package_is_said_in_its_own_words(page: str, heading: str, depth: int) -> None:
    text = below((ROOT / "docs" / page).read_text("utf-8"), heading)
    said = dict(re.findall(r"^- `([\w/]+)`: (.*)$", text, re.MULTILINE))
    names = [name for name in PYPROJECT["setuptools"]["packages"] if name.count(".") == depth]
    own = {
        f"cloudtune.{path.removeprefix('cloudtune/')}".replace("/", "."): it
        for path, it in said.items()
    }
    assert own == {name: first_sentence(name) for name in names}


def test_each_package_is_in_the_picture() -> None:
    picture = below(ARCHITECTURE, "## The packages").split("```")[1]
    names = {name.split(".")[1] for name in PYPROJECT["setuptools"]["packages"] if "." in name}
    assert {name for name in names if not re.search(rf"\b{name}\b", picture)} == set()


def test_the_layers_are_those_that_are_checked() -> None:
    contract = PYPROJECT["importlinter"]["contracts"][0]
    assert contract["name"].startswith("Layers")
    packages = {name.split(".")[1] for name in PYPROJECT["setuptools"]["packages"] if "." in name}
    layers = [layer for layer in contract["layers"] if set(re.findall(r"\w+", layer)) <= packages]
    assert f"\n{' > '.join(layers)}\n" in ARCHITECTURE


def recipes() -> dict[str, list[str]]:
    result = {}
    for part in below(ARCHITECTURE, "## Where to add").split("\n### ")[1:]:
        what, _, text = part.partition("\n")
        result[what] = re.findall(r"^\d+\. (.*)$", text, re.MULTILINE)
    return result


def test_every_addition_has_a_list() -> None:
    assert list(recipes()) == [
        *("A strategy", "An allocator", "A planner", "A cloud", "An event", "A command")
    ]


@pytest.mark.parametrize("what", list(recipes()))
def test_lists_name_existing_files(what: str) -> None:
    for item in recipes()[what]:
        assert item.startswith("`"), f"no file comes first: {item}"
        paths = _PATH.findall(item)
        assert paths, item
        result = [file for path in paths for file in ROOT.glob(re.sub("<[a-z]+>", "*", path))]
        assert len(result) >= len(paths), f"{paths}: no such file"
        text = "\n".join(file.read_text("utf-8") for file in result)
        for name in _CODE.findall(item):
            if name.isidentifier() and name[0].isupper():
                assert re.search(rf"^(class )?{name}\b", text, re.MULTILINE), f"{name}: {item}"


@pytest.mark.parametrize("what", ["event", "command"])
def test_mypy_names_the_listed_files(what: str) -> None:
    matching = {
        str(path.relative_to(ROOT))
        for path in sources()
        if f"assert_never({what})" in path.read_text("utf-8")
    }
    items = recipes()["An event" if what == "event" else "A command"]
    assert matching <= {path for item in items for path in _PATH.findall(item)}


def test_added_planner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(StaticPlanner):
        name = "mine"

    monkeypatch.setitem(stages.PLANNERS, "mine", Mine())
    setting = Setting(4, 1, 4, 2, profile=profile(LINEAR))
    result = setting.plan(job_stages.find_planner("mine"), Limits(3600.0, None))
    assert result.planner == "mine"


def sources() -> list[Path]:
    """Return every module of the product, once."""
    return [
        path
        for folder in ("cloudtune", "infra", "planners", "profiles")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(part.is_symlink() for part in path.parents)
    ]


def test_the_index_leads_to_every_page() -> None:
    linked = set(_LINK.findall((ROOT / "docs/index.md").read_text("utf-8")))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - linked == set()


def test_agents_are_led_to_every_page() -> None:
    linked = set(_LINK.findall((ROOT / "llms.txt").read_text("utf-8")))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked
    assert [target for target in linked if not (ROOT / target).exists()] == []


def test_the_site_has_every_page() -> None:
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    assert sorted(re.findall(r"\S+\.md", nav)) == sorted(pages)


def test_the_version_is_that_of_the_newest_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    releases = [heading for heading in headings if heading != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", releases[0])


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = _OF_A_COMMIT.sub("", page.read_text(encoding="utf-8"))
    named = {
        path
        for code in _CODE.findall(text)
        for path in _PATH.findall(code)
        if "~" not in code and "$" not in code and "…" not in code
    }
    places = (ROOT, ROOT / "tests", ROOT / "docs", ROOT / "cloudtune", page.parent)
    gone = {
        path
        for path in named
        if not any(True for place in places for _ in place.glob(re.sub("<[a-z]+>", "*", path)))
    }
    assert gone == set()


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+[a-z])`", page.read_text(encoding="utf-8")))
    assert {name for name in named if f"def {name}(" not in all_tests()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith("http")]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_heading_that_is_linked_to_is_there(page: Path) -> None:
    gone = []
    for target, heading in _ANCHOR.findall(page.read_text(encoding="utf-8")):
        text = (page.parent / target if target else page).read_text(encoding="utf-8")
        known = {anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
        gone += [f"{target}#{heading}"] * (heading not in known)
    assert gone == []


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_what_its_python_imports_is_there(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cloudtune"):
                assert [it.name for it in node.names if not has(str(node.module), it.name)] == []


def has(module: str, name: str) -> bool:
    """Whether a module has a name; of Lightning's by its text, as that takes seconds to import."""
    if "integrations" not in module:
        return hasattr(importlib.import_module(module), name)
    path = ROOT / module.replace(".", "/")
    return (
        re.search(rf"(def|class|import) .*\b{name}\b", path.with_suffix(".py").read_text("utf-8"))
        is not None
    )


def test_every_page_that_the_code_names_is_there() -> None:
    named = {page for path in sources() for page in _MENTION.findall(path.read_text("utf-8"))}
    assert {page for page in named if not (ROOT / page).exists()} == set()


OF_OTHER_SERVICES = {"BeEntered", "Keep", "List"}


def test_documented_aws_permissions_are_used() -> None:
    place = Place("123456789012", "us-east-1")
    statements = head(place)["Statement"]
    policy = {"Statement": [it for it in statements if it["Sid"] not in OF_OTHER_SERVICES]}
    asked = [statement["Action"] for statement in policy["Statement"]]
    allowed = {name for item in asked for name in ([item] if isinstance(item, str) else item)}
    source = "".join(
        Path(ec2.__file__).with_name(name).read_text("utf-8")
        for name in ("ec2.py", "networks.py", "price_refresh.py")
    )
    called = set(re.findall(r"\b_?(?:client|launcher|ec2)\.([a-z_]+)\(", source))
    called |= set(re.findall(r'(?:get_paginator|look)\("(\w+)"', source))
    called -= {"get_paginator", "get_products", "close"}
    used = {"ec2:" + name.title().replace("_", "") for name in called}
    assert allowed == used | {"ec2:CreateTags", "iam:PassRole", "pricing:GetProducts"}
    launch = next(item for item in policy["Statement"] if item["Sid"] == "LaunchTagged")
    assert launch["Condition"]["Null"] == {f"aws:RequestTag/{RUN_TAG}": "false"}

"""What README and docs say of codes, commands, options, fields and permissions is what is there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from cloudtune import cli, errors
from cloudtune.experiment import Experiment
from cloudtune.infra import ec2
from cloudtune.trial import EndReason

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_MENTION = re.compile(r"docs/[\w/.-]+\.md")


def first_column(heading: str) -> list[str]:
    """Give the first column of the table below a heading of the README."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [row.split("|")[1].strip(" `") for row in rows[1:]]


def fields(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, f"{above}{name}.")
        elif not field.exclude:
            yield f"{above}{name}"


# ---- README --------------------------------------------------------------------------------


def test_the_exit_codes_are_those_of_errors_and_endings() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, errors.CloudtuneError)}
    ended = {reason.exit_code for reason in EndReason}
    assert [int(code) for code in first_column("Exit codes")] == sorted(raised | ended)


def test_every_command_is_listed() -> None:
    listed = [row.split()[1] for row in first_column("Commands")]
    assert sorted(listed) == sorted(cli.cli.commands)


def test_every_option_of_planning_is_listed() -> None:
    named = {row.split()[0] for row in first_column("How to plan")}
    commands = [cli.cli.commands[name] for name in ("plan", "run")]
    known = {name for command in commands for each in command.params for name in each.opts}
    shared = {"--objective", "--planner", "--confidence", "--profile", "--compare", "--plot"}
    assert shared <= named <= known


def test_every_field_of_an_experiment_is_listed_in_order() -> None:
    assert first_column("The experiment file") == list(fields(Experiment))


def test_its_experiment_is_one(tmp_path: Path) -> None:
    text = README.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "experiment.yaml").write_text(text)
    assert Experiment.load(tmp_path / "experiment.yaml").name == "digits"


def test_its_script_is_python_and_calls_only_what_there_is() -> None:
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


# ---- docs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith("http")]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_page_that_the_code_names_is_there() -> None:
    sources = [
        path
        for folder in ("cloudtune", "infra", "planners", "profiles")
        for path in (ROOT / folder).glob("*.py")
    ]
    named = {page for path in sources for page in _MENTION.findall(path.read_text("utf-8"))}
    assert {page for page in named if not (ROOT / page).exists()} == set()


def test_the_permissions_for_aws_are_those_that_are_used() -> None:
    blocks = re.findall(r"```json\n(.*?)```", (ROOT / "docs/aws.md").read_text(), re.DOTALL)
    policy, _ = map(json.loads, blocks)
    allowed = {statement["Action"] for statement in policy["Statement"]}
    source = Path(ec2.__file__).read_text("utf-8")
    called = set(re.findall(r"_(?:client|launcher)\.(\w+)\(", source)) - {"get_paginator"}
    called |= set(re.findall(r'get_paginator\("(\w+)"\)', source))
    used = {"ec2:" + name.title().replace("_", "") for name in called}
    assert allowed == used | {"ec2:CreateTags", "iam:PassRole"}
    assert policy["Statement"][1]["Condition"] == {
        "Null": {f"aws:RequestTag/{ec2.RUN_TAG}": "false"}
    }

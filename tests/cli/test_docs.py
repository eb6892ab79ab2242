"""`cloudtune docs`: the pages that the package carries, and the messages that name them."""

import ast
import re

import pytest

from cloudtune.cli.docs import pages
from tests.architecture.test_layout import SOURCES, module_name, parse
from tests.bench import called


def texts() -> list[tuple[str, str]]:
    """Return the texts of the product that aren't documentation of the code: file and text."""
    found: list[tuple[str, str]] = []
    for path in SOURCES:
        tree = parse(path)
        docs = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        found += [
            (module_name(path), node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs
        ]
    return found


def test_it_lists_the_topics_and_prints_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    listed = called(capsys, "docs").succeeded().out
    assert re.search(r"^aws +cloudtune on AWS$", listed, re.MULTILINE)
    page = called(capsys, "docs", "aws").succeeded().out
    assert page == pages()["aws"].read_text(encoding="utf-8")
    called(capsys, "docs", "agent").succeeded("What costs money")


def test_an_unknown_topic_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "docs", "emulater").refused("Did you mean 'emulator'?", "cloudtune docs")


def test_messages_name_topics_that_are_there() -> None:
    """Not files, which a wheel hasn't."""
    named = {
        topic for _, text in texts() for topic in re.findall(r"cloudtune docs ([a-z-]+)", text)
    }
    assert named
    assert named <= set(pages())
    files = {file for file, text in texts() if re.search(r"docs/[\w-]+\.md", text)}
    assert files == set()

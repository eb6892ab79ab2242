"""docs/reliability.md lists everything that ends instances: a new way can't come unlisted."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.test_docs import below
from tests.architecture.test_layout import ROOT, SOURCES, module_name, parse

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
LISTED = re.compile(r"^- `([\w/]+\.py)`", re.MULTILINE)
SHUTDOWN = "shutdown -P"


def strings(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module, without those that stand alone and explain."""
    explanations = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in explanations:
            yield str(node.value)


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the method calls of a module, by their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node


def ends_instances(tree: ast.Module) -> bool:
    """Whether a module ends instances by their ids, or the machine that it runs on."""
    for name, call in calls(tree):
        if name == "terminate" and call.args:  # a process is terminated without an argument
            return True
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    shuts_down = not attributes.isdisjoint({"power_off", "end_now"})
    return shuts_down or any(SHUTDOWN in text for text in strings(tree))


def test_every_way_to_end_an_instance_is_listed() -> None:
    cloud = ROOT / "infra/emulator"  # the emulator is the cloud itself
    modules = (path for path in SOURCES if cloud not in path.parents)
    ways = {module_name(path) for path in modules if ends_instances(parse(path))}
    assert ways == set(LISTED.findall(below(PAGE, "## Who ends instances")))

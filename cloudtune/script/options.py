"""The command-line options of a script, as its argparse calls write them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN: Final = object()
"""The value of an expression that only a run of the script could tell."""
_HIDDEN: Final = frozenset(
    {"add_subparsers", "parse_known_args", "parse_known_intermixed_args", "parents", "prefix_chars"}
)
"""Names in a script that say that it may have options besides those written in it."""


@dataclass(frozen=True)
class Option:
    """An `add_argument` call: `names` such as ("-b", "--batch-size"), and what else it says.

    `default` is UNKNOWN if it isn't a literal; `takes_value` is false with an `action`.
    """

    names: tuple[str, ...]
    line: int
    default: Any = UNKNOWN
    choices: tuple[Any, ...] = ()
    required: bool = False
    takes_value: bool = True


def options_in(tree: ast.Module) -> Iterator[Option]:
    """Yield the options of all argparse parsers in a file."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or called(node) != "add_argument":
            continue
        words = [value for word in node.args if isinstance(value := literal(word), str)]
        names = [word for word in words if word.startswith("-")]
        keywords = {word.arg: word.value for word in node.keywords}
        action = ast.unparse(keywords["action"]) if "action" in keywords else ""
        if action.endswith("BooleanOptionalAction"):
            names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        choices = literal(keywords["choices"]) if "choices" in keywords else ()
        if names:
            yield Option(
                names=tuple(names),
                line=node.lineno,
                default=literal(keywords["default"]) if "default" in keywords else UNKNOWN,
                choices=tuple(choices) if isinstance(choices, list | tuple) else (),
                required="required" in keywords and literal(keywords["required"]) is True,
                takes_value=not action,
            )


def has_all_options(tree: ast.Module) -> bool:
    """Whether `options_in` gives all options of a script: one parser, which nothing else sees."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    functions = [called(node) for node in calls]
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree)}
    names |= {word.arg for call in calls for word in call.keywords}
    if _HIDDEN & names or functions.count("ArgumentParser") != 1 or "parse_args" not in functions:
        return False
    parsers = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "ArgumentParser(" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in calls:
        values = [*call.args, *(word.value for word in call.keywords)]
        if any(isinstance(value, ast.Name) and value.id in parsers for value in values):
            return False  # the function that gets it may add options
        plain = all(isinstance(word, ast.Constant) for word in call.args)
        if called(call) == "add_argument" and (not plain or any(not w.arg for w in call.keywords)):
            return False
    return True


def called(call: ast.Call) -> str:
    """Return the last name of what is called: "report" for cloudtune.report(…)."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def literal(node: ast.AST) -> Any:
    """Return the value of a literal; UNKNOWN for any other expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN

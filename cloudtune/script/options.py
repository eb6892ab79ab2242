"""The command-line options of a script, from its calls of argparse, click or absl."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

# The value of an expression that is only known at run time.
UNKNOWN: Final = object()


@dataclass(frozen=True)
class Option:
    """An option as its call defines it: `names` such as ("-b", "--batch-size"), and the rest.

    Or a key of a configuration, with a single name. `default` is UNKNOWN if it isn't a literal;
    `takes_value` is False for a flag, and with an `action`. `makes_bool`: argparse calls bool() on
    its text, which is true of every text but the empty one.
    """

    names: tuple[str, ...]
    line: int
    default: Any = UNKNOWN
    choices: tuple[Any, ...] = ()
    takes_value: bool = True
    makes_bool: bool = False

    @property
    def flag(self) -> str:
        """The long name, or else the first."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def name(self) -> str:
        """The name of its value in a script: "batch_size"."""
        is_key = not self.flag.startswith("-")
        return self.flag if is_key else self.flag.lstrip("-").replace("-", "_")


def options_in(tree: ast.Module) -> Iterator[Option]:
    """Yield the options of all parsers in a file."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if called(node).startswith("DEFINE_") and len(node.args) > 1:  # absl's flags
            name, default = map(literal, node.args[:2])
            if isinstance(name, str):
                is_flag = isinstance(default, bool)
                yield Option((f"--{name}",), node.lineno, default, takes_value=not is_flag)
        if called(node) not in {"add_argument", "option"}:
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
                takes_value=not action and "is_flag" not in keywords,
                makes_bool=called(node) == "add_argument"
                and "type" in keywords
                and ast.unparse(keywords["type"]) == "bool",
            )


def called(call: ast.Call) -> str:
    """Return the last name of the called function: "report" for cloudtune.report(…)."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def literal(node: ast.AST) -> Any:
    """Return the value of a literal; UNKNOWN for any other expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN

"""Writes the options of a script's parser to a file when it prints its help.

It is a hook in the script's process (`site_hooks`). Help texts of argparse and click lack defaults
and types, which the parsers know.
"""

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

# The variable that names the file.
FILE: Final = "CLOUDTUNE_OPTIONS"
# Modules whose `Command` is click's; typer has a copy of it.
_CLICKS: Final = ("click.core", "typer._click.core")


def _write(options: Iterator[Mapping[str, Any]]) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(option) + "\n" for option in options)


def _plain(value: Any) -> Any:
    """Return a value that JSON has; None for others."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = getattr(value, "value", value)  # an Enum's
    return value if isinstance(value, str | int | float | bool) else None


def _type_name(kind: Any) -> str:
    return str(getattr(kind, "__name__", "") or getattr(kind, "name", "") or kind or "")


def _actions(parser: Any) -> Iterator[Mapping[str, Any]]:
    for action in parser._actions:  # noqa: SLF001  it has no other name
        kind = type(action).__name__
        if kind in {"_HelpAction", "_VersionAction"} or "Help" in kind or "Config" in kind:
            continue
        if "SubParsers" in kind or "SubCommand" in kind:
            yield {"commands": [*(action.choices or ())]}
            continue
        type_ = getattr(action, "_typehint", None) or action.type
        yield {
            "names": [*action.option_strings] or [action.dest],
            "default": _plain(action.default) if action.default != "==SUPPRESS==" else None,
            "kind": _type_name(type_),
            "choices": _plain([*(action.choices or ())]),
            "help": str(action.help or ""),
            "required": bool(action.required) and action.nargs not in {"?", "*"},
            "takes_value": action.nargs != 0,
            "makes_bool": action.type is bool,
            "negates": kind == "BooleanOptionalAction",
        }


def _parameters(command: Any) -> Iterator[Mapping[str, Any]]:
    commands = getattr(command, "commands", None)
    if commands:
        yield {"commands": [*commands]}
    for parameter in command.params:
        names = [*parameter.opts] if parameter.param_type_name == "option" else [parameter.name]
        yield {
            "names": names,
            "default": None if callable(parameter.default) else _plain(parameter.default),
            "kind": _type_name(parameter.type),
            "choices": _plain([*(getattr(parameter.type, "choices", ()))]),
            "help": str(getattr(parameter, "help", "") or ""),
            "required": bool(parameter.required) and parameter.default is None,
            "takes_value": not getattr(parameter, "is_flag", False),
            "makes_bool": False,
            "negates": bool(parameter.secondary_opts),
        }


def _before(call: Callable[..., Any], describe: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a method that describes its object before it is called."""

    def described(self: Any, *args: Any, **keywords: Any) -> Any:
        with contextlib.suppress(Exception):  # then the text that it prints has to do
            _write(describe(self))
        return call(self, *args, **keywords)

    return described


def install() -> None:
    """Describe the parsers of this process."""
    import argparse  # noqa: PLC0415  only in the script's process

    argparse.ArgumentParser.print_help = _before(  # type: ignore[method-assign]
        argparse.ArgumentParser.print_help, _actions
    )
    for name in _CLICKS:
        try:
            command = importlib.import_module(name).Command
        except Exception:  # noqa: BLE001, S112  it isn't installed, or is broken
            continue
        command.get_help = _before(command.get_help, _parameters)

"""What a script's models.space() says may be chosen, read from its text: nothing of it is run.

It gives what `ModelSpace.search` gives in the script itself (train/models/space.py), and refuses
what that refuses, with file and line.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cloudtune.errors import ExperimentError, nearest
from cloudtune.experiment.script.check import parse_file
from cloudtune.experiment.script.python_file import PythonFile, chain_of, read_python
from cloudtune.experiment.search_space import parse_domain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_RANGES: Final = ("uniform", "loguniform", "quniform", "randint", "choice")
_KEPT: Final = frozenset({*_RANGES, "grid", "mutators", "name"})
_HOMES: Final = ("cloudtune.models.", "cloudtune.train.models.")
_NONE: Final = "none"


def read_model(path: Path, name: str) -> dict[str, Any]:
    """Return the choices of each mutator of the space of that name, as `search` has them.

    Raises:
        ExperimentError: no such file, no such space in it, or a choice that can't be read, each
            with the line.
    """
    parse_file(path)  # says it with the line, where it is no Python
    file = read_python(path, path.parent)
    assert file is not None
    script = _Script(file)
    value = script.assigned.get(name)
    call = script.call_of(value, "space")
    if call is None:
        spaces = [each for each, value in script.assigned.items() if script.call_of(value, "space")]
        if isinstance(value, ast.expr):
            script.refuse(value, f"{name} is no models.space(...)")
        raise ExperimentError(
            f"{path}: no {name} = models.space(...) at its top level; "
            + (f"there is {', '.join(spaces)}.{nearest(name, spaces)}" if spaces else "add one")
        )
    return script.choices_of_space(call)


@dataclass(frozen=True)
class _Script:
    """A file of the user's, in which names are looked up."""

    file: PythonFile

    @property
    def assigned(self) -> dict[str, ast.expr]:
        """What the names of its top level are assigned."""
        found: dict[str, ast.expr] = {}
        for node in self.file.tree.body:
            match node:
                case ast.Assign(targets=targets, value=value):
                    found |= {each.id: value for each in targets if isinstance(each, ast.Name)}
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    found[name] = value
                case _:
                    continue
        return found

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        """Raise an error about a place in the file."""
        raise ExperimentError(f"{self.file.path}:{getattr(node, 'lineno', 1)}: {why}")

    def name_of(self, node: ast.expr) -> str:
        """Return the full name of something of ours: "space" for cloudtune.models.space."""
        chain = chain_of(node) or [""]
        full = ".".join([self.file.imported.get(chain[0], chain[0]), *chain[1:]])
        return next((full.removeprefix(home) for home in _HOMES if full.startswith(home)), "")

    def call_of(self, node: object, function: str) -> ast.Call | None:
        """Return what is a call of a function of ours; None for anything else."""
        found = isinstance(node, ast.Call) and self.name_of(node.func) == function
        return node if found and isinstance(node, ast.Call) else None

    # ---- the space ---------------------------------------------------------------------------

    def choices_of_space(self, call: ast.Call) -> dict[str, Any]:
        """Return the choices of each mutator that is given to space()."""
        arguments = self._plain(call, "space")
        if len(arguments) < 2:
            self.refuse(call, "space() takes the base and mutators; give it functions for both")
        found: dict[str, Any] = {}
        for each in arguments[1:]:
            value = self.assigned.get(each.id, each) if isinstance(each, ast.Name) else each
            group = self.call_of(value, "one_of")
            name, choices = self._one_of(group) if group else self._mutator(each)
            if not choices:
                self.refuse(
                    each,
                    f"{name}() has no choices, so it is part of the base; to have it now and then, "
                    f'write models.one_of("{name}_or_not", None, {name})',
                )
            self._check_name(each, name, found)
            found[name] = choices
        return found

    def _one_of(self, call: ast.Call) -> tuple[str, dict[str, Any]]:
        arguments = self._plain(call, "one_of")
        if len(arguments) < 2 or not _is_text(arguments[0]):
            self.refuse(call, "one_of() takes a name, as text, and functions, or None")
        options: list[Any] = []
        names: list[str] = []
        for each in arguments[1:]:
            if isinstance(each, ast.Constant) and each.value is None:
                option: Any = _NONE
                name = _NONE
            else:
                name, choices = self._mutator(each)
                option = {"name": name, **choices} if choices else name
            self._check_name(each, name, names)
            names.append(name)
            options.append(option)
        return ast.literal_eval(arguments[0]), {"choice": options}

    def _plain(self, call: ast.Call, function: str) -> list[ast.expr]:
        odd = [*call.keywords, *(each for each in call.args if isinstance(each, ast.Starred))]
        if odd:
            self.refuse(odd[0], f"{function}() is read without running the script; name its parts")
        return call.args

    def _check_name(self, node: ast.AST, name: str, others: Iterable[str]) -> None:
        if name in _KEPT:
            self.refuse(node, f"{name} has another meaning in a search space; rename it")
        if name in others:
            self.refuse(node, f"{name} stands there twice; give each a name of its own")

    # ---- mutators ----------------------------------------------------------------------------

    def _mutator(self, node: ast.expr) -> tuple[str, dict[str, Any]]:
        """Return the name of a mutator, and its choices."""
        for script, name in self._places(chain_of(node) or [""]):
            for found in script.file.regions(name):
                if isinstance(found, ast.FunctionDef):
                    return name, dict(script.choices(found))
        return self._no_function(node)

    def _no_function(self, node: ast.expr) -> NoReturn:
        told = ast.unparse(node)
        here = [each for each in self.file.defined if self._is_function(each)]
        self.refuse(
            node,
            f"{told} is no function of this file, nor of one beside it; write a mutator with def."
            + nearest(told, here),
        )

    def _places(self, chain: list[str]) -> Iterator[tuple[_Script, str]]:
        if len(chain) == 1:
            yield self, chain[0]
        for path, wanted in self.file.beside.get(chain[0], ()):
            file = read_python(path, self.file.folder)
            if file is not None:
                yield _Script(file), wanted or chain[-1]

    def _is_function(self, name: str) -> bool:
        return any(isinstance(each, ast.FunctionDef) for each in self.file.regions(name))

    def choices(self, function: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
        """Yield what each choice of a mutator may be."""
        given = function.args
        stars = [each for each in (given.vararg, given.kwarg) if each is not None]
        if stars:
            self.refuse(stars[0], f"{function.name}(): a choice has a name and a type; * is none")
        positional = [*given.posonlyargs, *given.args]
        with_default = {each.arg for each in positional[len(positional) - len(given.defaults) :]}
        with_default |= {
            each.arg
            for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if default is not None
        }
        for each in [*positional[1:], *given.kwonlyargs]:
            found = self._domain(each.annotation)
            if found is None and each.arg in with_default:
                continue
            if found is None:
                self.refuse(
                    each,
                    f"{each.arg} of {function.name}() doesn't say what it may be; write "
                    f"{each.arg}: Literal[8, 16], or bool",
                )
            self._check_name(each, each.arg, ())
            self._check(each, found)
            yield each.arg, found

    def _check(self, node: ast.arg, found: dict[str, Any]) -> None:
        try:
            parse_domain(found)
        except ExperimentError as error:
            self.refuse(node, f"{node.arg}: {error}")

    def _domain(self, node: ast.expr | None) -> dict[str, Any] | None:
        """Return what a type says may be chosen; None where it says nothing."""
        match node:
            case ast.Constant(value=str(text)):
                return self._domain(ast.parse(text, mode="eval").body)
            case ast.Name(id="bool"):
                return {"choice": [False, True]}
            case ast.Name(id=name) if name in self.assigned:
                return self._domain(self.assigned[name])
            case ast.Subscript(value=of, slice=inside):
                parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
                kind = (chain_of(of) or [""])[-1]
                if kind == "Literal":
                    return {"choice": [self._value(each) for each in parts]}
                if kind == "Annotated":
                    return next((each for part in parts if (each := self._range(part))), None)
        return None

    def _range(self, node: ast.expr) -> dict[str, Any] | None:
        if not isinstance(node, ast.Call) or self.name_of(node.func) not in _RANGES:
            return None
        kind = self.name_of(node.func)
        return {kind: [self._value(each) for each in self._plain(node, kind)]}

    def _value(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            self.refuse(
                node,
                f"{ast.unparse(node)} is known when the script runs, and this is read without "
                "running it; write the value",
            )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)

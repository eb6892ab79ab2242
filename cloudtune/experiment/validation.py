"""Mistakes in a structured input: one line each, with its field and its place."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from cloudtune.errors import ExperimentError, allowed_names, quote

FieldPath: TypeAlias = tuple[str | int, ...]

_WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}


@dataclass(frozen=True)
class Mistake:
    """What is wrong with one field; `place` is `file:line: field` or an option, once known."""

    path: FieldPath
    message: str
    place: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.place or format_path(self.path), self.message)))


class ExperimentMistakesError(ExperimentError):
    """All mistakes found at once; the message has a line for each."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(tuple(mistakes))
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.mistakes))


def format_path(path: FieldPath) -> str:
    """Return "cloud.instances[0]" for ("cloud", "instances", 0)."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def _printable(name: str) -> str:
    return name if name.isprintable() and 0 < len(name) <= 60 else quote(name)


def refuse(message: str, *below: str | int) -> PydanticCustomError:
    """Return the error for a pydantic validator to raise, about the field or a part of it."""
    return PydanticCustomError("refused", "{message}", {"message": message, "below": below})


def mistakes_in(error: ValidationError, model: type[BaseModel]) -> tuple[Mistake, ...]:
    """Return pydantic's errors as mistakes, in our words."""
    return tuple(_mistake(detail, model) for detail in error.errors(include_url=False))


def unknown_field(name: object, model: type[BaseModel]) -> str:
    """Return the message about a field that the model doesn't have."""
    # Excluded fields are the program's own.
    names = tuple(name for name, field in model.model_fields.items() if not field.exclude)
    return f"unknown field; {allowed_names(name, names)}"


def _mistake(detail: ErrorDetails, model: type[BaseModel]) -> Mistake:
    path = tuple(part for part in detail["loc"] if part != "[key]")
    if detail["type"] == "refused":
        context = detail["ctx"]
        return Mistake((*path, *context["below"]), context["message"])
    section = _section(model, path[:-1])
    if detail["type"] == "extra_forbidden" and section is not None:
        return Mistake(path, unknown_field(path[-1], section))
    return Mistake(path, _message(detail, _field(model, path)))


def _message(detail: ErrorDetails, field: FieldInfo | None) -> str:
    if detail["type"] == "literal_error" and field is not None:
        names = map(str, get_args(field.annotation))
        return f"{quote(detail['input'])} is not known; {allowed_names(detail['input'], names)}"
    wrong = _wrong(detail)
    if field is None or not field.examples:
        return wrong
    named = f"{detail['loc'][-1]}: " if detail["type"] == "missing" else ""
    return f"{wrong}; write {named or 'for example '}{field.examples[0]}"


def _wrong(detail: ErrorDetails) -> str:
    value = quote(detail["input"])
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind == "missing":
        return "missing"
    if detail["input"] is None or kind == "too_short":
        return "is empty"
    if kind == "greater_than_equal":
        return f"{value} is too small: the minimum is {context['ge']}"
    if kind == "less_than_equal":
        return f"{value} is too large: the maximum is {context['le']}"
    return f"{value} is not {_WANTED[kind]}" if kind in _WANTED else f"{value}: {detail['msg']}"


def _section(model: type[BaseModel], path: FieldPath) -> type[BaseModel] | None:
    """Return the model that the path leads to, or None if it isn't a mapping of fields."""
    for part in path:
        field = model.model_fields.get(str(part))
        annotation = field.annotation if field is not None else None
        if not (inspect.isclass(annotation) and issubclass(annotation, BaseModel)):
            return None
        model = annotation
    return model


def _field(model: type[BaseModel], path: FieldPath) -> FieldInfo | None:
    """Return the field that the path leads to or into."""
    names = path[:-1] if path and isinstance(path[-1], int) else path
    section = _section(model, names[:-1])
    return section.model_fields.get(str(names[-1])) if section is not None and names else None

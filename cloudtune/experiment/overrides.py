"""Options that override the fields of an experiment file, and the place of mistakes in both."""

from collections.abc import Mapping
from dataclasses import replace

from cloudtune.experiment.validation import FieldPath, Mistake, format_path
from cloudtune.experiment.yaml_file import YamlDocument
from cloudtune.model.providers import PROVIDERS


def override(fields: Mapping[str, object], path: FieldPath, value: object) -> dict[str, object]:
    """Return the fields with one set; a section that isn't a mapping is left for validation."""
    name = str(path[0])
    below = path[1:]
    if not below:
        return {**fields, name: value}
    section = fields.get(name, {})
    if not isinstance(section, Mapping):
        return dict(fields)
    return {**fields, name: override(section, below, value)}


def of_provider(
    fields: Mapping[str, object], options: Mapping[FieldPath, object]
) -> dict[str, object]:
    """Return a file's fields, without those that a provider given by option doesn't have.

    So a file for rented instances also runs on this machine.
    """
    cloud = fields.get("cloud")
    provider = options.get(("cloud", "provider"))
    if not isinstance(cloud, Mapping) or provider not in PROVIDERS:
        return dict(fields)
    if provider == cloud.get("provider", next(iter(PROVIDERS))):
        return dict(fields)
    line = PROVIDERS[str(provider)]
    strange = {name for other in PROVIDERS.core.values() for name in other.own} - line.own
    kept = {name: it for name, it in cloud.items() if name not in strange.union(line.fixed)}
    return {**fields, "cloud": kept}


def with_place(
    mistake: Mistake, document: YamlDocument, options: Mapping[FieldPath, object]
) -> Mistake:
    """Return a mistake with its place: the option that caused it, or its line in the file."""
    for path in options:
        if mistake.path[: len(path)] == path:
            return replace(mistake, place=_option(path))
    return replace(mistake, place=document.place(mistake.path))


def _option(path: FieldPath) -> str:
    """Return "--deadline" for limits.deadline: options leave out limits and cloud."""
    words = path[1:] if path[0] in {"limits", "cloud"} and len(path) > 1 else path
    return "--" + "-".join(format_path((word,)) for word in words).replace("_", "-")

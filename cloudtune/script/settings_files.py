"""A program's own file of settings, with a trial's values in it: `--config {config:base.yaml}`."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from cloudtune.errors import ExperimentError, nearest
from cloudtune.model.trial import flat

_YAML: Final = (".yaml", ".yml")
_SUFFIXES: Final = (".json", *_YAML)


def is_settings_file(text: str | None) -> bool:
    """Whether the text of a placeholder is the name of a file of settings."""
    return text is not None and text.endswith(_SUFFIXES)


def check_settings_file(path: Path, parameters: Collection[str]) -> None:
    """Check that a file of settings has each parameter, by its flat name.

    Raises:
        ExperimentError: it doesn't, or there is no such file; the message says what is wrong.
    """
    names = flat(_read(path))
    for name in parameters:
        if name not in names:
            last = name.rpartition("/")[2]
            alike = [other for other in names if other.rpartition("/")[2] == last]
            hint = nearest(name, names)
            if alike:
                hint = f" It has {', '.join(alike)}: nest the parameter as it is there."
            raise ExperimentError(
                f"search.{name}: {path} has no such setting, so it would change nothing.{hint}"
            )


def write_settings(path: Path, config: Mapping[str, object], written: Path) -> None:
    """Write a copy of a file of settings with a configuration's values, by their flat names.

    The rest of a YAML file stays as it is written.
    """
    settings = _read(path)
    for name in flat(settings).keys() & config:
        value = config[name]
        *above, last = name.split("/")
        inside = settings
        for part in above:
            inside = inside[part]
        # In quotes: `on` and 1e-3 aren't texts to every parser.
        inside[last] = DoubleQuotedScalarString(value) if isinstance(value, str) else value
    written.parent.mkdir(parents=True, exist_ok=True)
    with written.open("w", encoding="utf-8") as file:
        if path.suffix in _YAML:
            _yaml().dump(settings, file)
        else:
            json.dump(settings, file)


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        settings = _yaml().load(text) if path.suffix in _YAML else json.loads(text)
    except FileNotFoundError:
        raise ExperimentError(f"train: there is no {path}") from None
    except (OSError, ValueError, YAMLError) as error:
        raise ExperimentError(f"train: {path} can't be read: {error}") from None
    if not isinstance(settings, dict):
        raise ExperimentError(f"train: {path} has no settings by name")
    return settings


class _Representer(RoundTripRepresenter):
    """Writes numbers as PyYAML reads them: it takes 1e-05 for a text."""

    def represent_small_float(self, value: float) -> Any:
        text = repr(value)
        if "e" in text and "." not in text:
            text = text.replace("e", ".0e")
        return self.represent_scalar("tag:yaml.org,2002:float", text)


_Representer.add_representer(float, _Representer.represent_small_float)


def _yaml() -> YAML:
    yaml = YAML()
    yaml.Representer = _Representer
    return yaml

"""The wheel of cloudtune that instances and heads install."""

import zipfile
from configparser import ConfigParser
from pathlib import Path

from cloudtune.infra.environments.wheel import write_wheel


def test_the_wheel_adds_the_names_of_the_papers(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_wheel(tmp_path)) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        text = wheel.read(name).decode()
        modules = wheel.namelist()
    points = ConfigParser(delimiters=("=",))
    points.optionxform = str  # type: ignore[assignment,method-assign]
    points.read_string(text)
    assert points["console_scripts"]["cloudtune"] == "cloudtune.cli.main:main"
    module, _, _ = points["cloudtune.strategies"]["hypersched"].partition(":")
    assert f"{module.replace('.', '/')}.py" in modules
    assert "static-fluid:published" in points["cloudtune.allocators"]

"""Packages that a script imports and its environment won't have, found before renting."""

from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from cloudtune.infra.environments import imports
from tests.infra.environments.conftest import experiment

once = cache(packages_distributions)  # it reads every package that is installed


@pytest.mark.parametrize(
    ("line", "pip", "package"),
    [
        ("import hypothesis", (), "hypothesis"),
        ("from sklearn.svm import SVC", ("tqdm",), "scikit-learn"),
        ("from sklearn.svm import SVC", ("scikit-learn>=1",), None),
        ("import torch, numpy", (), None),  # cloudtune brings them
        ("import not_installed_here", (), None),  # the build knows better
        ("try:\n    import hypothesis\nexcept ImportError:\n    pass", (), None),
        ("import helper", (), "hypothesis"),  # a module beside the script
    ],
)
def test_an_import_that_no_requirement_brings_is_named(
    line: str,
    pip: tuple[str, ...],
    package: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imports, "packages_distributions", once)
    wanted = experiment(tmp_path, pip=list(pip))
    with wanted.train_file.open("a") as script:
        script.write(f"\n{line}\n")
    (tmp_path / "helper.py").write_text("import hypothesis\n")
    lines = imports.missing_imports(wanted)
    if package is None:
        assert lines == []
    else:
        (said,) = lines
        assert f"add {package} to setup.pip" in said
        assert said.startswith(str(tmp_path))

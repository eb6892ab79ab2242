"""A trial's folder of the user's code: which folders are its own, and which are links."""

from pathlib import Path

from cloudtune.train.programs.code_folder import link_code


def test_installed_and_hidden_folders_are_linked(tmp_path: Path) -> None:
    """Making thousands of files for each trial would take longer than an epoch."""
    code = tmp_path / "code"
    for path in (
        "src/nets/paths.py",
        "src/data.csv",
        "env/pyvenv.cfg",
        "env/lib/torch/nn.py",
        "web/node_modules/x/setup.py",
        ".cache/made.py",
        "data/images/1.png",
        "node_modules/y/setup.py",
    ):
        (code / path).parent.mkdir(parents=True, exist_ok=True)
        (code / path).touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/theirs.py").touch()
    (code / "lib").symlink_to(tmp_path / "lib")
    folder = tmp_path / "t0"
    folder.mkdir()
    link_code(code, folder, ["src/out"])
    links = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink()}
    assert links == {"src/data.csv", "env", "web", ".cache", "data", "lib", "node_modules"}
    assert (folder / "src/nets/paths.py").resolve().is_relative_to(folder)

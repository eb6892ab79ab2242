"""Which files leave this machine with a run."""

from pathlib import Path

from cloudtune.infra.sent_files import secrets_in, sent_files


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sent(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in sent_files(folder)}


def test_secrets_and_caches_are_never_sent(tmp_path: Path) -> None:
    kept_back = [".env", ".env.local", "deploy.pem", ".ssh/id_rsa", "__pycache__/a.pyc", ".git/x"]
    files = ["train.py", ".env.example", "keys.py", "data/a.csv"]
    write(tmp_path, **dict.fromkeys([*kept_back, *files], "x"))
    assert sent(tmp_path) == set(files)
    assert secrets_in(tmp_path) == [".env", ".env.local", "deploy.pem"]


def test_what_gitignore_files_name_stays_here(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            ".gitignore": "runs/\n/big.bin\n",
            "sub/.gitignore": "*.csv\n!kept.csv\n",
            "runs/a": "",
            "big.bin": "",
            "sub/big.bin": "",
            "sub/a.csv": "",
            "sub/kept.csv": "",
            "a.csv": "",
        },
    )
    kept = {".gitignore", "sub/.gitignore", "sub/big.bin", "sub/kept.csv", "a.csv"}
    assert sent(tmp_path) == kept


def test_the_ignore_file_adds_patterns_and_lets_a_secret_through(tmp_path: Path) -> None:
    ignore = "wandb/\n!.env\n"
    write(tmp_path, **{".cloudtuneignore": ignore, ".env": "", "wandb/x": "", "train.py": ""})
    assert sent(tmp_path) == {".cloudtuneignore", ".env", "train.py"}
    assert secrets_in(tmp_path) == []

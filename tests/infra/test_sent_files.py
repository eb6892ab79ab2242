"""Which files leave this machine with a run."""

from pathlib import Path

import pytest

from cloudtune.errors import UsageError
from cloudtune.infra.sent_files import refuse_unsendable, secrets_in, sent_files


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def list_sent(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in sent_files(folder)}


def test_secrets_and_caches_are_never_sent(tmp_path: Path) -> None:
    kept_back = [".env", ".env.local", "deploy.pem", ".ssh/id_rsa", "__pycache__/a.pyc", ".git/x"]
    files = ["train.py", ".env.example", "keys.py", "data/a.csv"]
    write(tmp_path, **dict.fromkeys([*kept_back, *files], "x"))
    assert list_sent(tmp_path) == set(files)
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
    assert list_sent(tmp_path) == kept


def test_ignore_file_adds_and_lifts_patterns(tmp_path: Path) -> None:
    ignore = "wandb/\n!.env\n"
    write(tmp_path, **{".cloudtuneignore": ignore, ".env": "", "wandb/x": "", "train.py": ""})
    assert list_sent(tmp_path) == {".cloudtuneignore", ".env", "train.py"}
    assert secrets_in(tmp_path) == []


def test_what_links_point_to_is_sent(tmp_path: Path) -> None:
    here = tmp_path / "here"
    write(tmp_path, **{"data/a/train.csv": "", "data/id_rsa": "", "here/train.py": ""})
    (tmp_path / "data" / "a" / "back").symlink_to(here)
    links = {"data": "../data/a", "file.csv": "../data/a/train.csv", "innocent": "../data/id_rsa"}
    links |= {"itself": ".", "nowhere": "../none", "loop": "loop"}
    for name, target in links.items():
        (here / name).symlink_to(target)
    left_out: list[Path] = []
    found = {path.relative_to(here).as_posix() for path in sent_files(here, left_out.append)}
    assert found == {"train.py", "data/train.csv", "file.csv"}
    assert {path.relative_to(here).as_posix() for path in left_out} == {"itself", "data/back"}


@pytest.mark.parametrize(
    ("ignore", "found"),
    [
        ("!data/\n", {"data/train.csv", "data/deep/a.csv"}),
        ("!data/deep/a.csv\n", {"data/deep/a.csv"}),
        ("!*.csv\n", {"data/train.csv", "data/deep/a.csv", "other/b.csv"}),
        ("!data/\ndata/deep/\n", {"data/train.csv"}),
        ("!src/a\n", set()),
    ],
)
def test_the_ignore_file_brings_back_what_git_hides(
    tmp_path: Path, ignore: str, found: set[str]
) -> None:
    hidden = ["data/train.csv", "data/deep/a.csv", "other/b.csv", "data/__pycache__/x", "data/.env"]
    write(tmp_path, **dict.fromkeys(hidden, ""))
    write(tmp_path, **{".gitignore": "data/\nother/\n", ".cloudtuneignore": ignore})
    assert list_sent(tmp_path) == {".gitignore", ".cloudtuneignore"} | found


def test_too_much_is_refused_by_name(tmp_path: Path) -> None:
    here = tmp_path / "here"
    write(here, **{"train.py": "", "small.bin": ""})
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(3 * 2**20)
    (here / "weights.bin").symlink_to("../big.bin")
    refuse_unsendable(here, most=4 * 2**20)
    with pytest.raises(UsageError) as refused:
        refuse_unsendable(here, most=2**20)
    linked = f"weights.bin (linked to {tmp_path}/big.bin) has 3 MiB"
    assert linked in str(refused.value)
    (here / "system").symlink_to("/usr")
    with pytest.raises(UsageError, match=r"linked to /usr"):
        refuse_unsendable(here)

"""`cloudtune init`: what it finds in a script, what it guesses, and what it leaves open."""

import contextlib
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.api.experiments import load_experiment
from cloudtune.errors import UsageError
from cloudtune.runs import home
from cloudtune.script.drafts import GAP, read_script
from tests.bench import Bench, called

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("script", "metric", "found", "gaps"),
    [
        (
            "smudged/train.py",
            "val_accuracy",
            "lr momentum weight_decay channels hidden dropout label_smoothing batch_size",
            0,
        ),
        (
            "digits/train.py",
            "val_accuracy",
            "lr momentum weight_decay channels hidden dropout label_smoothing batch_size shift",
            1,
        ),
        ("ports/fashion_mnist/after.py", "accuracy", "lr batch_size", 0),
        ("ports/huggingface/after.py", "eval_accuracy", "lr schedule batch_size", 1),
        ("ports/lightning/after.py", "val_accuracy", "lr hidden batch_size", 0),
        ("ports/mnist/after.py", "accuracy", "lr batch_size gamma", 0),
    ],
)
def test_what_a_function_reads_and_reports_is_found(
    script: str, metric: str, found: str, gaps: int, tmp_path: Path, bench: Bench
) -> None:
    copy = Path(shutil.copy(EXAMPLES / script, tmp_path))
    text = read_script(copy).text("it")
    assert text.count(GAP) == (gaps + 1 if gaps else 0), "each, and the head that says so"
    path = tmp_path / "experiment.yaml"
    if gaps:  # it is refused, at the line of the gap
        path.write_text(text)
        line = 1 + next(n for n, it in enumerate(text.split("\n")) if GAP in it and "[]" in it)
        done = bench.here("plan", path, "--deadline", "1h")
        assert done.code == 2
        assert f"{path}:{line}:" in done.err
        text = text.replace("choice: []", "choice: [0, 1]")
    path.write_text(text)
    experiment = load_experiment(path, {})
    assert set(experiment.search) == set(found.split())
    assert (experiment.metric.name, experiment.metric.mode) == (metric, "max")
    assert experiment.train_file == copy


def test_an_argparse_program_is_a_command(tmp_path: Path, bench: Bench) -> None:
    shutil.copy(EXAMPLES / "ports/mnist/before.py", tmp_path / "main.py")
    done = bench.here("init", tmp_path / "main.py")
    assert done.code == 0, done.err
    path = tmp_path / "experiment.yaml"
    assert "lr: {loguniform: [0.1, 10]}  # line 72, 1.0 there; a guess" in path.read_text()
    assert bench.here("plan", path).err.startswith(f"error: {path}:6: metric.name: is empty")
    text = path.read_text().replace("name: ,", "name: accuracy,").replace("mode: min", "mode: max")
    path.write_text(text)
    assert "nothing reports" in bench.here("plan", path).err
    path.write_text(text.replace("file: }", "printed: '(?P<accuracy>[0-9]+)%'}"))
    experiment = load_experiment(path, {})
    assert experiment.train == (
        "python main.py --batch-size {batch_size} --lr {lr} --gamma {gamma} --epochs {epochs} "
        "--seed {seed}"
    )
    assert (experiment.epochs.min, experiment.epochs.max) == (1, 3)


def test_nothing_is_written_over_and_mistakes_are_told(tmp_path: Path, bench: Bench) -> None:
    script = Path(shutil.copy(EXAMPLES / "smudged/train.py", tmp_path))
    path = tmp_path / "experiment.yaml"
    path.write_text("mine")
    for words, told in (
        (
            [script],
            f"{path} already exists; choose another file with -o, or overwrite it with --force",
        ),
        (
            [script, "-o", tmp_path.parent / "e.yaml"],
            "the experiment must be in its script's folder",
        ),
        ([tmp_path / "nosuch.py"], "no such file"),
        ([tmp_path], "no such file"),
    ):
        done = bench.here("init", *words)
        assert (done.code, done.out) == (2, "")
        assert told in done.err
        assert path.read_text() == "mine"
    done = bench.here("init", script, "--force")
    assert done.code == 0
    assert load_experiment(path, {}).name == "train"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = (\n", r"s.py:1: not valid Python: '\(' was never closed"),
        ("print(1)\n", "nothing to tune: no function that takes"),
        ("def train(config): ...\n", "nothing to tune"),
        ("\0", "not valid Python"),
    ],
)
def test_a_script_that_nothing_can_be_made_of(source: str, told: str, tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(source)
    with pytest.raises(UsageError, match=told):
        read_script(script).text("it")


WORDS = st.sampled_from(
    ["'--lr'", "'-b'", "'--batch-size'", "'data'", "name", "f'--{x}'", "*names", "'--Wd'", "''"]
)
VALUES = st.sampled_from(["0.1", "-3", "None", "'sgd'", "[1, 2]", "D['x']", "True", "1e400", "()"])
CALLS = st.builds(
    lambda words, default, choices: (
        f"parser.add_argument({', '.join(words)}, default={default}, choices={choices})"
    ),
    st.lists(WORDS, min_size=1, max_size=3),
    VALUES,
    VALUES,
)


@given(lines=st.lists(CALLS, max_size=4))
def test_no_parser_is_too_odd(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("odd") / "s.py"
    script.write_text("\n".join(lines))
    with contextlib.suppress(UsageError):
        assert "train: python s.py" in read_script(script).text("it")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = called(capsys, "completion", shell)
    assert done.code == 0
    assert f"_CLOUDTUNE_COMPLETE={shell}_complete" in done.out


def test_runs_are_completed_the_latest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    for name in ("b-2", "b-1", "c"):
        (home.runs() / name).mkdir(parents=True)
        (home.runs() / name / home.LEDGER).touch()
    monkeypatch.setattr(home, "run_folders", lambda: [home.runs() / it for it in ("b-2", "b-1")])
    assert completed("cloudtune report b", monkeypatch, capsys) == ["b-1", "b-2"]
    assert completed("cloudtune resume b-2", monkeypatch, capsys) == ["b-2"]
    assert completed("cloudtune in", monkeypatch, capsys) == ["init"]

    def broken() -> list[Path]:
        raise PermissionError

    monkeypatch.setattr(home, "run_folders", broken)
    assert completed("cloudtune logs b", monkeypatch, capsys) == []


def completed(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    words = line.split()
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_CLOUDTUNE_COMPLETE", "bash_complete")
    done = called(capsys)
    assert done.code in {0, 1}
    assert "Traceback" not in done.err
    return [each.partition(",")[2] for each in done.out.split()]

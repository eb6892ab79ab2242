"""`cloudtune init`: what it finds in a script, what it guesses, and what it leaves open."""

import contextlib
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.api.experiments import load_experiment
from cloudtune.errors import UsageError
from cloudtune.runs import home
from cloudtune.script.drafts import GAP, read_script
from cloudtune.script.printed_lines import LinePattern
from tests.bench import Bench, called

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("script", "metric", "result", "gaps"),
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
    script: str, metric: str, result: str, gaps: int, tmp_path: Path, bench: Bench
) -> None:
    copy = Path(shutil.copy(EXAMPLES / script, tmp_path))
    text = read_script(copy).text("it")
    assert text.count(GAP) == (gaps + 1 if gaps else 0), "each, and the head that says so"
    path = tmp_path / "experiment.yaml"
    if gaps:  # it is refused, at the line of the gap
        path.write_text(text)
        line = 1 + next(n for n, it in enumerate(text.split("\n")) if GAP in it and "[]" in it)
        bench.here("plan", path, "--deadline", "1h").refused(f"{path}:{line}:")
        text = text.replace("choice: []", "choice: [0, 1]")
    path.write_text(text)
    experiment = load_experiment(path, {})
    assert set(experiment.search) == set(result.split())
    assert (experiment.metric.name, experiment.metric.mode) == (metric, "max")
    assert experiment.train_file == copy


def test_an_argparse_program_is_a_command(tmp_path: Path, bench: Bench) -> None:
    shutil.copy(EXAMPLES / "ports/mnist/before.py", tmp_path / "main.py")
    bench.here("init", tmp_path / "main.py").succeeded()
    path = tmp_path / "experiment.yaml"
    assert "lr: {loguniform: [0.1, 10]}  # line 72, 1.0 there; a guess" in path.read_text()
    assert "metric: {name: accuracy, mode: max}  # line 64 prints it" in path.read_text()
    experiment = load_experiment(path, {})
    assert experiment.train == (
        "python main.py --batch-size {batch_size} --lr {lr} --gamma {gamma} --epochs {epochs} "
        "--seed {seed}"
    )
    assert (experiment.epochs.min, experiment.epochs.max) == (1, 3)


PROGRAM = """
import argparse, json, logging, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--ckpt-dir", default="out")
parser.add_argument("--resume", default="")
options = parser.parse_args()
logging.basicConfig(level="INFO", stream=sys.stdout)
for epoch in range(options.epochs):
    loss, acc, lr = 1.5e-05, 0.25, options.lr
    for step in range(2):
        print(f"step {step}, loss {loss}")
    %s
"""


@pytest.mark.parametrize(
    ("line", "metric", "value"),
    [
        (
            'print(f"Epoch [{epoch}] train loss: {2 * loss:.4f} val loss: {loss}")',
            "val_loss",
            1.5e-5,
        ),
        ("print(f'test {loss} valid loss {acc}')\nprint(f'val acc {loss}')", "valid_loss", 0.25),
        ('print("epoch", epoch, "test acc:", acc, "in", 3, "s")', "test_acc", 0.25),
        ('print("epoch %d: val_mse = %8.3f, lr %g" % (epoch, acc, lr))', "val_mse", 0.25),
        ('print("Eval/F1={:.2f} ({}%)".format(acc, 9))', "eval_f1", 0.25),
        ('logging.info("epoch %d perplexity (dev): %.1f dev-ppl: %.1f", 1, 2, 3)', "dev_ppl", 3.0),
        ("sys.stdout.write(f\"val_err {float('nan')}\\n\")", "val_err", math.nan),
        ("row = {'epoch': epoch, 'val_acc': acc}; print(json.dumps(row))", "val_acc", 0.25),
        ("sys.stdout.write(json.dumps(dict(lr=lr, val_loss=loss)) + '\\n')", "val_loss", 1.5e-5),
        ("print({'epoch': 1, 'dev_auc': acc})", "dev_auc", 0.25),
        ("print('val loss: ' + str(loss))", "val_loss", 1.5e-5),
    ],
)
def test_a_printed_metric_is_found(line: str, metric: str, value: float, bench: Bench) -> None:
    """The pattern that is written finds the number in what the script really prints."""
    path = drafted(bench, PROGRAM % line)
    experiment = load_experiment(path, {})
    assert experiment.metric.name == metric
    assert experiment.reports is not None
    assert experiment.reports.printed is not None
    run = (sys.executable, path.with_name("main.py"))
    printed = subprocess.run(run, capture_output=True, text=True, check=True)
    pattern = LinePattern(experiment.reports.printed)
    matches = [it for line in printed.stdout.splitlines() for it in pattern.values(line)]
    assert [it[metric] for it in matches] == pytest.approx([value] * 2, nan_ok=True)


def drafted(bench: Bench, program: str) -> Path:
    """Return the experiment that `init` writes for a program."""
    (bench.folder / "main.py").write_text(program)
    bench.here("init", bench.folder / "main.py").succeeded()
    return bench.folder / "experiment.yaml"


CLICK = """
@click.option("--lr", default=0.1)
@click.option("--verbose", is_flag=True)
@click.option("--num-epochs", default=5)
"""
ABSL = """
flags.DEFINE_float("lr", 0.1, "the rate")
flags.DEFINE_bool("verbose", False, "")
flags.DEFINE_integer("num_epochs", 5, "")
"""


@pytest.mark.parametrize("options", [CLICK, ABSL], ids=["click", "absl"])
def test_options_of_other_parsers_are_read(options: str, bench: Bench) -> None:
    program = f"{options}\ndef main():\n    print('val acc', 1.0)\n"
    text = drafted(bench, program).read_text()
    flag = "--num-epochs" if options == CLICK else "--num_epochs"
    assert f"train: python main.py --lr {{lr}} {flag} {{epochs}}  #" in text
    assert "lr: {loguniform: [0.01, 1]}" in text
    assert "epochs: {min: 1, max: 5}" in text


@pytest.mark.parametrize("line", ['print(f"loss {loss}")', 'print(f"speed {acc}")', "pass"])
def test_what_each_step_prints_is_no_metric(line: str, bench: Bench) -> None:
    text = drafted(bench, PROGRAM % line).read_text()
    assert f"metric: {{name: , mode: min}}  # {GAP}" in text


def test_where_a_program_saves_is_a_comment(bench: Bench) -> None:
    path = drafted(bench, PROGRAM % 'print(f"val loss {loss}")')
    text = path.read_text()
    assert "# checkpoints: {folder: 'out'}  # where it saves; then trials can pause" in text
    assert "#   with `--resume {resume}/FILE` in train" in text
    text = text.replace("# checkpoints", "checkpoints").replace("--lr", "--resume {resume}/a --lr")
    path.write_text(text)
    assert load_experiment(path, {}).checkpoints.folder == "out"


def test_nothing_is_written_over_and_mistakes_are_reported(tmp_path: Path, bench: Bench) -> None:
    script = Path(shutil.copy(EXAMPLES / "smudged/train.py", tmp_path))
    path = tmp_path / "experiment.yaml"
    path.write_text("mine")
    for words, result in (
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
        assert result in done.err
        assert path.read_text() == "mine"
    done = bench.here("init", script, "--force").succeeded()
    assert load_experiment(path, {}).name == "train"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (\n", r"s.py:1: not valid Python: '\(' was never closed"),
        ("print(1)\n", "nothing to tune: no function that takes"),
        ("def train(config): ...\n", "nothing to tune.*as train: python s.py {config}, docs"),
        ("\0", "not valid Python"),
    ],
)
def test_a_script_that_nothing_can_be_made_of(source: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(source)
    with pytest.raises(UsageError, match=message):
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

TEXTS = st.text("%{}d: =lossé[(.3f\\", max_size=12).map(repr)
PRINTS = st.builds(
    lambda how, text: how.format(text=text),
    st.sampled_from(
        ["print({text}, x)", "print({text} % x)", "log.info({text}, x)", "print({text}.format(x))"]
    ),
    TEXTS,
)


@given(lines=st.lists(CALLS | PRINTS, max_size=4))
def test_no_parser_is_too_odd(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("odd") / "s.py"
    script.write_text("\n".join(lines))
    with contextlib.suppress(UsageError):
        assert "train: python s.py" in read_script(script).text("it")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_reported_how_to_complete(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    called(capsys, "completion", shell).succeeded(f"_CLOUDTUNE_COMPLETE={shell}_complete")


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
    return [item.partition(",")[2] for item in done.out.split()]


def test_an_option_that_no_text_turns_off_is_named(bench: Bench) -> None:
    bools = "options = parser.parse_args()"
    added = f'parser.add_argument("--amp", type=bool, default=False)\n{bools}'
    path = drafted(bench, (PROGRAM % "print('val acc', acc)").replace(bools, added))
    (line,) = [line for line in path.read_text().splitlines() if "type=bool" in line]
    assert line.startswith("# line ")
    number = int(line.split()[2].rstrip(":"))
    script = path.with_name("main.py").read_text().splitlines()
    assert "type=bool" in script[number - 1]

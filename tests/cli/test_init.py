"""`cloudtune init`: what it finds in a script, what it guesses, and what it leaves open."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtune.api.experiments import load_experiment
from cloudtune.api.scripts import draft_script
from cloudtune.errors import UsageError
from cloudtune.lifecycle.dry_run import try_script
from cloudtune.runs import home
from cloudtune.script.guesses import GAP, rank
from cloudtune.script.options import UNKNOWN, read_help
from cloudtune.script.printed_lines import LinePattern
from tests.bench import Bench, called
from tests.builders.experiments import write_experiment
from tests.builders.values import present

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
    text = draft_script(copy, show=print).text("it")
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
        ('print("Eval/F1={:.2f} ({}%)".format(acc, 9))', "Eval/F1", 0.25),
        ('logging.info("epoch %d perplexity (dev): %.1f dev-ppl: %.1f", 1, 2, 3)', "dev-ppl", 3.0),
        ("sys.stdout.write(f\"val_err {float('nan')}\\n\")", "val_err", math.nan),
        ("row = {'epoch': epoch, 'val_acc': acc}; print(json.dumps(row))", "val_acc", 0.25),
        ("sys.stdout.write(json.dumps(dict(lr=lr, val_loss=loss)) + '\\n')", "val_loss", 1.5e-5),
        ("print({'epoch': 1, 'dev_auc': acc})", "dev_auc", 0.25),
        ("print('val loss: ' + str(loss))", "val_loss", 1.5e-5),
        ("print(f'Train Loss: {lr} Vali Loss: {loss} Test Loss: {acc}')", "vali_loss", 1.5e-5),
        ("print(f'took {0.31 + epoch}s val_loss {loss} at {1.5 + epoch}it/s')", "val_loss", 1.5e-5),
        (
            "print(f'\\r{epoch}: 3/3 [0:01<0:00, {1.5 + epoch}it/s, val_loss={loss}, step=3]')",
            "val_loss",
            1.5e-5,
        ),
        (
            "print(f'value_loss {lr} latest_loss {lr} episodic_return {acc}')",
            "episodic_return",
            0.25,
        ),
    ],
)
def test_a_printed_metric_is_found(line: str, metric: str, value: float, bench: Bench) -> None:
    """The pattern that is written finds the number in what the script really prints."""
    path = draft(bench, PROGRAM % line)
    experiment = load_experiment(path, {})
    assert experiment.metric.name == metric
    assert experiment.reports is not None
    assert experiment.reports.printed is not None
    run = (sys.executable, path.with_name("main.py"))
    printed = subprocess.run(run, capture_output=True, text=True, check=True)
    pattern = LinePattern(experiment.reports.printed)
    matches = [it for line in printed.stdout.splitlines() for it in pattern.values(line)]
    assert [it[metric] for it in matches] == pytest.approx([value] * 2, nan_ok=True)


def draft(bench: Bench, program: str, *words: str) -> Path:
    """Return the experiment that `init` writes for a program."""
    (bench.folder / "main.py").write_text(program)
    bench.here("init", bench.folder / "main.py", *words).succeeded()
    return bench.folder / "experiment.yaml"


BODY = """
def train(lr, batch_size, epochs):
    for epoch in range(epochs):
        for batch in range(3):
            print(f"epoch {epoch} batch {batch}/3: loss {lr + batch}")
        print(f"epoch {epoch}: train loss {lr} val loss {lr + epoch} in 0.1 s")
"""
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
train(args.lr, args.batch_size, args.epochs)
"""
TRANSFORMERS = """
import dataclasses
from transformers import HfArgumentParser
@dataclasses.dataclass
class Arguments:
    lr: float = dataclasses.field(default=0.1, metadata={"help": "the rate"})
    batch_size: int = 64
    epochs: int = 3
(args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
train(args.lr, args.batch_size, args.epochs)
"""
CLICK = """
import click
@click.command()
@click.option("--lr", default=0.1)
@click.option("--batch-size", default=64, help="how many")
@click.option("--epochs", default=3)
@click.option("--amp/--no-amp", default=False)
def main(lr, batch_size, epochs, amp):
    train(lr, batch_size, epochs)
main()
"""
TYPER = """
import typer
def main(lr: float = 0.1, batch_size: int = 64, epochs: int = 3, amp: bool = False):
    train(lr, batch_size, epochs)
typer.run(main)
"""
ABSL = """
from absl import app, flags
flags.DEFINE_float("lr", 0.1, "the rate")
flags.DEFINE_integer("batch_size", 64, "how many")
flags.DEFINE_integer("epochs", 3, "")
flags.DEFINE_bool("amp", False, "")
FLAGS = flags.FLAGS
app.run(lambda _: train(FLAGS.lr, FLAGS.batch_size, FLAGS.epochs))
"""
COMMANDS = """
import argparse
parser = argparse.ArgumentParser()
commands = parser.add_subparsers(dest="command", required=True)
fit = commands.add_parser("fit")
commands.add_parser("predict").add_argument("--lr-of-another")
fit.add_argument("--model.lr", type=float, default=0.1)
fit.add_argument("--data.batch_size", type=int, default=64)
fit.add_argument("--trainer.max_epochs", type=int, default=3)
args = vars(parser.parse_args())
train(args["model.lr"], args["data.batch_size"], args["trainer.max_epochs"])
"""
# Hydra isn't installed here; its answers are those of version 1.3.8.
HYDRA = """
import sys
CONFIG = "optimizer:\\n  lr: 0.1\\ndata:\\n  batch_size: 64\\nmax_epochs: 3\\n"
if "--help" in sys.argv:
    print(f"main is powered by Hydra.\\n\\n== Config ==\\n{CONFIG}")
elif sys.argv[1:] == ["--cfg", "job"]:
    print("main.py:8: Hydra14MigrationWarning: \\nversion_base isn't: specified.", file=sys.stderr)
    print(CONFIG)
else:
    values = dict(word.split("=") for word in sys.argv[1:])
    train(float(values.get("optimizer.lr", 0.1)), 64, int(values.get("max_epochs", 3)))
"""


@pytest.mark.parametrize(
    ("parser", "words"),
    [
        (ARGPARSE, "--lr {lr} --batch-size {batch_size} --epochs {epochs}"),
        (TRANSFORMERS, "--lr {lr} --batch_size {batch_size} --epochs {epochs}"),
        (CLICK, "--lr {lr} --batch-size {batch_size} --epochs {epochs}"),
        (TYPER, "--lr {lr} --batch-size {batch_size} --epochs {epochs}"),
        (ABSL, "--batch_size {batch_size} --lr {lr} --epochs {epochs}"),
        (
            COMMANDS,
            "fit --model.lr {lr} --data.batch_size {batch_size} --trainer.max_epochs {epochs}",
        ),
        (HYDRA, "optimizer.lr={lr} data.batch_size={batch_size} max_epochs={epochs}"),
    ],
    ids=["argparse", "HfArgumentParser", "click", "typer", "absl", "subcommands", "hydra"],
)
def test_a_program_is_asked_for_its_options(parser: str, words: str, bench: Bench) -> None:
    """What then stands in the file trains an epoch, with a report."""
    path = draft(bench, BODY + parser)
    experiment = load_experiment(path, {})
    assert experiment.train == f"python main.py {words}"
    assert experiment.to_json()["search"] == {
        "lr": {"loguniform": [0.01, 1]},
        "batch_size": {"choice": [32, 64, 128]},
    }
    assert (experiment.epochs.min, experiment.epochs.max) == (1, 3)
    assert (experiment.metric.name, experiment.metric.mode) == ("val_loss", "min")
    assert experiment.reports.printed == "val loss {val_loss}"
    assert try_script(experiment).reported


FIRE = """
FLAGS
    -l, --lr=LR
        Default: 0.1
        the rate
    -b, --batch_size=BATCH_SIZE
        Type: int
        Default: 64
    -n, --name=NAME
        Type: Optional[str]
        Default: None
"""
TYRO = """
╭─ options ─────────────────────────────────────────────────╮
│ -h, --help                show this help message and exit │
│ --batch-size INT          (default: 64)                   │
│ --amp, --no-amp           (default: False)                │
│ --data PATH               where it is (required)          │
╰───────────────────────────────────────────────────────────╯
╭─ optim options ───────────────────────────────────────────╮
│ --lr FLOAT                the rate (default: 0.1)         │
│ --optim.opt {sgd,adam}    (default: sgd)                  │
╰───────────────────────────────────────────────────────────╯
"""
PLAIN = """
options:
  -h, --help            show this help message and exit
  --lr LR, --rate LR    the rate, which
                        decides (default: 0.1)
  -b BATCH_SIZE, --batch_size BATCH_SIZE
                        how many [default: 64]
  --opt {sgd,adam}
"""


@pytest.mark.parametrize("text", [FIRE, TYRO, PLAIN], ids=["fire", "tyro", "text"])
def test_help_is_read_without_a_parser(text: str) -> None:
    """As printed by fire 0.7.1, tyro 1.0.17 and argparse."""
    options = {option.name: option for option in read_help("", text).options}
    assert options["lr"].default == 0.1
    batch = options["batch_size"]
    assert (batch.default, batch.takes_value) == (64, True)
    if text == FIRE:
        assert options["name"].default is UNKNOWN
    if text == TYRO:
        assert options["data"].required
        assert not options["amp"].takes_value
        assert options["optim.opt"].choices == ("sgd", "adam")


@given(text=st.text(" -abl:=[]()│\n{}<>,0.1", max_size=60) | st.text(max_size=40))
def test_no_help_is_too_odd(text: str) -> None:
    for option in read_help("", text).options:
        assert option.flag.startswith("-")


@pytest.mark.parametrize("line", ['print(f"loss {loss}")', 'print(f"speed {acc}")', "pass"])
def test_what_each_step_prints_is_no_metric(line: str, bench: Bench) -> None:
    line = f"[print(f'loss {{loss / (step + 1)}}') for step in range(4)]; {line}"
    text = draft(bench, PROGRAM % line).read_text()
    assert f"metric: {{name: , mode: min}}  # {GAP}" in text


CSV = """
import csv, os
os.makedirs("logs/run_17", exist_ok=True)
for epoch in range(1, options.epochs + 1):
    with open("logs/run_17/metrics.csv", "a") as file:
        if epoch == 1:
            file.write("epoch,train_loss,val_auc\\n")
        file.write(f"{epoch},0.5,{options.lr / epoch}\\n")
"""
EVENTS = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter()
for epoch in range(options.epochs):
    writer.add_scalar("Accuracy/val", options.lr + epoch, epoch)
writer.close()
"""
TRAINER = """
import pathlib
rows = []
for epoch in range(1, options.epochs + 1):
    rows.append({"epoch": epoch, "eval_loss": options.lr / epoch})
    folder = pathlib.Path(f"{options.ckpt_dir}/checkpoint-{epoch}")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("model")
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
"""


@pytest.mark.parametrize(
    ("script", "metric", "mode", "pattern"),
    [
        (CSV, "val_auc", "max", "logs/run_*/metrics.csv"),
        (EVENTS, "Accuracy/val", "max", "runs/*/*tfevents*"),
        (TRAINER, "eval_loss", "min", "out/checkpoint-*/trainer_state.json"),
    ],
    ids=["CSV", "TensorBoard", "Trainer"],
)
def test_files_of_numbers_are_found(
    script: str, metric: str, mode: str, pattern: str, bench: Bench
) -> None:
    program = PROGRAM.partition("for epoch")[0].replace("default=2", "default=3")
    experiment = load_experiment(draft(bench, program + script), {})
    assert (experiment.metric.name, experiment.metric.mode) == (metric, mode)
    assert experiment.reports.file is not None
    assert experiment.reports.file == pattern or "tfevents" in pattern
    assert experiment.epochs.max == 3
    assert try_script(experiment).reported
    assert experiment.checkpoints.folder == ("out" if script == TRAINER else None)
    assert not experiment.can_resume


def test_required_options_may_be_given(bench: Bench) -> None:
    data = 'parser.add_argument("--data", required=True)'
    kind = 'parser.add_argument("--kind", required=True, default="a b")'
    needs = f'{data}\n{kind}\nparser.add_argument("--epochs"'
    program = BODY + ARGPARSE.replace('parser.add_argument("--epochs"', needs)
    (bench.folder / "main.py").write_text(program)
    done = bench.here("init", bench.folder / "main.py")
    done.refused("main.py needs --data, --kind; write: cloudtune init", "--data VALUE --kind 'a b'")
    assert not (bench.folder / "experiment.yaml").exists()
    words = ("--", "--data", "a {b}", "--kind", "c", "--epochs", "2", "--lr", "0.01")
    bench.here("init", bench.folder / "main.py", *words).succeeded()
    experiment = load_experiment(bench.folder / "experiment.yaml", {})
    assert "--data 'a {{b}}' --kind c --lr {lr}" in experiment.train
    assert experiment.train.endswith("--epochs {epochs}")
    assert experiment.epochs.max == 2
    assert experiment.to_json()["search"]["lr"] == {"loguniform": [0.001, 0.1]}
    assert try_script(experiment).reported


def test_failing_program_shows_last_lines(bench: Bench) -> None:
    (bench.folder / "main.py").write_text(ARGPARSE)
    bench.here("init", bench.folder / "main.py").refused(
        "NameError: name 'train' is not defined", "`python main.py` ended with code 1"
    )


def test_a_program_without_help_is_written_by_hand(bench: Bench) -> None:
    (bench.folder / "main.py").write_text("import sys\nassert '=' in sys.argv[1], 'NAME=VALUE'\n")
    done = bench.here("init", bench.folder / "main.py")
    done.refused("AssertionError: NAME=VALUE", "train: python main.py --NAME={NAME}")


def test_traceback_has_program_lines_alone(bench: Bench) -> None:
    program = "import json\ndef read(text):\n    json.loads(text)\nread('{\\n')"
    (bench.folder / "main.py").write_text(f"import argparse\n{program}\n")
    done = bench.here("init", bench.folder / "main.py")
    done.refused("main.py:4: json.decoder.JSONDecodeError: Expecting property name", "read(")
    assert "decoder.py" not in done.err
    raised = "raise ValueError('The first line.\\nAnother one.')"
    (bench.folder / "main.py").write_text(f"{raised}\n")
    bench.here("init", bench.folder / "main.py").refused("main.py:1: ValueError: The first line.\n")


def test_project_program_runs_from_top(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python tools/main.py`; it finds the project's modules, as installed ones would be."""
    top = bench.folder
    (top / "pyproject.toml").touch()
    (top / "nets").mkdir()
    (top / "nets/deep.py").write_text("SIZE = 3\n")
    (top / "size.txt").write_text("4")
    (top / "tools").mkdir()
    (top / "tools/helper.py").write_text("from nets.deep import SIZE\n")
    use = "import helper\nfrom nets import deep\nsize = open('size.txt').read()"
    program = PROGRAM.replace("import argparse", f"{use}\nimport argparse")
    (top / "tools/main.py").write_text(program % "print('val acc', acc * int(size))")
    bench.here("init", "tools/main.py").succeeded()
    experiment = load_experiment(top / "experiment.yaml", {})
    assert experiment.train.startswith("python tools/main.py --lr {lr}")
    assert experiment.env == {"PYTHONPATH": "."}
    assert try_script(experiment).reported

    monkeypatch.chdir(top / "tools")
    with pytest.raises(UsageError, match=r"nets is in .*: cd .*; cloudtune init tools/main.py"):
        draft_script(Path("main.py"), show=print)


def test_a_package_that_is_not_installed_is_named(bench: Bench) -> None:
    (bench.folder / "main.py").write_text("import no_such_package\n")
    bench.here("init", "main.py").refused("; no_such_package isn't installed for ")


def test_project_has_files_of_its_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As hydra's `config_path="../config"`."""
    top = bench.folder
    (top / ".git").mkdir()
    (top / "scripts").mkdir()
    (top / "size.txt").write_text("4")
    size = "from pathlib import Path; size = Path(__file__).parents[1].joinpath('size.txt')\n"
    program = PROGRAM.replace("import argparse", f"{size}size.read_text()\nimport argparse")
    (top / "scripts/main.py").write_text(program % "print('val acc', acc)")
    monkeypatch.chdir(top / "scripts")
    with pytest.raises(UsageError, match=rf"of {top}: cd {top}; cloudtune init scripts/main.py"):
        draft_script(Path("main.py"), show=print)
    monkeypatch.chdir(top)
    assert draft_script(Path("scripts/main.py"), show=print).metric == "val_acc"


def test_modules_on_pythonpath_are_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.folder / "nets").mkdir()
    (bench.folder / "nets/deep.py").touch()
    program = PROGRAM.replace("import argparse", "import argparse, deep")
    (bench.folder / "main.py").write_text(program % "print('val acc', acc)")
    monkeypatch.setenv("PYTHONPATH", f"{bench.folder}/nets:/of/this/machine")
    bench.here("init", "main.py").succeeded()
    experiment = load_experiment(bench.folder / "experiment.yaml", {})
    assert experiment.env == {"PYTHONPATH": "nets"}
    monkeypatch.delenv("PYTHONPATH")
    assert try_script(experiment).reported


def test_outside_program_runs_from_own_folder(bench: Bench) -> None:
    folder = bench.folder / "other"
    folder.mkdir()
    (folder / "main.py").write_text(PROGRAM % "print('val acc', acc)")
    bench.here("init", "other/main.py").succeeded()
    assert load_experiment(folder / "experiment.yaml", {}).train.startswith("python main.py ")


def test_ignored_data_is_named(bench: Bench) -> None:
    data = bench.folder / "data/train"
    data.mkdir(parents=True)
    (data / "rows.csv").write_text("1")
    (bench.folder / ".gitignore").write_text("data\n")
    program = PROGRAM % "open('data/train/rows.csv'); print('val acc', acc)"
    (bench.folder / "main.py").write_text(program)
    done = bench.here("init", bench.folder / "main.py")
    done.refused("it is there, but isn't sent: !data/ in .cloudtuneignore sends it")
    (bench.folder / ".cloudtuneignore").write_text("!data/\n")
    bench.here("init", bench.folder / "main.py").succeeded()


def test_data_beside_the_folder_is_not_copied(bench: Bench) -> None:
    program = ARGPARSE.replace("train(args.lr", "open('../data.csv'), (args.lr")
    (bench.folder / "main.py").write_text(program)
    bench.here("init", bench.folder / "main.py").refused(
        "FileNotFoundError", f"only files in {bench.folder.resolve()} are copied"
    )


def test_a_metric_of_the_end_is_one_report(bench: Bench) -> None:
    program = PROGRAM.replace("    %s", "    pass\nprint('test acc', acc * options.lr)")
    path = draft(bench, program, "--", "--epochs", "4")
    experiment = load_experiment(path, {})
    assert experiment.train == "python main.py --epochs 4 --lr {lr}"
    assert (experiment.epochs.max, experiment.metric.name) == (1, "test_acc")


# Each time the epochs begin at 1.
ROUNDS = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()
for number in range(%d):
    for epoch in range(1, options.epochs + 1):
        print(f"round {number} epoch {epoch} val acc {0.5 + number * options.lr}", flush=True)
    time.sleep(%g)
open("last.pt", "w").write("a model")
print("%s acc", options.lr * 2)
"""


@pytest.mark.parametrize(
    ("pause", "let_end"), [(5.5, 15.0), (3.0, 0.0)], ids=["it ends soon", "it has begun again"]
)
def test_phases_of_a_training_are_counted_to_its_end(
    pause: float, let_end: float, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at what it has printed finds enough, of one phase or of both."""
    monkeypatch.setattr("cloudtune.lifecycle.observation._LET_END_SECONDS", let_end)
    path = draft(bench, ROUNDS % (2, pause, "train"))
    experiment = load_experiment(path, {})
    assert (experiment.metric.name, experiment.epochs.max) == ("val_acc", 6)
    assert experiment.train == "python main.py --lr {lr}", "its epochs are no option of one phase"
    assert experiment.progress.every == 1
    assert experiment.checkpoints.folder == "."
    assert "whose epochs begin 2 times" in path.read_text()


def test_the_mean_of_folds_decides(bench: Bench) -> None:
    experiment = load_experiment(draft(bench, ROUNDS % (4, 0.0, "mean")), {})
    assert (experiment.metric.name, experiment.epochs.max) == ("mean_acc", 1)
    assert experiment.reports.printed == "mean acc {mean_acc}"


def test_the_more_exact_of_two_numbers_is_taken(bench: Bench) -> None:
    """As beside scikit-learn's classification_report, where close configurations look equal."""
    table = "print('    accuracy                         0.97       450')"
    program = PROGRAM.replace("    %s", f"    pass\n{table}\nprint('Accuracy:', 0.971 + lr / 1e3)")
    experiment = load_experiment(draft(bench, program), {})
    assert experiment.reports.printed == "Accuracy {Accuracy}"


def test_the_data_of_a_metric_is_in_its_pattern(bench: Bench) -> None:
    """A line "test acc" may come after all that is tried, and is no epoch of `val acc`."""
    experiment = load_experiment(draft(bench, PROGRAM % "print(f'val acc {acc}')"), {})
    assert experiment.reports.printed == "val acc {val_acc}"


def test_a_file_of_its_model_elsewhere_is_kept(bench: Bench) -> None:
    saves = "open(options.ckpt_dir, 'w').write('a model'); print(f'val acc {acc}')"
    program = (PROGRAM % saves).replace('default="out"', 'default="/nowhere/best.pt"')
    experiment = load_experiment(draft(bench, program), {})
    assert experiment.train.startswith("python main.py --ckpt-dir best.pt ")
    assert experiment.checkpoints.folder == "."


def test_epoch_mean_comes_before_batch() -> None:
    """As Lightning names them."""
    names = ["valid_loss_step", "valid_loss_epoch", "train_loss_epoch", "episodic_return"]
    assert sorted(names, key=rank)[:2] == ["valid_loss_epoch", "valid_loss_step"]


# As tqdm draws it: each epoch sets its metric, then the bar moves on, also after the last one.
EPOCH_BAR = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
%s
epochs = %s
for epoch in range(epochs):
    loss = 2 - epoch * parser.parse_args().lr
    for step in (epoch, epoch + 1):
        bar = "#" * step + " " * (epochs - step)
        print(f"\\r {step / epochs:4.0%%}|{bar}| {step}/{epochs} [00:01, loss={loss}]", end="")
        sys.stdout.flush()
print()
"""


@pytest.mark.parametrize(
    ("option", "epochs", "train"),
    [
        ("", "7", "python main.py --lr {lr}"),
        (
            "parser.add_argument('--epochs', type=int, default=6)",
            "parser.parse_args().epochs",
            "python main.py --lr {lr} --epochs {epochs}",
        ),
    ],
    ids=["a constant", "an option"],
)
def test_a_bar_over_epochs_has_as_many_as_its_steps(
    option: str, epochs: str, train: str, bench: Bench
) -> None:
    path = draft(bench, EPOCH_BAR % (option, epochs))
    experiment = load_experiment(path, {})
    assert experiment.train == train
    assert (experiment.progress.every, experiment.epochs.max) == (1, 6 if option else 7)
    limits = ("--deadline", "5m", "--trials", "1", "--strategy", "random")
    said = bench.here("run", path, "--provider", "local", *limits).succeeded()
    assert f"at epoch {experiment.epochs.max}" in said.out


def test_a_bar_over_batches_counts_no_epochs(bench: Bench) -> None:
    batches = EPOCH_BAR.replace("range(epochs)", "range(3 * epochs)").replace(
        "(epoch, epoch + 1)", "(epoch %% epochs, epoch %% epochs + 1)"
    )
    experiment = load_experiment(draft(bench, batches % ("", "7")), {})
    assert experiment.epochs.max == 3


def test_a_bar_without_the_metric_counts_no_epochs(bench: Bench) -> None:
    """As of the files of a model, which are loaded one by one before it trains."""
    prints = "for n in range(5): print('val loss', 1 / (n + 1))"
    loads = EPOCH_BAR.replace(", loss={loss}", "") + prints
    experiment = load_experiment(draft(bench, loads % ("", "8")), {})
    assert experiment.metric.name == "val_loss"
    assert (experiment.progress.every, experiment.epochs.max) == (1, 5)


def test_reports_of_every_few_epochs(bench: Bench) -> None:
    program = (PROGRAM % "if epoch % 2: print('val acc', acc + epoch)").replace(
        "default=2", "default=6"
    )
    experiment = load_experiment(draft(bench, program), {})
    assert (experiment.progress.every, experiment.epochs.max) == (2, 6)


@pytest.mark.parametrize(
    "line",
    [
        'print(f"epoch {epoch + part:.2f} val loss {value}", flush=True)',
        'print(f"epoch {epoch + 1} step {500 * part:.0f}/500 val loss {value}", flush=True)',
        'print(f"epoch {epoch + 1} val loss {value}", flush=True)',
        "print(json.dumps({'epoch': epoch + part, 'val loss': value}), file=log, flush=True)",
    ],
)
def test_a_program_that_reports_parts_of_an_epoch(bench: Bench, line: str) -> None:
    body = f"for part in (0.25, 0.5, 0.75, 1): value = lr / (epoch + part); {line}"
    program = (PROGRAM % body).replace("for epoch", "log = open('log.jsonl', 'w')\nfor epoch", 1)
    path = draft(bench, program)
    experiment = load_experiment(path, {})
    assert experiment.train == "python main.py --lr {lr} --epochs {epochs}"
    assert (experiment.progress.every, experiment.epochs.max) == (0.25, 2)
    assert (experiment.span.min, experiment.span.max) == (1, 8)
    said = bench.here("plan", path, "--deadline", "10m", "--budget", "$2").succeeded()
    assert "up to 2 epochs a trial" in said.out


def test_a_program_that_counts_steps(bench: Bench) -> None:
    program = PROGRAM.replace("--epochs", "--max-steps").replace("options.epochs", "5")
    line = "print(f'step {100 * epoch} | return {epoch - lr}')"
    program = (program % line).replace("default=2", "default=1600")
    experiment = load_experiment(draft(bench, program), {})
    assert experiment.train.endswith("--max-steps {steps}")
    assert (experiment.progress.unit, experiment.progress.every) == ("step", 100)
    assert (experiment.epochs.max, experiment.metric.name) == (1600, "return")
    assert experiment.reports.printed == "step {step}.*?return {return}"
    assert try_script(experiment).reported


def test_endless_program_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtune.lifecycle.observation.SECONDS", 3.0)
    program = (PROGRAM % "print('val acc', acc + epoch)").replace("default=2", "default=1000")
    program += "import time; time.sleep(1000)\n"
    experiment = load_experiment(draft(bench, program), {})
    assert (experiment.metric.name, experiment.epochs.max) == ("val_acc", 1000)
    assert {path.name for path in bench.folder.iterdir()} == {"main.py", "experiment.yaml"}


def test_example_function_is_not_the_training(bench: Bench) -> None:
    prepares = """
if not __debug__:
    import transformers
def prepare(example):
    return f"{example['question']} {example['answer']}"
"""
    program = prepares + PROGRAM % "print('val acc', acc)"
    experiment = load_experiment(draft(bench, program), {})
    assert experiment.train == "python main.py --lr {lr} --epochs {epochs}"


FIRE_CLASS = """
import sys
HELP = {
    "--help": "SYNOPSIS\\n    main.py -\\n",
    "- --help": "COMMANDS\\n    COMMAND is one of the following:\\n\\n     train\\n",
    "train --help": "FLAGS\\n    -l, --lr=LR\\n        Type: float\\n        Default: 0.1\\n",
}
if "--help" in sys.argv:
    print(HELP[" ".join(sys.argv[1:])])
else:
    print("val acc", 0.5)
if not __debug__:
    import fire
"""


@pytest.mark.parametrize("words", [(), ("--lr", "0.3"), ("train", "--lr", "0.3")], ids=str)
def test_fire_methods_are_commands(words: tuple[str, ...], bench: Bench) -> None:
    experiment = load_experiment(draft(bench, FIRE_CLASS, "--", *words), {})
    assert experiment.train == "python main.py train --lr {lr}"


def test_where_a_program_saves_is_kept(bench: Bench) -> None:
    """It isn't known whether it goes on from there, so that it is never paused."""
    saves = "open(options.ckpt_dir + '/last.pt', 'w').write('x'); print(f'val loss {epoch}')"
    program = (PROGRAM % saves).replace("import argparse", "import os; import argparse")
    program = program.replace("logging.basic", "os.makedirs('out', exist_ok=True); logging.basic")
    path = draft(bench, program)
    text = path.read_text()
    assert "checkpoints: {folder: out, resumes: false}  # out/last.pt" in text
    assert "# With `--resume {resume}/last.pt` in train" in text
    assert not load_experiment(path, {}).can_resume
    text = text.replace(", resumes: false", "").replace("--lr", "--resume {resume}/last.pt --lr", 1)
    path.write_text(text)
    experiment = load_experiment(path, {})
    assert (experiment.checkpoints.folder, experiment.can_resume) == ("out", True)


def test_trees_have_their_ranges_and_a_library_s_long_list_has_none(bench: Bench) -> None:
    parses = "options = parser.parse_args()"
    options = """parser.add_argument("--max_depth", type=int, default=4)
parser.add_argument("--subsample", type=float, default=1.0)
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
parser.add_argument("--optim", choices=list("abcdefghijkl"), default="a")
parser.add_argument("--hidden", type=int, choices=[24, 48], default=24)
"""
    program = (PROGRAM % "print(f'val acc {acc}')").replace(parses, options + parses)
    search = load_experiment(draft(bench, program), {}).to_json()["search"]
    assert search.keys() == {"lr", "max_depth", "subsample", "optimizer", "hidden"}
    assert search["hidden"] == {"choice": [24, 48]}
    assert search["max_depth"] == {"choice": [2, 4, 8]}
    assert search["subsample"] == {"uniform": [0.5, 1.0]}


def test_held_out_places_decide(bench: Bench) -> None:
    """As logged to stderr: the training's loss each epoch, the places every few."""
    prints = """
    logging.warning("2026-12-01 10:00:00,%03d train/loss=%.4f", epoch, loss / (epoch + 1))
    logging.warning("val/top1=%.2f val/top5=%.2f", 70 + epoch, 90 + epoch)
"""
    experiment = load_experiment(draft(bench, PROGRAM % prints.strip()), {})
    assert (experiment.metric.name, experiment.metric.mode) == ("val/top1", "max")


@pytest.mark.parametrize("option", ["--eta", "--C"])
def test_options_of_classic_models_are_tuned(option: str, bench: Bench) -> None:
    program = f"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("{option}", type=float, default=1.0)
parser.parse_args()
print("Accuracy: 0.953 (+/- 0.052)")
"""
    experiment = load_experiment(draft(bench, program), {})
    name = option.strip("-").lower()
    assert experiment.train == f"python main.py {option} {{{name}}}"
    assert experiment.metric.name == "Accuracy"


def test_option_folder_may_have_digits(bench: Bench) -> None:
    saves = "Path(options.ckpt_dir, str(epoch)).mkdir(parents=True)"
    saves += "; Path(options.ckpt_dir, str(epoch), 'x.pt').touch(); print(f'val loss {epoch}')"
    program = (PROGRAM % saves).replace(
        "import argparse", "from pathlib import Path; import argparse"
    )
    text = draft(bench, program.replace('"out"', '"model-64"')).read_text()
    assert "checkpoints: {folder: model-64, resumes: false}  # model-64/1/x.pt" in text
    assert "# With `--resume {resume:*/x.pt}` in train" in text


def test_nothing_is_written_over_and_mistakes_are_reported(tmp_path: Path, bench: Bench) -> None:
    script = Path(shutil.copy(EXAMPLES / "smudged/train.py", tmp_path))
    path = write_experiment(tmp_path, "mine")
    for words, result in (
        (
            [script],
            f"{path} already exists; choose another file with --out, or overwrite it with --force",
        ),
        (
            [script, "--out", tmp_path.parent / "e.yaml"],
            f"the experiment must be in {tmp_path}, whose files instances get",
        ),
        ([tmp_path / "nosuch.py", "--out", tmp_path / "e.yaml"], "no such file"),
        ([tmp_path, "--out", tmp_path.parent / "e.yaml"], "no such file"),
    ):
        done = bench.here("init", *words)
        assert (done.code, done.out) == (2, "")
        assert result in done.err
        assert path.read_text() == "mine"
    done = bench.here("init", script, "--force").succeeded()
    assert load_experiment(path, {}).name == "train"


@pytest.mark.parametrize(
    ("inits", "module"),
    [((), "..scores"), (("nets", "nets/small"), ".scores")],
    ids=["namespaces", "packages"],
)
def test_a_module_of_a_package_is_called_as_one(
    inits: tuple[str, ...], module: str, bench: Bench
) -> None:
    """It can't be run by its path: its imports are relative."""
    small = bench.folder / "nets/small"
    small.mkdir(parents=True)
    for folder in inits:
        (bench.folder / folder / "__init__.py").touch()
    for place in (small, small.parent):
        (place / "scores.py").write_text("score = 0.5")
    program = f"from {module} import score\n" + PROGRAM % "print(f'val acc {score}')"
    (small / "train.py").write_text(program)
    bench.here("init", small / "train.py").succeeded()
    experiment = load_experiment(bench.folder / "experiment.yaml", {})
    assert experiment.train == "python -m nets.small.train --lr {lr} --epochs {epochs}"
    assert experiment.train_file == small / "train.py"


FASTAI = """
epoch     train_loss  valid_loss  accuracy  time
0         1.520000    0.900000    0.300000  00:03
Epoch 2 : |----| 12.50% [1/8 00:00<00:02]
1         1.120000    0.700000    0.550000  00:03
2         0.920000    0.600000    0.710000  00:03
"""
BARS = """
Loading the data set of 60000 images
| Epoch | Train loss | Val acc (%) |
|-------|------------|-------------|
| 1     | 1.52       | 30          |
| 2     | 1.12       | 55          |
| 3     | 0.92       | nan         |
"""


@pytest.mark.parametrize(
    ("table", "metric", "values", "epochs"),
    [
        (FASTAI, "valid_loss", [0.9, 0.7, 0.6], [0, 1, 2]),
        (BARS, "val_acc", [30.0, 55.0, math.nan], [1, 2, 3]),
    ],
    ids=["fastai", "bars"],
)
def test_columns_of_a_printed_table_are_metrics(
    table: str, metric: str, values: list[float], epochs: list[int], bench: Bench
) -> None:
    program = PROGRAM.partition("for epoch")[0] + f"print({table!r})"
    experiment = load_experiment(draft(bench, program), {})
    assert experiment.metric.name == metric
    pattern = LinePattern(present(experiment.reports.printed))
    read = [found for line in table.splitlines() for found in pattern.values(line)]
    assert [row["epoch"] for row in read] == epochs
    assert [row[metric] for row in read] == pytest.approx(values, nan_ok=True)


CONSTANTS = """
LR = 1e-3
EPOCHS: int = 4
for epoch in range(EPOCHS):
    print(f"epoch {epoch} val_loss {LR / (epoch + 1)}")
"""
IN_A_DICT = """
SETTINGS = {"lr": 1e-3, "epochs": 4, "name": "x"}
for epoch in range(SETTINGS["epochs"]):
    print(f"epoch {epoch} val_loss {SETTINGS['lr'] / (epoch + 1)}")
"""


@pytest.mark.parametrize("source", [CONSTANTS, IN_A_DICT], ids=["names", "dict"])
def test_lines_that_make_constants_options(source: str, bench: Bench) -> None:
    """What the refusal says to write is enough."""
    script = bench.folder / "main.py"
    script.write_text(source)
    refusal = bench.here("init", script).refused().err
    lines = [line[4:] for line in refusal.splitlines() if line.startswith("    ")]
    begin, end = source.split("for epoch", 1)
    source = "\n".join([begin, *lines, f"for epoch{end}"])
    experiment = load_experiment(draft(bench, source), {})
    assert experiment.train == "python main.py --lr {lr} --epochs {epochs}"
    assert experiment.metric.name == "val_loss"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "train.sh",
            "#!/bin/bash\nexport A=1\npython3 -u main.py \\\n  --lr 0.1 > log\n",
            "main.py -- --lr 0.1",
        ),
        ("run", '#!/bin/sh\npython main.py --lr "$LR" | tee log\n', "the values of `--lr $LR`"),
        ("train.sh", "./prepare\n", "no line `python PROGRAM.py"),
        ("train.sh", "python data.py\npython main.py\n", "calls 2 (data.py, main.py)"),
        ("main.ipynb", '{"cells": []}', "to script"),
    ],
)
def test_what_is_no_python_names_the_program(
    name: str, text: str, message: str, bench: Bench
) -> None:
    (bench.folder / name).write_text(text)
    bench.here("init", bench.folder / name).refused(message)


KEYS_AND_VALUES = """
import argparse
DEFAULTS = {"SOLVER.LR": 0.1}
parser = argparse.ArgumentParser()
parser.add_argument("opts", nargs=argparse.REMAINDER)
parser.parse_args()
"""
READS_A_FILE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="base.yaml")
parser.parse_args()
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (\n", r"s.py:1: not valid Python: '\(' was never closed"),
        ("print(1)\n", "nothing to tune: no function that takes.*names no options"),
        (
            "def train(config): ...\n",
            "nothing to tune.*train: python s.py {config} .cloudtune docs",
        ),
        (
            READS_A_FILE,
            "its options are --config;.*train: python s.py --config {config:base.yaml} ",
        ),
        (KEYS_AND_VALUES, "nothing to tune.*as train: python s.py optim.lr {lr} "),
        ("\0", "not valid Python"),
    ],
)
def test_a_script_that_nothing_can_be_made_of(source: str, message: str, tmp_path: Path) -> None:
    """It isn't tried for a minute first."""
    script = tmp_path / "s.py"
    script.write_text(source)
    shown: list[str] = []
    with pytest.raises(UsageError, match=message):
        draft_script(script, show=shown.append)
    assert shown == []


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
    assert complete("cloudtune report b", monkeypatch, capsys) == ["b-1", "b-2"]
    assert complete("cloudtune resume b-2", monkeypatch, capsys) == ["b-2"]
    assert complete("cloudtune in", monkeypatch, capsys) == ["init"]

    def broken() -> list[Path]:
        raise PermissionError

    monkeypatch.setattr(home, "run_folders", broken)
    assert complete("cloudtune logs b", monkeypatch, capsys) == []


def complete(
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


def test_what_a_program_saves_beside_itself_is_kept(bench: Bench) -> None:
    saves = "open(f'{epoch + 1}.pkl', 'w').write('x'); print(f'val loss {epoch}')"
    saves = f"import time; time.sleep(1); {saves}"
    path = draft(bench, PROGRAM % saves)
    assert "checkpoints: {folder: ., resumes: false}  # 2.pkl" in path.read_text()
    experiment = load_experiment(path, {})
    assert experiment.keeps_models
    tried = try_script(experiment)
    assert (tried.reported, tried.unsaved) == (True, "")
    assert {it.name for it in bench.folder.iterdir()} == {"main.py", "experiment.yaml"}


def test_options_without_off_are_named(bench: Bench) -> None:
    bools = "options = parser.parse_args()"
    added = f'parser.add_argument("--amp", type=bool, default=False)\n{bools}'
    path = draft(bench, (PROGRAM % "print('val acc', acc)").replace(bools, added))
    assert "# --amp has type=bool: any text is True there" in path.read_text()

import json
import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cloudtune.errors import ExperimentError
from cloudtune.experiment import Experiment
from cloudtune.experiment.cloud import CloudSettings
from cloudtune.experiment.schema import Epochs, LimitSettings, MetricSettings, StrategySettings
from cloudtune.experiment.search_space import Grid, LogUniform
from cloudtune.experiment.spaces import sample
from tests.builders.experiments import FIELDS, write_experiment

DIGITS = """\
name: digits
train: train.py:train
metric: {name: val_accuracy, mode: max}
search:
  lr: {loguniform: [1e-4, 1]}
  nesterov: {grid: [true, false]}
  epochs_hint: 5                   # a plain value is a constant
trials: 12
epochs: {min: 1, max: 27}
eta: 3
strategy: sha
limits: {deadline: 2h, budget: $40}
cloud:
  provider: emulated
  instances: [g4dn.12xlarge]
  market: on-demand
  max_instances: 4
storage: ~/cloudtune     # or s3://bucket/prefix
seed: 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_experiment(tmp_path, DIGITS)


def refusal(path: Path, **options: Any) -> list[str]:
    """Return the lines of the message, without the folder of the file."""
    with pytest.raises(ExperimentError) as error:
        Experiment.load(path, **options)
    return str(error.value).replace(f"{path.parent}{os.sep}", "").splitlines()


def test_a_file_is_read(file: Path) -> None:
    experiment = Experiment.load(file)
    assert experiment.name == "digits"
    assert experiment.metric == MetricSettings(name="val_accuracy", mode="max")
    assert experiment.epochs == Epochs(min=1, max=27)
    assert (experiment.limits.deadline, experiment.limits.budget) == (7200.0, 40.0)
    named = {"instances": ["g4dn.12xlarge"], "market": "on-demand", "max_instances": 4}
    assert experiment.cloud == CloudSettings.model_validate(named)
    assert experiment.storage == "~/cloudtune"
    assert (experiment.trials, experiment.eta, experiment.strategy.name) == (12, 3, "sha")


def test_strategy_is_name_or_mapping(file: Path) -> None:
    text = file.read_text()
    file.write_text(text.replace("strategy: sha", "strategy: asha"))
    assert Experiment.load(file).strategy == StrategySettings(name="asha")
    options = "{name: hypersched, fleet: 'constant:4', max_concurrent: 8, target: 0.95}"
    file.write_text(text.replace("strategy: sha", f"strategy: {options}"))
    chosen = Experiment.load(file).strategy
    assert (chosen.name, chosen.fleet) == ("hypersched", "constant:4")
    assert (chosen.sampler, chosen.max_concurrent, chosen.target) == (None, 8, 0.95)
    assert Experiment.load(file, {"strategy": "sha"}).strategy == StrategySettings(name="sha")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("ashaa", "strategy: 'ashaa' is not known; allowed: sha, asha. Did you mean 'asha'?"),
        ("{name: asha, fleet: 'niave:4'}", "strategy.fleet: 'niave:4' is not known; allowed: "),
    ],
)
def test_unknown_choices_are_named(file: Path, given: str, line: str) -> None:
    known = {"name": ["sha", "asha"], "fleet": ["constant", "naive"]}
    file.write_text(file.read_text().replace("strategy: sha", f"strategy: {given}"))
    [message] = refusal(file, known_choices=known)
    assert message.startswith(f"experiment.yaml:11: {line}")
    file.write_text(file.read_text().replace(given, "{name: asha, fleet: 'naive:4'}"))
    assert Experiment.load(file, known_choices=known).strategy.fleet == "naive:4"


def test_defaults_are_what_a_laptop_needs() -> None:
    experiment = Experiment(**FIELDS)
    assert experiment.limits == LimitSettings(deadline=None, budget=None)
    assert experiment.cloud.provider == "emulated"
    cloud = experiment.cloud
    assert (cloud.instances, cloud.market, cloud.max_instances) == (("*",), "any", None)
    assert experiment.storage == "~/.cloudtune/storage"
    assert (experiment.epochs.min, experiment.eta, experiment.seed) == (1, 3, 0)
    assert experiment.directory == Path.cwd()


def test_python_may_give_models_domains_and_timedeltas(file: Path) -> None:
    experiment = Experiment(
        name="digits",
        train="train.py:train",
        metric=MetricSettings(name="val_accuracy", mode="max"),
        search={"lr": LogUniform(1e-4, 1), "nesterov": Grid((True, False)), "epochs_hint": 5},
        trials=12,
        epochs={"min": 1, "max": 27},
        strategy="sha",
        limits={"deadline": timedelta(hours=2), "budget": 40},
        cloud={"instances": ["g4dn.12xlarge"], "market": "on-demand", "max_instances": 4},
        storage="~/cloudtune",
        directory=file.parent,
    )
    assert experiment == Experiment.load(file)


def test_json_gives_an_equal_experiment_back(file: Path) -> None:
    experiment = Experiment.load(file, {"limits.deadline": "0.1s"})
    written = json.dumps(experiment.to_json())
    assert Experiment.from_json(json.loads(written)) == experiment
    assert pickle.loads(pickle.dumps(experiment)) == experiment


@pytest.mark.parametrize("data", [[], "text", None, {1: 2}, {"name": "x"}, {"a" * 99: 1}])
def test_json_that_is_no_experiment_is_refused(data: Any) -> None:
    with pytest.raises(ExperimentError):
        Experiment.from_json(data)


def test_options_go_before_the_file(file: Path) -> None:
    experiment = Experiment.load(
        file,
        {
            "limits.deadline": "5m",
            "limits.budget": "$2",
            "trials": 8,
            "cloud.provider": "aws",
            "cloud.max_instances": None,
        },
    )
    assert (experiment.limits.deadline, experiment.limits.budget) == (300.0, 2.0)
    assert experiment.trials == 8
    assert (experiment.cloud.provider, experiment.cloud.max_instances) == ("aws", 4)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("limits.deadline", "90", "--deadline: '90' has no unit"),
        ("limits.budget", "-3", "--budget: '-3' is not a positive amount"),
        ("trials", 0, "--trials: 0 is too small: the minimum is 1; write for example 12"),
        (
            "cloud.provider",
            "asw",
            "--provider: 'asw' is not known; allowed: emulated, aws, local, ray, slurm.",
        ),
        ("cloud.instances", ("p9",), "--instances: 'p9' is not an instance type known here"),
        ("tirals", 3, "--tirals: unknown field; allowed: name, train,"),
    ],
)
def test_a_mistake_in_an_option(file: Path, option: str, value: object, message: str) -> None:
    (line,) = refusal(file, overrides={option: value}, known_instances=lambda _: {"g4dn.12xlarge"})
    assert line.startswith(message)


# Each case replaces a line of DIGITS: the text to replace, what stands there instead, the message.
BAD_FIELDS = [
    ("name: digits", "name: my digits", "1: name: 'my digits' can't name folders and cloud tags;"),
    ("name: digits", "name: 5", "1: name: 5 is not text; write for example digits"),
    ("name: digits", "nmae: digits", "1: nmae: unknown field; allowed: name, train, metric,"),
    ("train.py:train", "train.py", "2: train: 'train.py' is not file.py:function; write the file"),
    ("mode: max", "mode: maxx", "3: metric.mode: 'maxx' is not known; allowed: min, max. Did you"),
    ("name: val_accuracy, ", "", "3: metric.name: missing; write name: val_accuracy"),
    ("{name: val_accuracy, mode: max}", "val", "3: metric: 'val' is not a mapping; write for"),
    (
        "loguniform:",
        "logunifrm:",
        (
            "5: search.lr.logunifrm: unknown distribution 'logunifrm'; allowed: uniform, "
            "loguniform, quniform, qloguniform, randint, lograndint, choice, grid. Did you mean "
            "'loguniform'?"
        ),
    ),
    ("[1e-4, 1]", "[0, 1]", "5: search.lr.loguniform: low is 0, and a logarithmic scale starts"),
    ("{loguniform: [1e-4, 1]}", "", "5: search.lr: is empty; write a constant or a distribution"),
    ("  lr:", "  lr:\n    grid: []\n  mu:", "6: search.lr.grid: the list is empty; write at least"),
    ("[true, false]", "[yes, 2]", "6: search.nesterov.grid[0]: yes may mean text or true; write"),
    (
        "trials: 12",
        "trials: 0",
        "8: trials: 0 is too small: the minimum is 1; write for example 12",
    ),
    ("trials: 12", 'trials: "12"', "8: trials: '12' is not a whole number; write for example 12"),
    ("trials: 12", "directory: /", "8: directory: unknown field; allowed: name, train,"),
    ("min: 1, max: 27", "min: 9, max: 3", "9: epochs.max: 3 is below the min, 9; raise it"),
    ("min: 1, max: 27", "min: 1", "9: epochs.max: missing; write max: 27"),
    ("epochs: {min: 1, max: 27}", "epochs: 27", "9: epochs: 27 is not a mapping; write for"),
    ("strategy: sha", "strategy: [sha]", "11: strategy: ['sha'] is not a mapping; write for"),
    ("strategy: sha", "strategy: {name: asha, target: high}", "11: strategy.target: 'high': "),
    ("2h", "90", "12: limits.deadline: '90' has no unit (seconds, minutes or hours?); write 90s,"),
    ("2h", "[2h]", "12: limits.deadline: ['2h'] is not a duration; write one such as 30m or 2h"),
    ("$40", "-3", "12: limits.budget: '-3' is not a positive amount in US dollars; write"),
    ("$40", "€40", "12: limits.budget: '€40' is not in US dollars, the only currency here"),
    ("[g4dn.12xlarge]", "[]", "15: cloud.instances: is empty; write for example [g4dn.12xlarge]"),
    ("[g4dn.12xlarge]", "[a, b, a]", "15: cloud.instances[2]: 'a' is listed twice; keep one"),
    ("on-demand", "cheap", "16: cloud.market: 'cheap' is not known; allowed: on-demand, spot,"),
    (
        "on-demand",
        "any\n  zones: [a, b]\n  subnet: subnet-1",
        "17: cloud.zones: a subnet lies in one zone; name that one, or leave subnet out",
    ),
    (
        "on-demand",
        "any\n  vcpu_quotas: {gpus: 8}",
        "17: cloud.vcpu_quotas.gpus: 'gpus' is no quota; write the market and the class",
    ),
    ("max_instances: 4", "max_instance: 4", "17: cloud.max_instance: unknown field; allowed:"),
    ("~/cloudtune ", "gs://bucket ", "18: storage: 'gs://bucket' is no folder and no s3://bucket/"),
    ("seed: 0", "trial: {gpus: {min: 4, max: 2}}", "19: trial.gpus.max: 2 is below the min, 4; r"),
    ("seed: 0", "trial: {sync: sometimes}", "19: trial.sync: "),
    ("seed: 0", "trial: {stall: {factor: 0.5}}", "19: trial.stall.factor: "),
    ("seed: 0", "eta: 4", "19: eta: written twice, first on line 10; keep one"),
    ("seed: 0", "1: 4", "19: '1' is no field name; quote the name"),
    ("seed: 0", "<<: {}", "19: '<<' is no field name; quote the name"),
    ("seed: 0", "seed: !!python/name:os.system x", "19: seed: the tag 'tag:yaml.org,2002:python/"),
]


@pytest.mark.parametrize(("good", "bad", "message"), BAD_FIELDS)
def test_a_mistake_is_one_line(file: Path, good: str, bad: str, message: str) -> None:
    assert good in DIGITS
    file.write_text(DIGITS.replace(good, bad, 1), encoding="utf-8")
    lines = refusal(file)
    assert any(line.startswith(f"experiment.yaml:{message}") for line in lines), lines
    assert len(lines) == 1


# Whole files: the bytes, the message.
BAD_FILES = [
    (b"", "experiment.yaml: the file is empty; write fields such as name: digits"),
    (b"- a\n- b\n", "experiment.yaml:1: not a mapping; write one `field: value` on each line"),
    (b"\n\njust text\n", "experiment.yaml:3: not a mapping"),
    (b"a: 1\nb: [1, 2\n", "experiment.yaml:3:1: malformed YAML: while parsing a flow sequence"),
    (b"a: 1\nb: c: d\n", "experiment.yaml:2:5: malformed YAML: mapping values are not"),
    (b"a: *x\n", "experiment.yaml:1:4: malformed YAML: found undefined alias 'x'"),
    (b"a: 1\n---\nb: 2\n", "experiment.yaml:2:1: malformed YAML: expected a single document"),
    (b"a: 1\nb: \xff\n", "experiment.yaml:2: not UTF-8 text (byte 0xff); save it as UTF-8"),
    (b"a: 1\nb: \x00\n", "experiment.yaml:2: remove the character that YAML forbids"),
    (b"%YAML 1.99\n---\na: 1\n", "experiment.yaml:1: a line can't start with %"),
    (b"a: &x [*x]\n", "experiment.yaml:1: nested too deeply, or an anchor inside itself"),
    (b"a: " + b"9" * 5000, "experiment.yaml:1: a: '999"),
]


@pytest.mark.parametrize(("data", "message"), BAD_FILES)
def test_a_file_that_is_no_experiment(file: Path, data: bytes, message: str) -> None:
    file.write_bytes(data)
    assert refusal(file)[0].startswith(message)


def test_a_file_that_is_missing_or_unreadable(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.yaml") == ["no.yaml: no such file; give the path of a YAML file"]
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "folder") == ["folder: a folder; give the YAML file inside it"]
    (tmp_path / "file").touch()
    assert "Not a directory" in refusal(tmp_path / "file" / "x.yaml")[0]
    assert "null byte" in refusal(tmp_path / "a\0b")[0]


def test_yaml_bombs_are_refused(file: Path) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    file.write_text("\n".join(["a0: &a0 [x]", *levels]))
    (line,) = refusal(file)
    assert "more than 20000 values; shorten the file" in line


def test_oversized_file_is_not_read(file: Path) -> None:
    file.write_text("x: 1\n" * 250_000)
    (line,) = refusal(file)
    assert "more than 1 MiB, which no experiment has" in line


def test_bom_and_crlf_are_read(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + DIGITS.replace("\n", "\r\n").encode())
    assert Experiment.load(file).name == "digits"


def test_all_mistakes_come_at_once_in_file_order(file: Path) -> None:
    text = DIGITS.replace("mode: max", "mode: up").replace("eta: 3", "eta: x")
    file.write_text(text.replace("name: digits\n", ""))
    assert [line.split(": ", 2)[:2] for line in refusal(file)] == [
        ["experiment.yaml:2", "metric.mode"],
        ["experiment.yaml:9", "eta"],
    ]


@pytest.mark.parametrize(
    ("place", "name"),
    [("vision/experiment.yaml", "vision"), ("a run.yaml", "a-run"), ("wide.yaml", "wide")],
)
def test_without_a_name_it_is_the_files(tmp_path: Path, place: str, name: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(DIGITS.replace("name: digits\n", ""))
    assert Experiment.load(path).name == name


def test_python_mistake_has_field_but_no_line() -> None:
    with pytest.raises(ExperimentError) as error:
        Experiment(**{**FIELDS, "trials": 10**5000, "limits": {"budget": "-3"}, "directory": 5})
    assert str(error.value).splitlines() == [
        (
            "trials: a whole number of 16610 bits is too large: the maximum is 100000; "
            "write for example 12"
        ),
        (
            "limits.budget: '-3' is not a positive amount in US dollars; "
            "write a positive amount such as $40"
        ),
        "directory: 5 is not a folder; write its path",
    ]


def test_unknown_instance_type_is_refused(file: Path) -> None:
    assert Experiment.load(file, known_instances=lambda _: ["g4dn.12xlarge"])
    file.write_text(DIGITS.replace("g4dn.12xlarge", "g4dn.12xlarg"))
    assert Experiment.load(file).cloud.instances == ("g4dn.12xlarg",)
    assert refusal(file, known_instances=lambda _: ["g4dn.12xlarge", "p3.2xlarge"]) == [
        (
            "experiment.yaml:15: cloud.instances[0]: 'g4dn.12xlarg' is not an instance type known "
            "here; allowed: g4dn.12xlarge, p3.2xlarge. Did you mean 'g4dn.12xlarge'?"
        )
    ]
    (line,) = refusal(file, known_instances=lambda _: [f"g4dn.{n}xlarge" for n in range(40)])
    assert line.endswith("40 types are known. Did you mean 'g4dn.12xlarge'?")


def check(file: Path, source: str | bytes) -> str:
    """Return what check_train says about a training file, or nothing where it passes."""
    data = source.encode() if isinstance(source, str) else source
    (file.parent / "train.py").write_bytes(data)
    try:
        Experiment.load(file).check_train()
    except ExperimentError as error:
        return str(error).replace(f"{file.parent}{os.sep}", "")
    return ""


@pytest.mark.parametrize(
    "source",
    [
        "def train(config): ...",
        "import os\nraise SystemExit('never run')\ndef train(config): ...",
        "from models import train",
        "from models import *",
        "train = lambda config: None",
        "try:\n    from fast import train\nexcept ImportError:\n    def train(config): ...",
        "try:\n    pass\nexcept ImportError:\n    def train(config): ...",
        "'\\d'\ndef train(config): ...",
    ],
)
def test_function_is_found_without_running(file: Path, source: str) -> None:
    assert check(file, source) == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def trian(c): ...\ndef main(): ...",
            "train.py: no function 'train'; it defines: trian, main.",
        ),
        ("def trian(c): ...", "it defines: trian. Did you mean 'trian'?"),
        ("x = 1", "the file defines none at its top level; add `def train(...)` or correct"),
        ("def f():\n    def train(self): ...", "no function 'train'; it defines: f."),
        ("class train: ...", "train.py:1: 'train' is a class; name a plain function (def)"),
        ("def train(c):\n    return (", "train.py:2: not valid Python: '(' was never closed"),
        ("x = '\0'", "train.py: not valid Python: source code string cannot contain null bytes"),
        (b"x = '\xff'", "not valid Python: (unicode error) 'utf-8' codec can't decode byte 0xff"),
        ("x = " + "-" * 5000 + "1", "train.py"),
    ],
)
def test_a_training_function_is_missing(file: Path, source: str | bytes, message: str) -> None:
    assert message in check(file, source)


def test_missing_training_file_is_reported(file: Path) -> None:
    (file.parent / "trian.py").touch()
    with pytest.raises(ExperimentError) as error:
        Experiment.load(file).check_train()
    assert str(error.value) == (
        f"{file.parent / 'train.py'}: no such file; `train` is relative to the experiment file. "
        "Did you mean 'trian.py'?"
    )
    (file.parent / "train.py").mkdir()
    with pytest.raises(ExperimentError, match="can't be read: Is a directory"):
        Experiment.load(file).check_train()


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["2h", "$40", "sha", "max", "spot", "aws", "train.py:train", "1e-4", "digits"]),
)
words = st.one_of(
    st.sampled_from(
        [
            *(
                *FIELDS,
                *LimitSettings.model_fields,
                *CloudSettings.model_fields,
                *Epochs.model_fields,
            ),
            *("uniform", "loguniform", "quniform", "randint", "choice", "grid", "lr", "directory"),
        ]
    ),
    st.text(max_size=4),
)
trees = st.recursive(
    scalars,
    lambda below: st.one_of(st.lists(below, max_size=4), st.dictionaries(words, below, max_size=4)),
    max_leaves=12,
)
fuzzing = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def load_or_refuse(path: Path, overrides: dict[str, Any] | None = None) -> None:
    """Load; a valid experiment must survive JSON and be sampled, anything else is one of ours."""
    try:
        experiment = Experiment.load(path, overrides, known_instances=lambda _: ["g4dn.12xlarge"])
    except ExperimentError as error:
        lines = str(error).split("\n")
        unplaced = [line for line in lines if not line.startswith((f"{path}:", "--"))]
        if unplaced:
            pytest.fail(f"without a place: {unplaced}")
        return
    written = json.dumps(experiment.to_json())
    assert Experiment.from_json(json.loads(written)) == experiment
    assert sample(experiment.space, min(experiment.fixed_trials, 5), experiment.seed)


@given(st.dictionaries(words, trees, max_size=6))
@fuzzing
def test_any_structure_is_an_experiment_or_refused(file: Path, fields: dict[str, Any]) -> None:
    with file.open("w", encoding="utf-8", errors="replace") as stream:
        YAML(typ="safe", pure=True).dump({**FIELDS, **fields}, stream)
    load_or_refuse(file)


@given(st.dictionaries(words, trees, max_size=3), st.integers(0, len(DIGITS)), st.text(max_size=5))
@fuzzing
def test_any_text_and_option(file: Path, options: dict[str, Any], at: int, text: str) -> None:
    damaged = DIGITS[:at] + text + DIGITS[at + len(text) :]
    file.write_text(damaged, encoding="utf-8", errors="replace")
    load_or_refuse(file, options)


@given(st.text(alphabet="ab:-[]{}&*!?|>%@`'\"#,~<=. \n\t\\01_x", max_size=40))
@settings(fuzzing, max_examples=100)
def test_yaml_errors_have_our_words(file: Path, text: str) -> None:
    file.write_text(text)
    load_or_refuse(file)


def test_instances_may_be_patterns(file: Path) -> None:
    file.write_text(DIGITS.replace("[g4dn.12xlarge]", '["g4dn.*", p3.8xlarge]'))
    known = ["g4dn.xlarge", "g4dn.12xlarge", "p3.8xlarge"]
    assert Experiment.load(file, known_instances=lambda _: known).cloud.instances == (
        "g4dn.*",
        "p3.8xlarge",
    )
    with pytest.raises(ExperimentError, match=r"'g4dn.\*' is not an instance type known here"):
        Experiment.load(file, known_instances=lambda _: ["p3.8xlarge"])


def test_what_a_run_costs_besides_its_instances(file: Path) -> None:
    file.write_text(DIGITS + "charges: {per_launch: $0.02, per_hour: 10 USD}\n")
    charges = Experiment.load(file).charges
    assert (charges.per_launch, charges.per_hour) == (0.02, 10.0)
    again = Experiment.from_json(Experiment.load(file).to_json())
    assert again == Experiment.load(file)

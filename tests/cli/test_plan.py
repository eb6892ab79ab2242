"""`cloudtune plan` and what becomes of its plans, through the command line, in this process."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import cloudtune
from cloudtune.api.experiments import load_experiment
from cloudtune.display.plan_screen import show_head
from cloudtune.engine.ledger import FileLedger
from cloudtune.engine.loop import run as drive
from cloudtune.engine.simulator import SimWorld, synthetic_metric
from cloudtune.forecast import prediction
from cloudtune.forecast.make import make_plan
from cloudtune.forecast.plan_file import load_plan, make_job
from cloudtune.forecast.proposal import propose
from cloudtune.infra.heads.remote_runs import OVER
from cloudtune.infra.provider import HeadOffer
from cloudtune.lifecycle.planning import load_problem, read_limits
from cloudtune.model.menu import PLANNERS
from cloudtune.model.plans import Plan
from cloudtune.model.serialization import decode
from cloudtune.model.units import format_dollars, format_seconds
from cloudtune.runs import home
from tests.bench import Command
from tests.builders.values import present
from tests.display.test_run_screen import print_lines
from tests.infra.heads.test_launch import REMOTE

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "experiment.yaml"


def test_plan_says_everything_before_paying(command: Command) -> None:
    said = command("plan", "experiment.yaml", "--deadline", "30m", "--budget", "$5")
    assert (said.code, said.err) == (0, "")
    for words in (
        "16 trials, 2 to 16 epochs each, 1 in 2 goes on (sha)",
        "9s for 1 epoch on 1 GPU of g4dn.12xlarge",
        "cloudtune run experiment.yaml --deadline 30m --budget '$5'",
        *("30m", "$5.00", "2026-07-20", "19 of 20 runs", "proven cheapest (gap 0)"),
        *("one fixed cluster", "on spot", "at most", "worst case"),
    ):
        assert words in " ".join(said.out.split()), words
    all_of_it = command("plan", "experiment.yaml", "--deadline", "30m", "--budget", "$5", "-v").out
    for words in ("sha: 4 stages, up to epoch 16", "g4dn.12xlarge: a test", "launches", "fastest"):
        assert words in " ".join(all_of_it.split()), words


def change(name: str, old: str, new: str) -> None:
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))


def test_fixed_cluster_plan_costs_the_same(command: Command) -> None:
    change("experiment.yaml", "trials: 16", "trials: 64")
    said = " ".join(command("plan", "experiment.yaml").out.split())
    row = said.partition("one fixed cluster ")[2].partition(" speed ")[0]
    assert row.startswith("1 g4dn.12xlarge")
    assert "the same" in row
    assert "sooner" not in row


def test_many_small_types_are_counted(command: Command) -> None:
    Path("profile.json").unlink()
    change("experiment.yaml", "[g4dn.12xlarge]", "['*']")
    change("experiment.yaml", "epochs:", "trial: {gpus: {min: 32}}\nepochs:")
    text = command("plan", "experiment.yaml").err
    assert "can't be planned on g3.4xlarge, g3.8xlarge, g3.16xlarge and " in text
    assert "p5.48xlarge: measured at 1, 2, 4, 8 GPUs, and trial.gpus allows 32 to any" in text


# Of 277 s a plan may take 244: some are needed before and after it, and 5 % are held back.
ON_AN_EDGE = ("plan", "experiment.yaml", "--deadline", "277s", "--budget", "$5")


def test_plan_near_limit_names_the_next(command: Command) -> None:
    said = " ".join(command(*ON_AN_EDGE).out.split())
    beyond = command(*ON_AN_EDGE[:3], "263s", *ON_AN_EDGE[4:], "-o", "json").json
    dollars = beyond["plan"]["estimate"]["dollars"]
    seconds = beyond["plan"]["estimate"]["seconds"]
    other = f"{format_seconds(seconds)} for {format_dollars(dollars)}"
    assert f"near the deadline: with 5 % less time it would be another plan, about {other}" in said
    assert "near the" not in command("plan", "experiment.yaml", "--deadline", "20m").out
    staged = command(*ON_AN_EDGE, "-o", "json").json["plan"]["staged"]
    poor = f"${decode(Plan, staged).estimate.dollars / 0.94:.3f}"
    assert "near the budget: with 5 % less money no plan fits" in " ".join(
        command(*ON_AN_EDGE[:3], "20m", "--budget", poor).out.split()
    )


def test_most_runs_carry_a_plan_out(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its means the cheaper plan of 277 s fits into 275 s too; half of its runs don't."""
    monkeypatch.setattr(prediction, "FORECAST_EVENTS", 50_000)
    tight = command(*ON_AN_EDGE[:3], "275s", *ON_AN_EDGE[4:], "-o", "json").json["plan"]
    shown = " ".join(command(*ON_AN_EDGE, "--save", "saved.json").out.split())
    roomy = present(load_plan(Path("saved.json"))).plan
    assert roomy.estimate.dollars < tight["estimate"]["dollars"]
    assert min(present(roomy.forecast).within, tight["forecast"]["within"]) >= 0.5
    assert "of 31 simulated runs; the others drop trials to keep them" in shown


@pytest.mark.usefixtures("command")
def test_a_run_that_takes_another_plan_says_so() -> None:
    limits = {"deadline": "277s", "budget": "$5"}
    experiment = load_experiment(Path("experiment.yaml"), limits)
    asked = (load_problem(experiment, None), read_limits(experiment))
    shown = make_plan(*asked)
    assert not any("not the plan" in note for note in shown.remarks)
    took = make_plan(*asked, elapsed=11.0)
    seconds = format_seconds(shown.plan.estimate.seconds)
    dollars = format_dollars(shown.plan.estimate.dollars)
    line = f"not the plan that `cloudtune plan` shows, about {seconds} for {dollars}: 11s are gone"
    head = print_lines(lambda out: show_head(out, propose(took, others="none")), columns=200)
    assert line in "\n".join(head), "it is in what a run shows before it begins"
    assert took.plan.estimate.dollars > shown.plan.estimate.dollars


@pytest.fixture
def command_on_head(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a command line on a machine that can't control a run itself."""
    offer = HeadOffer("m7i.large", 0.1075, {})
    monkeypatch.setattr("cloudtune.lifecycle.heads.offer_head", lambda _: offer)
    return command


def carried_before(begin: float) -> None:
    """Leave a run that a head carried, and that began that many seconds after it was asked for."""
    experiment = load_experiment(Path("experiment.yaml"), {"deadline": "30m"})
    planned = make_plan(load_problem(experiment, None), read_limits(experiment))
    job = make_job(planned, 0.0, paced=False)
    folder = home.new_run(f"after-{begin:.0f}")
    REMOTE.keep(folder)
    (folder / OVER).touch()
    metric = job.experiment.metric.name
    world = SimWorld(job.rentables, metric, synthetic_metric("min", 3), 3, begin=begin)
    with contextlib.closing(FileLedger(folder / home.LEDGER, job.to_json())) as ledger:
        drive(job.policy(), world, ledger)


def test_a_plan_counts_the_start_of_its_head(command_on_head: Command) -> None:
    ask = ("plan", "experiment.yaml", "--deadline")
    said = " ".join(command_on_head(*ask, "30m").out.split())
    assert "controls the run; about 8m of the deadline start it" in said
    assert command_on_head(*ask, "10m").code == 3, "it was infeasible after eight paid minutes"
    with pytest.raises(cloudtune.InfeasibleError):
        cloudtune.plan("experiment.yaml", deadline="10m")
    for begin in (100.0, 130.0, 120.0):
        carried_before(begin)
    said = " ".join(command_on_head(*ask, "10m").out.split())
    assert "about 2m of the deadline start it" in said
    hurried = " ".join(command_on_head(*ask, "370s", "--budget", "$5").out.split())
    data = command_on_head(*ask, "370s", "--budget", "$5", "-o", "json").json
    assert data["elapsed"] == pytest.approx(120, abs=10)
    seconds = data["elapsed"] + data["plan"]["estimate"]["seconds"]
    assert f"time {format_seconds(seconds)} below" in hurried, "the deadline's clock"
    assert data["plan"]["estimate"]["seconds"] < 250, "not four minutes"
    assert "not the plan" not in hurried, "it is the one that is shown"
    assert command_on_head(*ask, "4m").code == 3


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_the_same_for_programs(command: Command, output: str) -> None:
    said = command("plan", "experiment.yaml", "-o", output)
    data = said.json if output == "json" else YAML(typ="safe").load(io.StringIO(said.out))
    plan = decode(Plan, data["plan"]["staged"])
    assert data["feasible"] is True
    assert plan.gap == 0.0
    assert plan.status == "optimal"
    assert plan.estimate.seconds < 1800
    assert len(data["alternatives"]) == 5


def test_planners_by_their_names(command: Command) -> None:
    dollars = {}
    for planner in PLANNERS:
        said = command("plan", "experiment.yaml", "--planner", planner, "-o", "json")
        assert said.json["planner"] == planner
        dollars[planner] = said.json["plan"]["estimate"]["dollars"]
    assert dollars["exact"] == pytest.approx(dollars["ilp"])
    assert dollars["exact"] <= dollars["greedy"] <= dollars["static"]


def test_as_many_trials_as_the_limits_buy(command: Command) -> None:
    few, many = (
        command("plan", "experiment.yaml", "--objective", "trials", "--budget", money, "-o", "json")
        for money in ("$0.40", "$0.60")
    )
    fewer = decode(Plan, few.json["plan"]["staged"]).stages[0].stage.trials
    more = decode(Plan, many.json["plan"]["staged"]).stages[0].stage.trials
    assert 1 <= fewer < more
    assert few.json["trials"] == fewer


def test_surer_is_dearer_or_not_to_be_had(command: Command) -> None:
    base = ["plan", "experiment.yaml", "-o", "json"]
    fastest = command(*base, "--deadline", "1h", "--objective", "time", "--budget", "$20")
    seconds = fastest.json["plan"]["estimate"]["seconds"] * 1.35 + 20
    limits = ["--deadline", f"{seconds}s", "--budget", "$20"]
    sure = command(*base, *limits, "--confidence", "0.95").succeeded()
    assert sure.json["plan"]["forecast"]["within"] >= 0.95
    plan = decode(Plan, sure.json["plan"]["staged"])
    # Being sure may cost something; only what costs nothing is called optimal.
    assert (plan.status == "optimal") == (present(plan.gap) == 0.0)
    tight = ["--deadline", f"{seconds * 0.8}s", "--budget", "$20"]
    assert command(*base, *tight, "--confidence", "0.999").code == 3


def test_infeasible_names_limits_that_would_do(command: Command) -> None:
    late = command("plan", "experiment.yaml", "--deadline", "20s", "--budget", "$50")
    assert late.code == 3
    first, *others = late.err.splitlines()
    assert first.startswith("infeasible: no plan finishes within")
    ways = dict(line.strip().split(" would do ") for line in others if " would do " in line)
    assert len(others) <= 4, "five lines in all"
    assert sum(way.count("fastest") + way.count("cheapest") for way in ways.values()) == 2
    for limits in ways:
        command("plan", "experiment.yaml", *shlex.split(limits)).succeeded()
    dear = command("plan", "experiment.yaml", "--deadline", "9h", "--budget", "$0.01")
    assert (dear.code, len(dear.err.splitlines())) == (3, 5)
    data = command("plan", "experiment.yaml", "--deadline", "20s", "-o", "json").json
    assert data["fastest"]["limits"]["deadline"] > data["fastest"]["estimate"]["seconds"]


def test_the_nearest_of_both_limits(command: Command) -> None:
    result = command(
        "plan", "experiment.yaml", "--deadline", "20s", "--budget", "$0.01", "-o", "json"
    )
    assert result.json["feasible"] is False
    # It is the best by bills to the instant; its own is rounded up to whole seconds.
    nearest = decode(Plan, result.json["nearest"])
    assert 0.0 < present(nearest.gap) < 0.002


def test_infeasible_search_names_sufficient_limits(command: Command) -> None:
    search = ("plan", "experiment.yaml", "--strategy", "best")
    said = command(*search, "--deadline", "20s", "--budget", "$5")
    assert said.code == 3
    [limits] = {
        it.strip().split(" would do ")[0] for it in said.err.splitlines() if "fastest" in it
    }
    command(*search, *shlex.split(limits)).succeeded()
    data = command(*search, "--deadline", "20s", "--budget", "$5", "-o", "json").json
    for name in ("fastest", "cheapest", "nearest"):
        assert data[name]["limits"]["deadline"] > 20
        assert data[name]["estimate"]["dollars"] > 0


def test_a_quota_bounds_the_plan(command: Command) -> None:
    quota = 'max_instances: 2, vcpu_quotas: {"on-demand g": 50}'
    change("experiment.yaml", "max_instances: 2", quota)
    said = command("plan", "experiment.yaml", "--objective", "time", "-o", "json")
    assert decode(Plan, said.json["plan"]["staged"]).peak_instances == 1  # a g4dn.12xlarge has 48
    change("experiment.yaml", "50}", "40}")
    command("plan", "experiment.yaml").refused("vCPU quota", code=3)


def test_published_figures_plan_but_do_not_run(command: Command) -> None:
    options = ["--profile", "resnet50-cifar10@v100", "--instances", "p3.8xlarge"]
    options += ["--deadline", "9h"]
    said = command("plan", "experiment.yaml", *options, "--budget", "$90", "--save", "plan.json")
    assert said.code == 0, said.err
    screen = " ".join(said.out.split())
    run = screen.partition("run it cloudtune run ")[2].partition(" details ")[0]
    limits = "--deadline 9h --budget '$90'"
    asked = f"experiment.yaml --instances p3.8xlarge {limits} --provider emulated"
    assert run == f"{asked} # at your script's own speed"
    for words in (["run", "experiment.yaml", *options], ["run", "plan.json"]):
        command(*words).refused("measure it with `cloudtune profile`")


def test_plan_suggests_reports_within_epochs(command: Command) -> None:
    """The test's profile has epochs of 9 s."""
    long = "of the deadline; a script that reports within epochs is compared there"
    said = command("plan", "experiment.yaml", "--strategy", "best", "--deadline", "2m")
    assert f"an epoch takes 8% {long}" in " ".join(said.out.split())
    said = command("plan", "experiment.yaml", "--strategy", "best", "--deadline", "30m")
    assert long not in " ".join(said.out.split())
    change("experiment.yaml", "trials: 16", "trials: 16\nprogress: {every: 1/4}")
    said = command("plan", "experiment.yaml", "--strategy", "best", "--deadline", "2m")
    assert long not in " ".join(said.out.split())


def test_a_type_that_was_not_measured_is_derived(command: Command) -> None:
    said = command(
        "plan", "experiment.yaml", "--instances", "g4dn.12xlarge,g4dn.xlarge", "-o", "json"
    ).succeeded()
    assert said.json["considered"] == 2


@pytest.mark.parametrize("plan", ["experiment.yaml", "nothing@nowhere"])
def test_a_profile_that_is_none(command: Command, plan: str) -> None:
    command("plan", "experiment.yaml", "--profile", plan).refused()


def test_saved_plan_holds_its_prices(command: Command) -> None:
    assert command("plan", "experiment.yaml", "--save", "plan.json").code == 0
    change("plan.json", '"usd_per_hour": 3.912', '"usd_per_hour": 3.1')
    command("run", "plan.json").refused(
        "g4dn.12xlarge on-demand was $3.1 an hour and is $3.912", "Plan again"
    )


@pytest.mark.parametrize("option", [("--objective", "time"), ("--price-tolerance", "nan")])
def test_a_saved_plan_takes_no_such_option(command: Command, option: tuple[str, str]) -> None:
    assert command("plan", "experiment.yaml", "--save", "plan.json").code == 0
    command("run", "plan.json", *option).refused(option[0])


DAMAGES = [
    ('"instances": 1', '"instances": -3', "no instances"),
    ('"end_epoch": 2', '"end_epoch": 3', "aren't those of its experiment"),
    ('"waves": ', '"waves": -', "no instances, no width or no waves"),
    ('"experiment": {', '"experiment": null, "e": {', "(experiment: Input should be a"),
    ('"cloudtune_plan": 3', '"cloudtune_plan": 2', "another version of cloudtune; plan again"),
]


def test_a_damaged_plan(command: Command, tmp_path: Path) -> None:
    assert command("plan", "experiment.yaml", "--save", "plan.json").code == 0
    text = (tmp_path / "plan.json").read_text()
    for old, new, why in DAMAGES:
        assert old in text
        (tmp_path / "plan.json").write_text(text.replace(old, new))
        refused = command("run", "plan.json")
        assert refused.code == 2, new
        assert re.search(r"plan.json: a (damaged )?plan", refused.err)
        assert why in refused.err


def test_confidence_of_affordable_trials(command: Command, tmp_path: Path) -> None:
    base = ["plan", "experiment.yaml", "--objective", "trials", "--budget", "$0.6", "-o", "json"]
    bold, sure = command(*base), command(*base, "--confidence", "0.95")
    assert sure.code == 0, sure.err
    assert 1 <= sure.json["trials"] <= bold.json["trials"] * 1.2
    assert sure.json["plan"]["forecast"]["within"] >= 0.95
    assert not (tmp_path / "home" / "emulator").exists(), "no plan rents"
    assert not (tmp_path / "home" / "runs").exists()


def test_no_more_trials_than_there_are_configurations(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    lines = path.read_text().splitlines()
    grid = "search: {lr: {grid: [0.01, 0.1]}, n: {grid: [1, 2, 3]}}"
    path.write_text("\n".join(grid if line.startswith("search") else line for line in lines))
    said = command("plan", path, "--objective", "trials", "--budget", "$50", "-o", "json")
    assert said.json["trials"] == 6
    assert decode(Plan, said.json["plan"]["staged"]).stages[0].stage.trials == 6


def test_trials_without_any_limit(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text("\n".join(li for li in path.read_text().splitlines() if "limits" not in li))
    command("plan", path, "--objective", "trials").refused("set --deadline or --budget")


def test_a_plan_imports_neither_ray_nor_torch(tmp_path: Path) -> None:
    """They take a second, and nothing is rented or trained."""
    code = (
        "import sys\n"
        "from cloudtune.cli.main import main\n"
        f"sys.argv = ['cloudtune', 'plan', {str(DIGITS)!r}]\n"
        "try:\n    main()\n"
        "finally:\n    print({'ray', 'torch', 'moto'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CLOUDTUNE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\nset()\n")

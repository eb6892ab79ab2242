"""What docs/reference.md says in words: the sentences that the code doesn't have.

docs/reference.py holds each table to the code: whoever adds a field or a name is asked for its
sentence here.
"""

from __future__ import annotations

from cloudtune.script.printed_lines import EXAMPLE

EXPERIMENT = """\
Mistakes are reported with line, allowed values and the nearest name. Options of the command line \
override the file. From Python: `cloudtune.Experiment(name=…, train=…, …)`, or \
`cloudtune.Experiment.load("experiment.yaml")`.

Durations are written `90s`, `30m`, `2h` or `1h30m`; dollars `$40`, `40 USD` or `40`. In brackets: \
the type, and what holds if the field is left out.
"""

# What each field is; and, where its default is no value, what holds without it.
FIELDS: dict[str, tuple[str, ...]] = {
    "name": ("name of the experiment, and first part of its runs' names", "its file's name"),
    "train": ("training function, beside the experiment file; or a [command](commands.md)",),
    "metric.name": ("reported number that decides",),
    "metric.mode": ("whether lower or higher is better",),
    "search": ("parameters and their ranges ([search spaces](search-spaces.md))",),
    "initial": ("configurations to try first (missing parameters are drawn)", "none"),
    "like": ("configurations to try one by one while they do well, which `--like` sets", "none"),
    "trials": (
        "maximum number of configurations",
        "no cap for a search; one bracket of successive halving for `sha` and `pbt`",
    ),
    "objective": (
        (
            "`best`: the best model within the limits; `cost`, `time`: a fixed number of trials, "
            "as cheaply or as fast as possible; `trials`: as many as possible"
        ),
        "[by the limits](strategies.md#the-default)",
    ),
    "epochs.min": ("epoch (or step) at which trials are first compared",),
    "epochs.max": ("epochs (or steps) of a full training",),
    "progress.unit": ("what `epochs` counts: [epochs or steps](commands.md#steps)",),
    "progress.every": ("number of them from report to report",),
    "progress.field": ("reported number that says where a report stands", "none"),
    "reports.file": (
        "file with a command's [reports](commands.md#where-the-numbers-are), or a pattern of files",
        "it calls `cloudtune.report`",
    ),
    "reports.printed": (
        f"place of a number in what a command [prints](commands.md#what-it-prints): `{EXAMPLE}`",
        "it calls `cloudtune.report`",
    ),
    "checkpoints.resumes": (
        "whether trials go on from their checkpoints; if not, the default strategy pauses none",
    ),
    "checkpoints.folder": (
        "folder of a command's [checkpoints](commands.md#checkpoints)",
        "none, or given to `cloudtune.report`",
    ),
    "eta": ("at each comparison the best 1/eta go on",),
    "strategy.name": (
        "[strategy](#strategies); `strategy: asha` for short",
        "[by the limits](strategies.md#the-default)",
    ),
    "strategy.sampler": ("[sampler](#samplers)", "the strategy's"),
    "strategy.allocator": ("[allocator](#allocators): GPUs of a trial", "the strategy's"),
    "strategy.fleet": ("[fleet](#fleets): number of instances", "the strategy's"),
    "strategy.rules.use_pausing": ("pause trials that aren't good enough, rather than end them",),
    "strategy.rules.atom": ("GPUs that a trial starts with, and grows by", "one"),
    "strategy.rules.allocation_grid": ("above this many atoms only multiples of it", "none"),
    "strategy.rules.no_speculation": ("judge a trial once a rung, as ASHA does",),
    "strategy.rules.ignore_overhead": ("assume that starting a trial costs nothing",),
    "strategy.rules.no_job_limit": ("start new trials until the end",),
    "strategy.rules.fixed_exploration": ("start new trials until a part of the deadline",),
    "strategy.rules.exploration_ratio": ("that part",),
    "strategy.rules.assume_linear": ("assume that k GPUs are k times as fast",),
    "strategy.max_concurrent": ("maximum number of trials at a time", "as many as fit"),
    "strategy.target": ("metric at which the run ends", "none"),
    "strategy.inherit": (
        "`pbt`: clones may change their [network](models.md#in-population-based-training)",
    ),
    "trial.gpus.min": ("minimum number of GPUs per trial; excludes shares", "none"),
    "trial.gpus.max": ("maximum number of GPUs per trial", "as many as were measured"),
    "trial.sync": (
        (
            "if the workers of a trial train separate models (no gradients exchanged, or "
            "parameters differ): `checked` notices in the first epoch and continues with one GPU "
            "per trial, `required` ends the run, `trusted` doesn't look (for rare exchanges, or "
            "past torch.distributed)"
        ),
    ),
    "trial.stall.factor": (
        "end a trial that is silent for this many times its epoch's time; stacks in its log",
    ),
    "trial.stall.least": ("but not before this",),
    "trial.max_failures": (
        "end the run if this many trials fail alike before one finishes an epoch",
    ),
    "trial.try_first": (
        "whether one trial is tried on this machine before renting",
        "on aws, unless profiled",
    ),
    "trial.keep_failed": (
        (
            "how long to [keep an instance](watch.md#a-way-into-an-instance) on which a trial "
            "failed, within the limits"
        ),
        "it goes like any other",
    ),
    "limits.deadline": (
        "time from the start of the command until everything is given back",
        "three times the plan and an hour; longer if the budget pays for it",
    ),
    "limits.budget": ("maximum of the whole bill", "none"),
    "limits.gpu_hours": ("budget where GPUs have [no price](ray.md)", "none"),
    "cloud.provider": ("[provider](#providers)",),
    "cloud.region": ("region of the cloud",),
    "cloud.regions": ("AWS: [regions](aws.md#regions) to choose from; `any`: all enabled", "none"),
    "cloud.instances": ("instance types to choose from, or patterns such as `g5.*`",),
    "cloud.market": ("where to rent; `any`: the cheaper of the two",),
    "cloud.zones": ("availability zones to choose from, each at its own spot price", "any"),
    "cloud.max_instances": (
        "maximum number of instances at a time",
        "as many as the limits pay for",
    ),
    "cloud.avoid": ("how long not to ask a pool that is out of instances",),
    "cloud.billing.unit": (
        "unit of [bills](bills.md#10-by-the-minute-the-hour-or-the-function), also `billing: hour`",
        "the provider's",
    ),
    "cloud.billing.minimum": (
        "minimum charge of an instance",
        "a unit; without `billing` a minute",
    ),
    "cloud.spot.losses_per_hour": (
        "how often a [spot](spot.md) instance is taken back, per hour held",
        "as in public traces",
    ),
    "cloud.spot.availability": (
        "share of time in which spot instances are available",
        "as in public traces",
    ),
    "cloud.vcpu_quotas": ("EC2's vCPU quotas, by market and class of type", "none"),
    "cloud.image": ("AWS: AMI", "AWS's deep learning base image"),
    "cloud.subnet": ("AWS: where instances start", "the account's default"),
    "cloud.subnets": ("AWS: the same by zone", "the account's default"),
    "cloud.security_group": ("AWS", "that of `cloudtune aws setup`"),
    "cloud.instance_profile": ("AWS: role of the instances", "that of `cloudtune aws setup`"),
    "cloud.head_type": ("AWS: type of the head", "that of `cloudtune aws setup`, else m7i.large"),
    "cloud.tags": ("AWS: tags of instances and volumes", "those of `cloudtune aws setup --tag`"),
    "cloud.request": ("AWS: [further fields of RunInstances](aws.md#the-experiment)", "none"),
    "cloud.slots": (
        "local: number of GPUs to use, or of CPU slots; ray: GPUs of an instance",
        "all GPUs; a slot for each core",
    ),
    "cloud.price": ("local: price of this machine per hour", "nothing"),
    "cloud.address": ("ray: `HOST:PORT` of the cluster", "`RAY_ADDRESS`, or this machine's"),
    "cloud.prices": ("ray: price of a node per hour, by type", "nothing"),
    "setup.python": (
        "Python version of the [environment](aws.md#what-the-script-needs)",
        "this one",
    ),
    "setup.pip": (
        "`requirements.txt`, `pyproject.toml` or a list; `[]`: cloudtune alone",
        "no environment is built",
    ),
    "setup.commands": ("run as root on each rented instance before it joins", "none"),
    "setup.python_path": ("Python of the image that has cloudtune", "looked for"),
    "env": (
        "[variables](scripts.md#variables) of trials; an empty one has your own value",
        "none",
    ),
    "secrets": (
        (
            "variables from a [store of secrets](scripts.md#variables): `ssm:NAME`, "
            "`aws-secretsmanager:NAME`, `file:PATH`"
        ),
        "none",
    ),
    "data": (
        (
            "[folders beside the script](scripts.md#data), by name: `s3://bucket/prefix`, or a "
            "folder of this machine"
        ),
        "none",
    ),
    "charges.per_launch": ("for each launch, such as for data that it loads", "none"),
    "charges.data": (
        "[data that crosses regions](aws.md#regions): its `region`, `gb`, `usd_per_gb` ($0.02)",
        "none",
    ),
    "charges.per_hour": ("for an hour of the run: this machine, storage", "none"),
    "charges.per_instance_hour": (
        "for an hour of each instance: [its disk, its address](bills.md)",
        "none",
    ),
    "charges.head": (
        "for an hour of the [head](aws.md#the-head); `plan` and `run` fill it in",
        "none, or the head's price",
    ),
    "charges.head_seconds": ("until the head controls the run; earlier runs say", "8 min"),
    "storage": ("where checkpoints go; on AWS a bucket",),
    "log_to": ("log trials [as they train](report.md#trials-logged-as-they-train)", "none"),
    "history": ("[earlier runs](history.md) to learn from how long things take",),
    "seed": ("seed of the search and of the training",),
}

NAMED = """\
They mean the same in an experiment file, on the command line and in comparisons: \
[strategies.md](strategies.md), [allocators.md](allocators.md). Published variants have \
[names of their own](papers.md#all-other-names)."""

NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "strategy": (
        "Strategies",
        {
            "best": "explores, then trains the leaders to the end, within a deadline and a budget "
            "([best.md](best.md))",
            "sha": "successive halving in planned stages",
            "asha": "successive halving without waiting",
            "hyperband": "brackets of successive halving, from aggressive to cautious",
            "bohb": "Hyperband with configurations drawn from a model of earlier results",
            "pbt": "a population: the worst trials copy the best ones and perturb them",
        },
    ),
    "sampler": (
        "Samplers",
        {
            "random": "at random",
            "qmc": "quasi-Monte-Carlo: evenly over the space",
            "tpe": "tree-structured Parzen estimator, a model of the results",
            "gp": "Gaussian process, a model of the results",
            "cma-es": "CMA-ES, learns from results; numbers only",
            "adaptive": "`random`, and a model as far as it proves its skill in this run "
            "([best.md](best.md#configurations))",
        },
    ),
    "allocator": (
        "Allocators",
        {
            "same": "one GPU per trial, or the narrowest width that was measured",
            "fluid": "divides all GPUs again whenever trials or GPUs come or go",
        },
    ),
    "fleet": (
        "Fleets",
        {
            "constant": "the same instances throughout; `constant:4` is four",
            "naive": "returns idle instances, and rents again when needed; `naive:4`",
            "consolidating": "the same, and moves trials together to empty instances",
            "planned": "the plan's; for planned strategies",
            "seer": "a part of `best` and `seer-constant`",
        },
    ),
    "planner": (
        "Planners",
        {
            "exact": "the best plan, proven: Pareto dynamic programming",
            "greedy": "RubberBand's descent from the best fleet of one size",
            "naive": "the best fleet of one size, idle instances returned",
            "static": "the best fleet of one size",
            "ilp": "the best plan by integer programming: the check on `exact`, for small jobs",
        },
    ),
    "provider": (
        "Providers",
        {
            "emulated": "an EC2 on this machine: no account, no bill ([emulator.md](emulator.md))",
            "aws": "AWS EC2 ([aws.md](aws.md))",
            "local": "this machine is the one instance ([local.md](local.md))",
            "ray": "an existing Ray cluster ([ray.md](ray.md))",
            "slurm": "a Slurm cluster ([slurm.md](slurm.md))",
        },
    ),
}

COMMANDS = """\
`-h` or `--help` lists a command's options. `-o json` is for programs, on standard output. RUN is \
a run's name; without it, the last one."""

# What options say that have no help of their own.
OPTIONS = {
    "--output": "How to print it.",
}

# Options that the same commands have, by the heading under which they are described.
OPTION_GROUPS = {
    "Experiment options": (
        *("--deadline", "--budget", "--trials", "--max-instances", "--provider", "--instances"),
        *("--market", "--seed", "--storage", "--log-to", "--history"),
    ),
    "Planning options": (
        *("--search", "--metric", "--epochs", "--strategy", "--objective", "--planner"),
        *("--confidence", "--profile"),
    ),
}

EXIT_CODES = {
    "0": "done",
    "1": "an error, or every trial failed",
    "2": "a mistake in command or experiment; nothing was launched",
    "3": "infeasible: no plan meets the limits; nothing was launched",
    "4": "stopped by the budget; the best checkpoint is saved",
    "5": "stopped by the deadline; the best checkpoint is saved",
    "6": "no capacity in the cloud",
    "7": "clean-up not confirmed: instances may still bill, and their ids are printed",
    "8": "the best model couldn't be stored; the best that was is shown",
    "9": "detached by Ctrl-C: the run continues on its [head](aws.md#the-head), and bills",
    "130": "interrupted: what this machine controlled has ended in order, its instances returned",
}

ENVIRONMENT = (
    ("`CLOUDTUNE_HOME`", "folder for state, instead of `~/.cloudtune`"),
    (
        "`CLOUDTUNE_EMULATOR_FAULTS`",
        "file of [faults](emulator.md#scenarios) for the emulator that this command starts",
    ),
    ("`CLOUDTUNE_EPOCHS`", "epochs of a script that is run alone (default: 3)"),
    ("`CUDA_VISIBLE_DEVICES`", "GPUs that provider local uses"),
)

JSON = """\
Times are in seconds, those of a run from its beginning on; money is in dollars, or in GPU-hours \
where GPUs have no price. A number that isn't finite is null. What `run` prints line by line is in \
[watch.md](watch.md#for-programs), which also has the fields of an error."""

_SPREAD = "`p5`, `p50`, `p95`, `mean`"
_SHARED = {
    "schema": "version of these fields: another number once one is gone or means something else",
    "experiment": "its name",
    "strategy": "[strategy](#strategies)",
    "allocator": "[allocator](#allocators)",
    "fleet_rule": "[fleet](#fleets)",
    "rules": "[rules](#the-experiment-file) of HyperSched that were changed",
    "limits": "`deadline` and `budget`, each null if not set",
    "progress": "what `epochs` count (`unit`), and how many from report to report (`every`)",
}

# The top-level fields of what a command prints, in the order in which it does.
OBJECTS: dict[str, dict[str, str]] = {
    "plan": {
        "schema": _SHARED["schema"],
        "feasible": "whether a plan meets the limits; if not, `message`, `fastest`, `cheapest` and "
        "`nearest` are all that follows, each with `limits` that would do",
        "experiment": _SHARED["experiment"],
        "provider": "[provider](#providers)",
        "strategy": _SHARED["strategy"],
        "allocator": _SHARED["allocator"],
        "fleet_rule": _SHARED["fleet_rule"],
        "rules": _SHARED["rules"],
        "chosen": "why this strategy, if none was named",
        "chosen_from": "what the machines were chosen from, and what stands in the way of better "
        "ones, if none were named",
        "derived_deadline": "what the deadline follows from, if none was set",
        "elapsed": "seconds of the deadline that are gone before the first request",
        "short_of": "what one full training takes, if the limits don't allow it",
        "unsaved": "that the best model won't be kept, and what to do",
        "trials": "configurations; null for as many as the limits allow",
        "epochs": "those of the first comparison and of a full training",
        "progress": _SHARED["progress"],
        "eta": "at each comparison the best 1/eta go on",
        "sampler": "[sampler](#samplers)",
        "max_concurrent": "maximum number of trials at a time",
        "target": "metric at which the run ends",
        "metric": "name of the number that decides",
        "objective": "what the plan is best at: cost, time, trials or best",
        "confidence": "probability with which the limits are to be kept; without it on average",
        "limits": _SHARED["limits"],
        "planner": "[planner](#planners)",
        "proof": "how sure it is that no plan is better",
        "plan": "the plan: its `stages`, each with instances, widths, seconds and dollars; "
        f"`estimate` (`seconds`, `dollars`); `forecast`, whose figures have {_SPREAD}, with the "
        "shares of runs that keep the limits (`within`, `in_time`, `in_money`)",
        "launches": "what it rents: instance type, market, place, price and count",
        "peak_instances": "the most instances at a time",
        "breaks": "limits that the plan doesn't keep often enough",
        "alternatives": "other ways to run it, with what they cost",
        "unsure": "what the forecast doesn't know exactly",
        "as_planned": "forecast of a run that never replans",
        "front": "plans that are cheaper or faster, for `--point`",
        "provenance": "where its figures come from",
        "prices": "where the prices come from, and of which day",
        "profiles": "the speeds that it is based on, by instance type",
        "considered": "instance types that it chose from",
        "worst": "the most that it can cost, and how",
        "storage": "where checkpoints go",
        "head_usd_per_hour": "price of the [head](aws.md#the-head)",
        "assumptions": "what was assumed, for people",
    },
    "simulate": {
        "schema": _SHARED["schema"],
        "run": "name of the run",
        "experiment": _SHARED["experiment"],
        "strategy": _SHARED["strategy"],
        "allocator": _SHARED["allocator"],
        "fleet_rule": _SHARED["fleet_rule"],
        "rules": _SHARED["rules"],
        "target": "metric at which the run ends, and when it was reached",
        "summary": "the best epoch, and how far trials were trained",
        "gpus": "share of its time in which each GPU trained, by instance",
        "ended": "why the run ended; null while it goes on",
        "exit_code": "[its code](#exit-codes); null while it goes on",
        "paced": "whether epochs took the profile's time, as emulated GPUs do",
        "provenance": "where its figures come from",
        "limits": _SHARED["limits"],
        "legs": "where it ended and was resumed",
        "seconds": "`planned` and `actual`",
        "dollars": "`planned`, `actual`, and what `measuring` cost before",
        "billed_by_cloud": "what the cloud says that its instances cost, if the ledger doesn't",
        "best": "the winner: `trial`, `epoch`, `value` of the `metric`, `config`; its `checkpoint` "
        "in the storage, and the plain files in `folder`",
        "best_lost": "a better epoch that has no checkpoint",
        "progress": _SHARED["progress"],
        "stages": "stages of a planned run, planned and actual",
        "visits": "[who entered its instances](watch.md#a-way-into-an-instance)",
        "plan_changes": "when the rest was planned anew, why, and how",
        "forecast": f"that of its plan; figures have {_SPREAD}",
        "figures": "the same figures as they came out",
        "rungs": "comparisons: trials that came so far, and the best of them",
        "accounting": "[where the money went](bills.md#9-where-the-money-went)",
        "fleet": "billing instances after each change",
        "width_changes": "trials that went on with another number of GPUs",
        "parameters_equal": "trials on several GPUs: epochs after which all had the same model",
        "trials": "the winner, then by metric: `status`, `epoch`, `metric`, `config`, `history`, "
        "`error`",
    },
}

LEDGER = """\
Every run writes `~/.cloudtune/runs/RUN/ledger.jsonl`: a header, then a line for each event with \
its commands, before any of them is carried out. Each event has a time `at`, in seconds since the \
run began. A ledger of another version is refused."""

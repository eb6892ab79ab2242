"""What docs/reference.md says in words: the sentences that the code doesn't have.

docs/reference.py holds each table to the code: whoever adds a field or a name is asked for its
sentence here.
"""

from __future__ import annotations

EXPERIMENT = """\
A wrong field is named with its line, what may stand there, and the nearest name. Options of the \
command line go before the file. The same from Python: `cloudtune.Experiment(name=…, train=…, …)`, \
or `cloudtune.Experiment.load("experiment.yaml")`.

Durations are written `90s`, `30m`, `2h` or `1h30m`; dollars `$40`, `40 USD` or `40`.
"""

FIELDS: dict[str, tuple[str, ...]] = {
    "name": ("of the experiment; its runs are named after it",),
    "train": (
        (
            "the training function, beside the experiment file; or a [command](commands.md), in "
            "which `{lr}` stands for the parameter lr"
        ),
    ),
    "metric.name": ("the reported number that decides",),
    "metric.mode": ("whether more of it is better, or less",),
    "search": (
        (
            "for each parameter `{uniform: [low, high]}`, `{loguniform: [low, high]}`, `{quniform: "
            "[low, high, step]}`, `{randint: [low, high]}` (without high), the last two by their "
            "logarithm as `qloguniform` and `lograndint`, `{choice: [a, b, …]}`, "
            "`{grid: [a, b, …]}` or a constant, as in Ray Tune; or parameters below it, or "
            "branches: [search spaces](search-spaces.md); or `{mutators: train.py:MODEL}`, the "
            "[networks](models.md) that the script makes"
        ),
    ),
    "initial": ("configurations to try first; what one leaves out is drawn", "none"),
    "trials": (
        "how many configurations are tried, at most",
        "no cap for a search; one bracket of successive halving for `sha` and `pbt`",
    ),
    "objective": (
        (
            "what is wanted: `best`, the best model within the limits; `cost` or `time`, a fixed "
            "number of trials as cheaply or as fast as possible; `trials`, as many as possible"
        ),
        "[what the limits say](strategies.md#the-default)",
    ),
    "epochs.min": ("the epoch (or step) at which trials are first compared",),
    "epochs.max": ("the last epoch (or step) of those that go all the way",),
    "progress.unit": ("what `epochs` counts: [epochs or steps](commands.md#steps)",),
    "progress.every": ("how many of them there are from report to report",),
    "progress.field": ("the reported number that says where a report stands", "none"),
    "reports.file": (
        (
            "a command's reports are JSON lines in this file, [below its folder]"
            "(commands.md#where-the-numbers-are)"
        ),
        "the command calls `cloudtune.report`",
    ),
    "reports.printed": (
        (
            "a command's reports are printed lines that this regular expression finds, with the "
            "numbers named as in `(?P<accuracy>[0-9.]+)`"
        ),
        "the command calls `cloudtune.report`",
    ),
    "checkpoints.folder": (
        "a command's checkpoints are in this folder, [below its folder](commands.md#checkpoints)",
        "the command has none, or gives them to `cloudtune.report`",
    ),
    "eta": ("at each comparison the best 1/eta go on",),
    "strategy.name": (
        "who trains, and how far: a [strategy](#strategies); `strategy: asha` for short",
        "[what the limits say](strategies.md#the-default)",
    ),
    "strategy.sampler": (
        "where configurations come from: a [sampler](#samplers)",
        "what suits the strategy",
    ),
    "strategy.allocator": (
        "how many GPUs a trial gets: an [allocator](#allocators)",
        "what suits the strategy",
    ),
    "strategy.fleet": (
        "how many instances there are: a [fleet](#fleets)",
        "what suits the strategy",
    ),
    "strategy.rules.use_pausing": ("a trial that isn't good enough is paused, or ended",),
    "strategy.rules.atom": ("with so many GPUs a trial starts, and by so many it grows", "one"),
    "strategy.rules.allocation_grid": ("above so many atoms only multiples of it", "none"),
    "strategy.rules.no_speculation": ("a trial is judged once a rung, as in ASHA",),
    "strategy.rules.ignore_overhead": ("starting a trial is taken to cost nothing",),
    "strategy.rules.no_job_limit": ("new trials begin to the last",),
    "strategy.rules.fixed_exploration": ("new trials begin until a part of the deadline",),
    "strategy.rules.exploration_ratio": ("that part",),
    "strategy.rules.assume_linear": ("k GPUs are taken to be k times as fast",),
    "strategy.max_concurrent": ("so many trials run at once, at most", "as many as fit"),
    "strategy.target": ("the run ends when a trial reports a metric as good as this", "none"),
    "strategy.inherit": (
        (
            "of `pbt`: clones may have [another network](models.md#in-population-based-training) "
            "than their parent, whose weights they inherit"
        ),
    ),
    "trial.gpus.min": ("no trial has fewer GPUs than that; none has a share of one then", "none"),
    "trial.gpus.max": (
        "no trial has more GPUs than that: none is measured, planned or run that wide",
        "as many as were measured",
    ),
    "trial.sync": (
        (
            "what to do where the workers of a trial on several GPUs don't train one model, as no "
            "gradients are exchanged, or the parameters differ: `checked` finds that in the "
            "trial's first epoch and goes on with one GPU a trial, `required` ends the run, "
            "`trusted` doesn't look (for scripts that exchange them rarely, or past "
            "torch.distributed)"
        ),
    ),
    "trial.stall.factor": (
        (
            "a trial that reports nothing for so many times as long as its epoch should take is "
            "ended, with the stack of each of its workers in its log; the run goes on"
        ),
    ),
    "trial.stall.least": ("... but not before so long",),
    "trial.max_failures": (
        "ends the run where this many trials fail alike before any has finished an epoch",
    ),
    "limits.deadline": (
        "all is given back by then, from the start of the command",
        "three times what is planned and an hour; as long as the budget pays for, if longer",
    ),
    "limits.budget": ("the whole bill, at most", "none"),
    "cloud.provider": ("which cloud: a [provider](#providers)",),
    "cloud.region": ("the region of the cloud",),
    "cloud.instances": ("instance types to choose from, or patterns such as `g5.*`",),
    "cloud.market": ("where to rent; `any` is whichever of the two is cheaper",),
    "cloud.zones": (
        "availability zones to choose from, each at its own spot price",
        "any will do",
    ),
    "cloud.max_instances": ("so many at once, of all types together, at most",),
    "cloud.avoid": ("how long a pool that is out of instances isn't asked again",),
    "cloud.billing.unit": (
        (
            "what [bills](bills.md#10-by-the-minute-the-hour-or-the-function) are by, also as "
            "`billing: minute`; by `function`: the GPU-seconds of trials, and not instances"
        ),
        "as the provider bills",
    ),
    "cloud.billing.minimum": (
        "an instance is billed for so long at least",
        "a unit; unless billing is named, a minute",
    ),
    "cloud.spot.losses_per_hour": (
        "how often a spot instance is taken back, for an hour that it is held ([spot](spot.md))",
        "as in public traces",
    ),
    "cloud.spot.availability": (
        "the share of the time in which spot instances can be had",
        "as in public traces",
    ),
    "cloud.vcpu_quotas": (
        "at most so many vCPUs at once, by market and class of type, as EC2's quotas are",
        "none",
    ),
    "cloud.image": ("AWS: the AMI", "AWS's deep learning base image"),
    "cloud.subnet": ("AWS: where instances start", "the account's default"),
    "cloud.subnets": ("AWS: the same by zone, `{us-east-1a: subnet-…}`", "the account's default"),
    "cloud.security_group": ("AWS: who reaches whom", "what `cloudtune aws setup` made"),
    "cloud.instance_profile": (
        "AWS: the role of the instances",
        "what `cloudtune aws setup` made",
    ),
    "cloud.tags": ("AWS: tags of instances and volumes", "those of `cloudtune aws setup --tag`"),
    "cloud.request": (
        "AWS: [further fields of RunInstances](aws.md#the-experiment), as EC2 calls them",
        "none",
    ),
    "cloud.slots": (
        "local: so many of the GPUs, or CPU slots where there is none",
        "all GPUs; a slot for each core",
    ),
    "cloud.price": ("local: what an hour of this machine costs", "nothing"),
    "setup.python": (
        "the version of Python that instances get ([how](aws.md#what-the-script-needs))",
        "this one's own",
    ),
    "setup.pip": (
        "what it needs: `requirements.txt`, `pyproject.toml`, a list; `[]`: cloudtune alone",
        "nothing is built: instances have a Python with all",
    ),
    "setup.commands": (
        "run as root on each instance before it joins; rented machines only",
        "none",
    ),
    "setup.python_path": (
        "the Python of the image that has cloudtune and all",
        "looked for",
    ),
    "charges.per_launch": (
        "for each instance launched, for the data that it loads",
        "none",
    ),
    "charges.per_hour": ("for an hour of the run: this machine, storage", "none"),
    "charges.per_instance_hour": (
        "for each hour that an instance lives: [its disk, its public address](bills.md)",
        "none",
    ),
    "charges.head": (
        "for an hour of the [head](aws.md#the-head); `plan` and `run` fill it in",
        "none, or the head's price",
    ),
    "storage": ("where checkpoints go; on AWS a bucket",),
    "history": (
        (
            "the [earlier runs](history.md) that have a say: `auto` (those that fit), `off` "
            "(none), or a list of runs, as `cloudtune runs` has them; or one of these for "
            "`configurations` (what is tried) and one for `times` (how long that is expected to "
            "take)"
        ),
    ),
    "seed": ("of the search and of the training",),
}
"""What each field says; and, where its default is no value, what holds without it."""

NAMED = """\
They mean the same in an experiment file, on the command line and in comparisons. \
Strategy, allocator and fleet are chosen apart; where one is left out, it is what suits the \
strategy. More on them: [strategies.md](strategies.md), [allocators.md](allocators.md); published \
variants have [names of their own](papers.md#all-other-names)."""

NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "strategy": (
        "Strategies",
        {
            "best": "explores with part of the time and money, then trains the leaders to the "
            "end; for a fixed deadline and budget ([seer.md](seer.md))",
            "sha": "successive halving in planned stages, at the lowest cost within the limits",
            "asha": "successive halving without waiting: a trial is promoted as soon as it ranks",
            "hyperband": "brackets of successive halving, from aggressive to cautious",
            "bohb": "Hyperband with configurations drawn from a model of earlier results",
            "pbt": "a population: the worst trials copy the best ones and perturb them",
        },
    ),
    "sampler": (
        "Samplers",
        {
            "random": "at random: those that `sha` would try",
            "qmc": "quasi-Monte-Carlo: spread evenly over the space",
            "tpe": "tree-structured Parzen estimator; learns from results",
            "gp": "Gaussian process; learns from results",
            "cma-es": "CMA-ES; learns from results, numbers alone",
            "adaptive": "`random`, and `tpe` for the share of trials that its skill in this run "
            "allows; what `best` takes",
        },
    ),
    "allocator": (
        "Allocators",
        {
            "same": "one GPU per trial, or the narrowest width that was measured",
            "fluid": "shares all GPUs out again whenever trials or GPUs come or go",
        },
    ),
    "fleet": (
        "Fleets",
        {
            "constant": "the same instances from the begin to the end; `constant:4` is four",
            "naive": "idle ones are given back, and rented again when needed; `naive:4`",
            "consolidating": "the same, and trials move together so that instances get empty",
            "planned": "what the plan says; for the strategies that are planned",
            "seer": "SEER's own; a part of `seer` and `seer-constant`",
        },
    ),
    "planner": (
        "Planners",
        {
            "exact": "the best plan, proven: Pareto dynamic programming",
            "greedy": "RubberBand's descent from the best fleet of one size",
            "naive": "a fleet of one size whose idle instances are let go",
            "static": "the best fleet of one size",
            "ilp": "the best plan by integer programming: the check on `exact`, small jobs alone",
        },
    ),
    "provider": (
        "Providers",
        {
            "emulated": "an EC2 on this machine: no account, no bill ([emulator.md](emulator.md))",
            "aws": "AWS EC2 ([aws.md](aws.md))",
            "local": "this machine is the one instance ([local.md](local.md))",
        },
    ),
}

COMMANDS = """\
`-h` or `--help` after any of them lists its options. What a program reads goes to standard output \
(`-o json`). RUN is a run's name; without it the last one is meant."""

OPTIONS = {
    "--output": "How to print it.",
}
"""What options say that have no help of their own."""

EXIT_CODES = {
    "0": "done",
    "1": "an error: something broke, or every trial failed",
    "2": "a mistake in the command or the experiment; nothing was launched",
    "3": "infeasible: no plan meets the limits; nothing was launched",
    "4": "stopped by the budget; the best checkpoint is saved",
    "5": "stopped by the deadline; the best checkpoint is saved",
    "6": "no capacity: the cloud has no such instance now",
    "7": "clean-up not confirmed: instances may still bill, and their ids are printed",
    "8": "the storage didn't take the best model; the best that it took is shown",
    "130": "interrupted by Ctrl-C, and everything given back",
}

ENVIRONMENT = (
    ("`CLOUDTUNE_HOME`", "where state is kept, instead of `~/.cloudtune`"),
    (
        "`CLOUDTUNE_EMULATOR_FAULTS`",
        "a file of faults for the emulator that this command starts ([emulator.md](emulator.md))",
    ),
    ("`CLOUDTUNE_EPOCHS`", "how many epochs a script trains that is run alone, 3 if unset"),
    ("`CUDA_VISIBLE_DEVICES`", "provider local: only these GPUs are used"),
)

LEDGER = """\
Every run writes `~/.cloudtune/runs/RUN/ledger.jsonl`: a header, then a line for each event with \
the commands that it led to, written before any of them is carried out. Times (`at`) are seconds \
since the run began. A ledger of another version is refused, with what to do."""

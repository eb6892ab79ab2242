"""What names say of a script's options and metrics: usual ranges, and whether more is better."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from cloudtune.script.options import UNKNOWN, Option

_Usual: TypeAlias = tuple[Callable[[str], bool], Callable[[float | None], str]]

# Stands for a value that couldn't be guessed.
GAP: Final = "FILL IN"
_MAX_DEFAULT: Final = 1e15
_BATCHES: Final = (
    *("batch_size", "batchsize", "bs", "train_batch_size", "per_device_train_batch_size"),
    "batch",
)
EPOCHS: Final = (
    *("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "nepochs", "epoch"),
    *("total_epochs", "train_epochs", "nb_epochs", "n_epoch", "num_epoch", "max_epoch"),
)
STEPS: Final = (
    *("total_timesteps", "max_steps", "total_steps", "n_timesteps", "timesteps", "max_iters"),
    *("num_iterations", "iterations", "num_train_steps", "train_steps", "niters", "n_iters"),
    *("max_iter", "num_iters", "steps", "max_train_steps", "train_iters"),
)
_RATES: Final = ("lr", "learning_rate", "base_lr", "max_lr", "alpha", "init_lr", "peak_lr", "eta")
_DECAYS: Final = ("weight_decay", "wd", "l2", "l2_reg")
_SIZES: Final = ("hidden", "width", "dim", "channels", "units", "embd", "features", "heads")
# A gamma above this is a discount of rewards.
_DISCOUNT: Final = 0.9
# What the data, or a model that is loaded, decide.
_FIXED: Final = ("in", "input", "out", "output", "num_classes", "n_features", "image", "img")
_CHOSEN: Final = frozenset({"optimizer", "opt", "optim", "activation", "scheduler", "schedule"})
# A library's list of all optimizers has dozens, most of which need something that isn't there.
_MOST_CHOICES: Final = 10
_RETURNS: Final = ("reward", "return", "rew")
_MAXIMIZED: Final = (
    *("acc", "auc", "f1", "bleu", "rouge", "iou", "map", "precision", "recall", "r2", "score"),
    *("psnr", "ssim", "dice", "ndcg", "mrr", "top1", "top5", "top_1", "top_5", "top-1", "top-5"),
    *_RETURNS,
)
_MINIMIZED: Final = (
    *("loss", "mse", "mae", "rmse", "mape", "err", "ppl", "perplexity", "wer", "cer", "fid"),
)
# The first are for model selection. Reinforcement learning is for returns, not for its losses.
_HELD_OUT: Final = (
    *(r"(?<![a-z])e?val(?!ue)|(loss|acc)val", r"(?<![a-z])dev(?![a-z])", r"(?<![a-z])test"),
    "|".join(_RETURNS),
)
SAVES: Final = (
    *("ckpt_dir", "checkpoint_dir", "save_dir", "output_dir", "out_dir", "outdir", "out"),
    *("save_path", "checkpoint_path", "output", "log_dir", "logdir", "save_folder"),
)
RESUMES: Final = (
    *("resume", "resume_from", "resume_from_checkpoint", "checkpoint", "ckpt", "ckpt_path"),
    "load",
)


# What is of many episodes or batches, and what is of one alone; `_epoch`, `_step` are Lightning's.
_MEANS: Final = re.compile("mean|average|avg|running|_epoch$")
_SINGLES: Final = re.compile("last|_step$")


class Rank(NamedTuple):
    """A key by which a metric's name is sorted: held-out ones first, means before single ones."""

    unknown: bool
    trains: bool
    held_out: int
    single: int
    minimized: bool


def rank(name: str) -> Rank:
    """Return how likely a name is that of the metric that decides: the least is the likeliest."""
    lower = name.lower()
    places = (place for place, words in enumerate(_HELD_OUT) if re.search(words, lower))
    held_out = next(places, len(_HELD_OUT))
    single = (_SINGLES.search(lower) is not None) - (_MEANS.search(lower) is not None)
    return Rank(not is_metric(lower), "train" in lower, held_out, single, not is_maximized(lower))


def is_held_out(name: str) -> bool:
    """Whether a metric is of data that a model isn't trained on, by its name."""
    lower = name.lower()
    return "train" not in lower and any(re.search(words, lower) for words in _HELD_OUT)


def is_metric(name: str) -> bool:
    """Whether a name is that of a loss or a score."""
    lower = name.lower()
    return "errno" not in lower and any(word in lower for word in (*_MAXIMIZED, *_MINIMIZED))


def is_maximized(name: str) -> bool:
    """Whether more of a metric is better, by its name."""
    lower = name.lower()
    good = any(word in lower for word in _MAXIMIZED)
    return good and not any(word in lower for word in _MINIMIZED)


def space(value: Option) -> str:
    """Return a search space for a parameter, with the reason."""
    guess = usual_space(value) or _numeric_space(value)
    where = f"line {value.line}" if value.line else value.flag
    default = "" if value.default is UNKNOWN else f", {value.default} by default"
    if guess is not None:
        return f"{guess}  # {where}{default}; a guess by its name"
    if value.default is not UNKNOWN and isinstance(value.default, bool | int | float | str):
        return f"{{choice: [{scalar(value.default)}]}}  # {where}: the value there; add others"
    return f"{{choice: []}}  # {GAP}: {where}"


def _numeric_space(value: Option) -> str | None:
    """Return the space of an option whose name says nothing, by a default of at most 1."""
    default = value.default
    is_fraction = isinstance(default, float) and 0 < default <= 1
    return _around(default) if is_fraction and not value.line else None


def is_fraction(value: Option) -> bool:
    """Whether an option is a number that one may search although its name says nothing."""
    return value.takes_value and not value.choices and _numeric_space(value) is not None


def usual_space(value: Option) -> str | None:
    """Return the usual space for a parameter of that name; None if there is none."""
    name = value.last_name
    default = value.default
    plain = isinstance(default, int | float) and not isinstance(default, bool)
    number = float(default) if plain and 0 < default < _MAX_DEFAULT else None
    if plain and default <= 0 and name not in _DECAYS and "drop" not in name:
        return None  # it is computed, or off
    if name.split("_")[0] in _FIXED or name in _FIXED:
        return None
    usual = next((space for is_it, space in _USUAL if is_it(name)), None)
    if value.choices:
        few = len(value.choices) <= _MOST_CHOICES
        return _choice(value.choices) if few and (usual or name in _CHOSEN) else None
    if usual is None or isinstance(default, str):
        return None
    return usual(number)


def _around(number: float) -> str:
    return f"{{loguniform: [{number / 10:.3g}, {number * 10:.3g}]}}"


def _choice_around(number: float) -> str:
    whole = max(1, int(number))
    return _choice(sorted({max(1, whole // 2), whole, 2 * whole}))


def _dropout(default: float | None) -> str:
    high = max(0.5, min(0.9, (default or 0) + 0.2))
    return f"{{uniform: [0, {high:g}]}}"


def _discount(default: float | None) -> str:
    """Return the space of a gamma: a discount of rewards, or a decay of the learning rate."""
    return "{uniform: [0.9, 0.999]}" if (default or 0) > _DISCOUNT else "{uniform: [0.5, 0.99]}"


def _choice(values: Iterable[Any]) -> str:
    return f"{{choice: [{', '.join(map(scalar, values))}]}}"


def _near(number: float | None) -> str:
    middle = int(number or 2)
    return _choice(sorted({max(1, middle - 1), middle, middle + 1}))


# The usual spaces by name: the first match counts, for a default (None if unknown).
_USUAL: Final[tuple[_Usual, ...]] = (
    (lambda it: it in _RATES, lambda default: _around(default or 0.01)),
    (lambda it: it in _DECAYS, lambda default: _around(default or 1e-4)),
    (lambda it: it in {"momentum", "beta1"}, lambda _: "{uniform: [0.8, 0.99]}"),
    (lambda it: it == "gamma", _discount),
    (lambda it: it in {"gae_lambda", "lam"}, lambda _: "{uniform: [0.8, 1]}"),
    (lambda it: it in {"ent_coef", "entropy_coef"}, lambda default: _around(default or 0.01)),
    (lambda it: it.startswith("clip_") and "coef" in it, lambda _: "{uniform: [0.1, 0.4]}"),
    (lambda it: it == "warmup_ratio", lambda _: "{uniform: [0, 0.2]}"),
    (lambda it: it in {"lora_r", "lora_rank", "lora_alpha"}, lambda it: _choice_around(it or 8)),
    (lambda it: "dropout" in it or it.startswith("drop_"), _dropout),
    (lambda it: "smoothing" in it, lambda _: "{uniform: [0, 0.2]}"),
    (lambda it: it in _BATCHES, lambda default: _choice_around(default or 64)),
    (
        lambda it: any(word in it.split("_") for word in _SIZES),
        lambda default: _choice_around(default or 64),
    ),
    (lambda it: "layers" in it or it in {"depth", "n_layer"}, _near),
    # Boosted trees.
    (lambda it: it == "max_depth", lambda default: _choice_around(default or 6)),
    (lambda it: it == "num_leaves", lambda default: _choice_around(default or 31)),
    (lambda it: it == "subsample" or it.startswith("colsample"), lambda _: "{uniform: [0.5, 1]}"),
    (lambda it: it in {"reg_lambda", "reg_alpha"}, lambda default: _around(default or 1.0)),
)


def scalar(value: object) -> str:
    """Return a value as YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f"{value!r}"

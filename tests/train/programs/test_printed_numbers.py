"""Numbers that scripts print, in every format that people and libraries use, are read whole."""

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtune.script.printed_lines import EXAMPLE, LinePattern
from cloudtune.train.programs.metric_parsers import Readings

Write = Callable[[float], str]


def group_digits(comma: str, point: str) -> Write:
    def write(value: float) -> str:
        text = f"{value:,.4f}"
        return text.replace(",", "\0").replace(".", point).replace("\0", comma)

    return write


# How a number is written where a point marks decimals, and where a comma does.
BY_POINT: dict[str, Write] = {
    "repr": repr,
    "fixed": lambda value: f"{value:.4f}",
    "no zero": lambda value: re.sub(r"^(-?)0\.", r"\1.", f"{value:.4f}"),
    "general": lambda value: f"{value:.6g}",
    "exponent": lambda value: f"{value:.4e}",
    "capital": lambda value: f"{value:.3E}",
    "sign": lambda value: f"{value:+.4f}",
    "minus": lambda value: f"{value:.4f}".replace("-", "\u2212"),
    "thousands": group_digits(",", "."),
    "underscores": group_digits("_", "."),
    "swiss": group_digits("'", "."),
    "narrow space": group_digits("\u202f", "."),
    "percent": lambda value: f"{value:.4f}%",
    "percent apart": lambda value: f"{value:.4f} %",
    "seconds": lambda value: f"{value:.4f}s",
    "tensor": lambda value: f"tensor({value:.4f})",
    "tensor on a GPU": lambda value: f"tensor({value:.4f}, device='cuda:0', grad_fn=<Mse>)",
    "tensor of one": lambda value: f"tensor([{value:.4f}])",
    "array": lambda value: f"array({value}, dtype=float32)",
    "float64": lambda value: f"np.float64({value!r})",
    "jax": lambda value: f"Array({value:.4f}, dtype=float32)",
    "tf": lambda value: f"<tf.Tensor: shape=(), dtype=float32, numpy={value:.5f}>",
    "list": lambda value: f"[{value:.4f}]",
    "quoted": lambda value: f"'{value:.4f}'",
    "green": lambda value: f"\x1b[32m{value:.4f}\x1b[0m",
    "bold half": lambda value: f"{value:.4f}"[:3] + "\x1b[1m" + f"{value:.4f}"[3:] + "\x1b[22m",
}
BY_COMMA: dict[str, Write] = {
    "german": group_digits(".", ","),
    "french": group_digits("\u202f", ","),
    "plain": lambda value: f"{value:.4f}".replace(".", ","),
    "exponent": lambda value: f"{value:.4e}".replace(".", ","),
    "percent": lambda value: f"{value:.2f} %".replace(".", ","),
}
# What is between the label and its number, and around them.
BETWEEN = (" ", ": ", "=", " = ", ":\t", "': ", '": ', " │ ", " -> ", "  ")
BEFORE = ("", "epoch 3 ", "[3/10] ", "2026-11-29 10:04:07,123 INFO ", "train_loss 7.25 | ", "- ")
AFTER = ("", " lr 1.5e-3", ", time 12.25s", " (best 7.5)", " | 12.5 it/s", "]")
BEFORE_COMMA = ("", "Epoche 3 ", "[3/10] ", "Rate 0,25 ")
PATTERNS = (
    "val_loss {val_loss}",
    r"\bval_loss\W+(?P<val_loss>\S+)",
    r"(?<!\w)val_loss.*?(?P<val_loss>[\d.]+)",
    r"(?<!\w)val_loss['\"]?[\s:=│>'\"\[-]+?(?P<val_loss>[0-9]+)",
)


def draw_number(luck: random.Random) -> float:
    value = luck.choice([luck.random(), 10 ** luck.uniform(-12, 8), luck.randrange(100_000)])
    return luck.choice([1, 1, -1]) * float(value)


def drawn_line(luck: random.Random) -> tuple[str, float]:
    """Return a line with a number, and the number as far as the line shows it."""
    if luck.random() < 0.05:
        value = luck.choice([math.nan, math.inf, -math.inf])
        return f"val_loss{luck.choice(BETWEEN)}{value}", value
    by_comma = luck.random() < 0.2
    name = luck.choice(list(BY_COMMA if by_comma else BY_POINT))
    write = (BY_COMMA if by_comma else BY_POINT)[name]
    value = draw_number(luck)
    shown = f"{value:.4f}"
    shown = {"general": f"{value:.6g}", "capital": f"{value:.3E}"}.get(name, shown)
    shown = f"{value:.4e}" if name == "exponent" else shown
    shown = repr(value) if name in {"repr", "float64", "array"} else shown
    shown = f"{value:.5f}" if name == "tf" else shown
    shown = f"{value:.2f}" if name == "percent" and by_comma else shown
    around = (BEFORE_COMMA, ("",)) if by_comma else (BEFORE, AFTER)
    before, after = map(luck.choice, around)
    return f"{before}val_loss{luck.choice(BETWEEN)}{write(value)}{after}", float(shown)


def read(path: Path, line: str, pattern: str) -> float | None:
    readings = Readings(path, "val_loss", pattern)
    path.write_text(line + "\n", encoding="utf-8")
    reports = list(readings.more())
    return reports[0].metrics["val_loss"] if len(reports) == 1 else None


def test_2000_drawn_lines_are_read_without_a_mistake(tmp_path: Path) -> None:
    luck = random.Random(45)
    wrong = []
    for number in range(2000):
        line, value = drawn_line(luck)
        pattern = luck.choice(PATTERNS)
        path = tmp_path / str(number)
        result = read(path, line, pattern)
        if result is None or not (result == value or (math.isnan(result) and math.isnan(value))):
            wrong.append((line, pattern, value, result))
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        (
            r"loss: (?P<val_loss>[\d.]+)",
            "epoch 3 loss: 6.400000000000001e-11",
            6.400000000000001e-11,
        ),
        (r"loss: (?P<val_loss>[\d.]+)", "loss: -0.25", -0.25),
        (r"loss: (?P<val_loss>[\d.]+)%", "loss: 1,234.50%", 1234.5),
        (r"(?P<epoch>\d+),(?P<val_loss>\d+)", "3,100", 100.0),
        (r"\((?P<val_loss>[\d.]+)%\)", "Accuracy: 9/10 (90.5%)", 90.5),
        ("Accuracy: {right}/{all} ({val_loss}%)", "Accuracy: 97/100 (97.0%)", 97.0),
        ("Epoch {epoch}.*loss {val_loss}", "Epoch 3 [10/10] loss=0.5", 0.5),
        ("loss {val_loss}", "val_loss 0.3 eval/loss 0.4 loss 0.5", 0.5),
        ("loss {val_loss}", "loss improved; loss 0.5", 0.5),
        ("loss {val_loss}", "loss: 1.2k", 1200.0),
        ("Verlust {val_loss}", "Verlust 1.234 Rate 0,25", 1234.0),
        ("shape {val_loss}", "shape 1,234 loss 0.25", 1234.0),
        ("loss {val_loss}", "loss: 0.31,0.42", 0.31),
        ("loss {val_loss}", "loss 0.31±0.02", 0.31),
        ("loss {val_loss}", "loss 3-0.5", 3.0),
        ("loss {val_loss}", "loss None", None),
        ("loss {val_loss}", "loss 1.2.3", None),
        ("loss {val_loss}", "epoch=3-loss=0.21.ckpt", None),
        ("net {val_loss}", "net resnet18", None),
    ],
)
def test_a_number_is_read_to_its_end(
    tmp_path: Path, pattern: str, line: str, value: float | None
) -> None:
    assert read(tmp_path / "log", line, pattern) == value


def test_the_example_finds_what_it_names() -> None:
    assert list(LinePattern(EXAMPLE).values("Accuracy is: accuracy: 0.5")) == [{"accuracy": 0.5}]

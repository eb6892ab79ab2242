"""Reading other people's learning curves: whatever their tables leave out, repeat or get wrong."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.compare.curves import Columns, Curve, Curves, read_curves
from cloudtune.errors import UsageError
from cloudtune.model.trial import Mode

NAN = math.nan
ELAPSED = "config,epoch,acc,elapsed_s"
SECONDS = "config,epoch,acc,seconds"


def read(
    tmp_path: Path,
    *rows: str,
    header: str = "config,epoch,acc",
    configs: str | None = None,
    metric: str = "acc",
    mode: Mode = "max",
    columns: Columns | None = None,
    where: Sequence[tuple[str, str]] = (),
) -> Curves:
    file = tmp_path / "curves.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    table = None
    if configs is not None:
        table = tmp_path / "configs.csv"
        table.write_text(configs)
    return read_curves(file, metric, mode, columns=columns, configs=table, where=where)


def metrics(curves: Curves) -> dict[str, tuple[float, ...]]:
    return {curve.name: curve.metrics for curve in curves.curves}


def refusal(tmp_path: Path, *rows: str, **more: object) -> str:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, *rows, **more)  # type: ignore[arg-type]
    return str(raised.value).replace(f"{tmp_path}/", "")


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    table = pd.DataFrame({"config": [1, 1, 2], "epoch": [1, 2, 1], "acc": [0.1, NAN, 0.2]})
    table.to_parquet(tmp_path / "curves.parquet")
    curves = read_curves(tmp_path / "curves.parquet", "acc", "max")
    assert [curve.name for curve in curves.curves] == ["1", "2"]
    assert math.isnan(curves.curves[0].metrics[-1])


def test_an_epoch_without_a_row_keeps_the_metric(tmp_path: Path) -> None:
    curves = read(tmp_path, "a,1,0.1", "a,4,0.4", "b,2,0.2", "b,3,0.3", "b,4,0.5")
    assert metrics(curves) == {"a": (0.1, 0.1, 0.1, 0.4), "b": (0.1, 0.2, 0.3, 0.5)}
    assert curves.notices == ("2 configurations lack epochs: the metric stays as it was in these",)


@pytest.mark.parametrize("cell", ["nan", "NaN", "", "inf", "-inf"])
def test_a_missing_value_is_where_it_diverged(tmp_path: Path, cell: str) -> None:
    curves = read(tmp_path, "a,1,0.1", f"a,2,{cell}", "b,1,0.2", "b,2,0.3", "b,3,0.4")
    assert curves.curves[0].metrics == pytest.approx((0.1, NAN), nan_ok=True)
    assert [curve.epochs for curve in curves.curves] == [3, 3], "how long isn't known before"
    assert "1 of 2 configurations diverge" in curves.notices


def test_equal_rows_count_once_and_others_are_refused(tmp_path: Path) -> None:
    curves = read(tmp_path, "a,1,0.1", "a,1,0.1", "a,2,nan", "a,2,nan")
    assert len(curves.curves[0].metrics) == 2
    assert "2 rows are there twice: taken once" in curves.notices
    message = refusal(tmp_path, "a,1,0.1", "b,1,0.3", "a,1,0.2")
    assert message.startswith("curves.csv: row 3: its configuration has this epoch before")


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("", "", "not a table of CSV or Parquet: "),
        ("config,epoch,acc", "a,1,high", "curves.csv: row 1: acc is 'high'; write a number"),
        ("config,epoch,acc", "a,-1,0.5", "curves.csv: row 1: epoch must be 1, 2, 3"),
        (SECONDS, "a,1,0.5,0", "curves.csv: row 1: seconds must be above 0"),
        (ELAPSED, "a,1,0.5,9\na,2,0.5,9", "curves.csv: row 2: accumulated seconds must grow"),
    ],
)
def test_mistakes_in_a_table(tmp_path: Path, header: str, row: str, message: str) -> None:
    assert message in refusal(tmp_path, row, header=header)


def test_configuration_without_rows_diverged(tmp_path: Path) -> None:
    curves = read(tmp_path, "a,1,0.1", "a,2,0.2", configs="config,lr\na,0.1\nb,0.9\n")
    assert curves.curves[0] == Curve("a", (0.1, 0.2), 2, {"lr": 0.1})
    assert curves.curves[1].metrics == pytest.approx((NAN,), nan_ok=True)
    assert (curves.curves[1].epochs, curves.curves[1].config) == (2, {"lr": 0.9})

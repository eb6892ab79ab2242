"""Reading other people's learning curves: whatever their tables leave out, repeat or get wrong."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from cloudtune.errors import UsageError
from cloudtune.simulation.curves import Columns, Curve, Curves, read_curves

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cloudtune.trial import Mode

NAN = math.nan


def read(
    tmp_path: Path,
    text: str,
    *,
    configs: str | None = None,
    metric: str = "acc",
    mode: Mode = "max",
    columns: Columns | None = None,
    where: Sequence[tuple[str, str]] = (),
) -> Curves:
    file = tmp_path / "curves.csv"
    file.write_text(text)
    table = None
    if configs is not None:
        table = tmp_path / "configs.csv"
        table.write_text(configs)
    return read_curves(file, metric, mode, columns=columns, configs=table, where=where)


def lines(*rows: str, header: str = "config,epoch,acc") -> str:
    return "\n".join([header, *rows]) + "\n"


def metrics(curves: Curves) -> dict[str, tuple[float, ...]]:
    return {curve.name: curve.metrics for curve in curves.curves}


def refused(tmp_path: Path, text: str, **more: object) -> str:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, text, **more)  # type: ignore[arg-type]
    return str(raised.value).replace(f"{tmp_path}/", "")


# ---- what is read --------------------------------------------------------------------------------


def test_a_curve_has_the_metric_of_each_epoch_and_its_own_last_one(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.1", "a,2,0.3", "b,1,0.2"))
    assert metrics(curves) == {"a": (0.1, 0.3), "b": (0.2,)}
    assert [curve.epochs for curve in curves.curves] == [2, 1]
    assert (curves.max_epochs, curves.best, curves.mean_seconds) == (2, 0.3, None)
    assert curves.notices == ()


def test_the_best_is_the_least_where_less_is_better(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.5", "a,2,0.2", "b,1,nan"), mode="min")
    assert curves.best == 0.2
    assert curves.regret(0.5) == pytest.approx(0.3)
    assert curves.regret(None) is None


@given(st.integers(0, 1000))
def test_the_order_of_the_rows_means_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rows = [f"{config},{epoch},{config * epoch / 100}" for config in (2, 10, 1) for epoch in (1, 2)]
    random.Random(seed).shuffle(rows)
    curves = read(tmp_path_factory.mktemp("curves"), lines(*rows))
    assert list(metrics(curves).items()) == [
        ("1", (0.01, 0.02)),
        ("2", (0.02, 0.04)),
        ("10", (0.1, 0.2)),
    ]


def test_a_single_epoch_is_enough(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.1", "b,1,0.2"))
    assert (curves.max_epochs, curves.best) == (1, 0.2)


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    table = pa.table({"config": [1, 1, 2], "epoch": [1, 2, 1], "acc": [0.1, NAN, 0.2]})
    parquet.write_table(table, tmp_path / "curves.parquet")
    curves = read_curves(tmp_path / "curves.parquet", "acc", "max")
    assert [curve.name for curve in curves.curves] == ["1", "2"]
    assert math.isnan(curves.curves[0].metrics[-1])


def test_names_are_as_they_are_written(tmp_path: Path) -> None:
    assert list(metrics(read(tmp_path, lines("007,1,0.1", "7,1,0.2")))) == ["007", "7"]


# ---- gaps, repeats, divergence -------------------------------------------------------------------


def test_in_an_epoch_without_a_row_the_metric_stays_as_it_was(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.1", "a,4,0.4", "b,2,0.2", "b,3,0.3", "b,4,0.5"))
    assert metrics(curves) == {"a": (0.1, 0.1, 0.1, 0.4), "b": (0.1, 0.2, 0.3, 0.5)}
    assert curves.notices == ("2 configurations lack epochs: the metric stays as it was in these",)


def test_before_its_first_evaluation_a_trial_is_as_bad_as_the_worst_there_is(
    tmp_path: Path,
) -> None:
    curves = read(tmp_path, lines("a,1,9", "a,2,5", "b,2,3"), mode="min")
    assert metrics(curves)["b"] == (9.0, 3.0)


@pytest.mark.parametrize("cell", ["nan", "NaN", "", "inf", "-inf"])
def test_a_value_that_is_none_is_where_it_diverged(tmp_path: Path, cell: str) -> None:
    curves = read(tmp_path, lines("a,1,0.1", f"a,2,{cell}", "b,1,0.2", "b,2,0.3", "b,3,0.4"))
    assert curves.curves[0].metrics == pytest.approx((0.1, NAN), nan_ok=True)
    assert "1 of 2 configurations diverge" in curves.notices


def test_that_one_diverges_is_not_told_by_how_long_it_may_train(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,nan", "b,1,0.2", "b,2,0.3", "b,3,0.4"))
    assert [curve.epochs for curve in curves.curves] == [3, 3]


def test_values_after_it_diverged_are_not_used_and_that_is_told(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.1", "a,2,", "a,3,0.9", "b,1,0.2"))
    assert curves.curves[0].metrics == pytest.approx((0.1, NAN), nan_ok=True)
    assert curves.best == 0.2
    assert curves.curves[0].epochs == 3
    assert any("taken as diverged there" in notice for notice in curves.notices)


def test_equal_rows_count_once(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.1", "a,1,0.1", "a,2,nan", "a,2,nan"))
    assert len(curves.curves[0].metrics) == 2
    assert "2 rows are there twice: taken once" in curves.notices


def test_rows_that_contradict_each_other_are_refused_with_both_lines(tmp_path: Path) -> None:
    message = refused(tmp_path, lines("a,1,0.1", "", "b,1,0.3", "a,1,0.2"))
    assert message == (
        "curves.csv:5: step 1 of configuration a has acc 0.2, but acc 0.1 in curves.csv:2; "
        "keep one of them"
    )


def test_rows_of_parquet_are_numbered(tmp_path: Path) -> None:
    table = pa.table({"config": ["a", "a"], "epoch": [1, 1], "acc": [0.1, 0.2]})
    parquet.write_table(table, tmp_path / "curves.parquet")
    with pytest.raises(UsageError, match=r"curves\.parquet: row 2: .* in .*: row 1"):
        read_curves(tmp_path / "curves.parquet", "acc", "max")


# ---- steps ---------------------------------------------------------------------------------------


def test_epoch_0_is_before_training(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,0,0.9", "a,1,0.1", "b,0,0.9", "b,1,0.2"))
    assert metrics(curves) == {"a": (0.1,), "b": (0.2,)}
    assert curves.best == 0.2
    assert curves.notices == ("2 rows are of epoch 0, before training: left out",)


def test_steps_at_equal_distance_are_epochs(tmp_path: Path) -> None:
    text = lines("a,100,0.1", "a,300,0.3", "b,100,0.2", "b,200,0.3", header="config,step,acc")
    curves = read(tmp_path, text)
    assert metrics(curves) == {"a": (0.1, 0.1, 0.3), "b": (0.2, 0.3)}
    assert "the steps are 100 apart: epoch 1 is step 100, and so on" in curves.notices


def test_steps_of_each_its_own_count_in_order(tmp_path: Path) -> None:
    text = lines("a,334,0.1", "a,575,0.3", "b,401,0.2", "b,799,0.3", header="config,step,acc")
    curves = read(tmp_path, text)
    assert metrics(curves) == {"a": (0.1, 0.3), "b": (0.2, 0.3)}
    assert any("the first evaluation of a configuration" in notice for notice in curves.notices)


@pytest.mark.parametrize("step", ["-1", "", "nan", "inf"])
def test_an_epoch_that_is_none_is_refused_with_its_line(tmp_path: Path, step: str) -> None:
    message = refused(tmp_path, lines("a,1,0.1", f"a,{step},0.2"))
    assert message.startswith("curves.csv:3: epoch is ")


# ---- seconds -------------------------------------------------------------------------------------


def test_seconds_of_epochs(tmp_path: Path) -> None:
    header = "config,epoch,acc,seconds"
    curves = read(tmp_path, lines("a,1,0.1,10", "a,2,0.2,20", "b,1,0.3,", header=header))
    assert [curve.seconds for curve in curves.curves] == [(10.0, 20.0), (15.0,)]
    assert curves.mean_seconds == 15.0


def test_accumulated_seconds_are_taken_apart_and_shared_out_over_gaps(tmp_path: Path) -> None:
    header = "config,epoch,acc,elapsed_s"
    rows = ("a,0,0,5", "a,1,0.1,15", "a,2,0.2,35", "b,1,0.1,10", "b,3,0.1,50")
    curves = read(tmp_path, lines(*rows, header=header))
    assert [curve.seconds for curve in curves.curves] == [(10.0, 20.0), (10.0, 20.0, 20.0)]


def test_where_one_diverges_its_epoch_takes_what_its_others_do(tmp_path: Path) -> None:
    header = "config,epoch,acc,seconds"
    configs = "config,epochs\na,2\nb,3\nc,3\n"
    curves = read(
        tmp_path, lines("a,1,0.1,10", "a,2,0.2,10", "b,1,0.3,40", header=header), configs=configs
    )
    assert [curve.seconds for curve in curves.curves] == [(10.0, 10.0), (40.0, 40.0), (20.0,)]


@pytest.mark.parametrize(
    ("name", "cells", "told"),
    [
        ("seconds", ("10", "0"), "seconds is 0; an epoch takes more than 0 seconds"),
        ("seconds", ("10", "-3"), "seconds is -3; an epoch takes more than 0 seconds"),
        ("elapsed_s", ("10", "7"), "7 s since training began, after 10 s in an earlier epoch"),
        ("elapsed_s", ("10", "10"), "accumulated seconds must grow"),
    ],
)
def test_seconds_that_can_not_be_are_refused(
    tmp_path: Path, name: str, cells: tuple[str, str], told: str
) -> None:
    text = lines(f"a,1,0.1,{cells[0]}", f"a,2,0.1,{cells[1]}", header=f"config,epoch,acc,{name}")
    message = refused(tmp_path, text)
    assert message.startswith("curves.csv:3: ")
    assert told in message


def test_seconds_and_elapsed_are_not_both_given(tmp_path: Path) -> None:
    text = lines("a,1,0.1,1,1", header="config,epoch,acc,s,t")
    assert "not both" in refused(tmp_path, text, columns=Columns(seconds="s", elapsed="t"))


# ---- columns -------------------------------------------------------------------------------------


def test_a_missing_column_is_told_with_those_there_are_and_the_nearest(tmp_path: Path) -> None:
    message = refused(tmp_path, lines("a,1,0.1", header="config,epoch,val_top1"), metric="val_top")
    assert message == (
        "curves.csv: there is no column 'val_top'; there are config, epoch, val_top1. "
        "Did you mean 'val_top1'? Name it with --metric"
    )


@pytest.mark.parametrize(
    ("header", "option"),
    [("name,epoch,acc", "--config-column"), ("config,when,acc", "--epoch-column")],
)
def test_columns_can_be_named(tmp_path: Path, header: str, option: str) -> None:
    text = lines("a,1,0.1", header=header)
    assert option in refused(tmp_path, text)
    config, epoch, _ = header.split(",")
    columns = Columns(config=config, epoch=epoch)
    assert metrics(read(tmp_path, text, columns=columns)) == {"a": (0.1,)}


def test_usual_names_are_found_and_told(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("3,1,0.1", header="run,global_step,acc"))
    assert curves.notices == ("read run as config, global_step as epoch",)


def test_rows_can_be_chosen(tmp_path: Path) -> None:
    text = lines("a,1,0.1,x", "a,1,0.2,y", "b,1,0.3,y", header="config,epoch,acc,task")
    assert metrics(read(tmp_path, text, where=[("task", "y")])) == {"a": (0.2,), "b": (0.3,)}
    assert "no row is left where task=z; task is one of x, y" in refused(
        tmp_path, text, where=[("task", "z")]
    )
    assert "there is no column 'tsk'" in refused(tmp_path, text, where=[("tsk", "z")])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a table of CSV or Parquet: Empty CSV file"),
        ("config,epoch,acc\n", "has no rows below its header"),
        ("config,epoch,acc\na,1\n", "not a table of CSV or Parquet: "),
        ("config,epoch,acc\na,1,high\n", "curves.csv:2: acc is 'high'; write a number"),
        ("config,epoch,acc\n,1,0.5\n", "curves.csv:2: config is empty"),
        ("config,epoch,acc,acc\na,1,0.5,0.5\n", "two columns are called 'acc'"),
        ("config,epoch,acc\na,1,nan\n", "acc has no value in any row"),
        ("config,epoch,acc\na,0,0.5\n", "acc has no value in any row"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, told: str) -> None:
    assert told in refused(tmp_path, text)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.csv: there is no such file"):
        read_curves(tmp_path / "no.csv", "acc", "max")
    (tmp_path / "no.parquet").write_text("config")
    with pytest.raises(UsageError, match="not a table of CSV or Parquet"):
        read_curves(tmp_path / "no.parquet", "acc", "max")


# ---- configurations ------------------------------------------------------------------------------


def test_a_configuration_without_rows_diverged_in_its_first_epoch(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.1", "a,2,0.2"), configs="config,lr\na,0.1\nb,0.9\n")
    assert curves.curves[0] == Curve("a", (0.1, 0.2), 2, {"lr": 0.1})
    assert curves.curves[1].metrics == pytest.approx((NAN,), nan_ok=True)
    assert (curves.curves[1].epochs, curves.curves[1].config) == (2, {"lr": 0.9})


def test_one_that_ends_before_its_planned_epochs_diverged(tmp_path: Path) -> None:
    curves = read(
        tmp_path, lines("a,1,0.1", "b,1,0.2", "b,2,0.3"), configs="config,epochs\na,4\nb,2\n"
    )
    assert curves.curves[0].metrics == pytest.approx((0.1, NAN), nan_ok=True)
    assert [curve.epochs for curve in curves.curves] == [4, 2]
    assert any("end before their planned epochs" in notice for notice in curves.notices)


def test_what_tells_which_diverge_is_no_hyperparameter(tmp_path: Path) -> None:
    configs = "config,lr,failed,nesterov\na,0.1,false,true\nb,0.9,true,true\nc,0.2,false,false\n"
    text = lines("a,1,0.1", "c,1,0.1")
    curves = read(tmp_path, text, configs=configs)
    assert [sorted(curve.config) for curve in curves.curves] == [["lr", "nesterov"]] * 3
    assert "failed is no hyperparameter: it tells which diverge" in curves.notices
    chosen = read(tmp_path, text, configs=configs, columns=Columns(hyperparameters=("failed",)))
    assert chosen.curves[1].config == {"failed": True}


def test_configurations_can_be_chosen(tmp_path: Path) -> None:
    configs = "config,task\na,x\nb,y\nc,y\n"
    curves = read(tmp_path, lines("a,1,0.1", "b,1,0.2"), configs=configs, where=[("task", "y")])
    assert [curve.name for curve in curves.curves] == ["b", "c"]


def test_rows_of_configurations_that_are_not_listed_are_left_out(tmp_path: Path) -> None:
    curves = read(tmp_path, lines("a,1,0.1", "z,1,0.9"), configs="config,lr\na,0.1\n")
    assert metrics(curves) == {"a": (0.1,)}
    assert any("aren't in" in notice for notice in curves.notices)


@pytest.mark.parametrize(
    ("configs", "told"),
    [
        ("config,lr\nx,1\n", "no row is left: no configuration of it is in configs.csv"),
        ("config,lr\na,1\na,2\n", "configs.csv:3: configuration 'a' is in configs.csv:2 too"),
        ("name,lr\na,1\n", "configs.csv: there is no column 'config'; there are name, lr."),
        ("config,epochs\na,0.5\n", "configs.csv:2: epochs is 0.5; write a whole number above 0"),
    ],
)
def test_mistakes_in_the_configurations_are_told(tmp_path: Path, configs: str, told: str) -> None:
    assert told in refused(tmp_path, lines("a,1,0.1"), configs=configs)

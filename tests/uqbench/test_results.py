"""Results: reading runs, and their tables."""

import math

import numpy as np
import pandas as pd
import pytest

from uqbench.errors import UsageError
from uqbench.records import Cost, Identity, Outcome, Record, RecordFile
from uqbench.results import Results

NAN = float("nan")


def record(method, seed, metrics=None, *, status="ok", key=None, **extra):
    identity = Identity(
        suite="starter",
        problem="digits",
        fingerprint="f",
        split=(0.7, 0.15, 0.15),
        network={},
        map_checkpoint=f"map {seed}",
        method=method,
        settings={"members": 10},
        seed=seed,
        dtype="float64",
        quick=False,
    )
    return Record(
        key=key or f"{method} {seed}",
        identity=identity,
        status=status,
        outcome=Outcome(metrics=metrics or {}, ood=extra.pop("ood", {})),
        cost=extra.pop("cost", Cost()),
        **extra,
    )


def write(folder, *records):
    folder.mkdir(exist_ok=True)
    for one in records:
        RecordFile(folder).append(one)
    return folder


def test_the_newest_record_of_a_cell_is_loaded(tmp_path):
    run = write(
        tmp_path / "run",
        record("a", 0, {"nll": 1.0}),
        record("a", 1, {"nll": 2.0}),
        record("a", 0, {"nll": 3.0}),
    )
    results = Results.load(run)
    assert [(r.identity.seed, r.outcome.metrics["nll"]) for r in results.records] == [
        (0, 3.0),
        (1, 2.0),
    ]


def test_several_runs_are_loaded_together_and_the_last_folder_wins(tmp_path):
    first = write(tmp_path / "1", record("a", 0, {"nll": 1.0}), record("b", 0, {"nll": 2.0}))
    second = write(tmp_path / "2", record("a", 0, {"nll": 5.0}))
    found = {r.key: r.outcome.metrics["nll"] for r in Results.load([first, str(second)]).records}
    assert found == {"a 0": 5.0, "b 0": 2.0}


def test_a_failure_in_one_folder_does_not_hide_the_result_in_another(tmp_path):
    good = write(tmp_path / "good", record("a", 0, {"nll": 1.0}, key="k"))
    bad = write(tmp_path / "bad", record("a", 0, status="oom", key="k"))
    for order in ([good, bad], [bad, good]):
        (found,) = Results.load(order).records
        assert found.status == "ok"
    (found,) = Results.load([bad, bad]).records
    assert found.status == "oom"


def test_a_folder_without_a_run_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere: no run here"):
        Results.load(tmp_path / "nowhere")


def test_the_frame_has_one_row_per_cell_with_named_columns():
    results = Results(
        [
            record(
                "a",
                0,
                {"accuracy": 0.9, "nll": 0.3},
                ood={"held-out": {"ood_auc": 0.8}},
                cost=Cost(fit_seconds=1.5, device="cpu"),
            ),
            record("b", 0, status="failed", error_type="E", error_message="boom"),
        ]
    )
    frame = results.frame
    assert list(frame["method"]) == ["a", "b"]
    assert list(frame.columns[:8]) == [
        "suite",
        "problem",
        "method",
        "settings",
        "seed",
        "quick",
        "status",
        "error",
    ]
    ok, failed = frame.to_dict("records")
    assert (ok["suite"], ok["problem"], ok["seed"], ok["status"]) == ("starter", "digits", 0, "ok")
    assert ok["settings"] == '{"members": 10}'
    assert (ok["accuracy"], ok["nll"], ok["ood:held-out:ood_auc"]) == (0.9, 0.3, 0.8)
    assert (ok["fit_seconds"], ok["device"]) == (1.5, "cpu")
    assert failed["error"] == "E: boom"
    assert math.isnan(failed["accuracy"])
    assert math.isnan(failed["ood:held-out:ood_auc"])


def test_the_frame_of_no_records_has_its_columns():
    frame = Results([]).frame
    assert len(frame) == 0
    assert {"method", "status", "fit_seconds"} <= set(frame.columns)


def test_the_summary_agrees_with_pandas_on_the_frame():
    values = {"a": [1.0, 2.0, 4.0], "b": [3.0, 3.5, 3.25]}
    results = Results([record(m, s, {"nll": v}) for m in values for s, v in enumerate(values[m])])
    expected = results.frame.groupby("method")["nll"].agg(["mean", "std", "count"])
    summary = results.summary()
    nll = summary[summary["metric"] == "nll"].set_index("method")
    for method in values:
        assert nll.loc[method, "mean"] == pytest.approx(expected.loc[method, "mean"])
        assert nll.loc[method, "std"] == pytest.approx(expected.loc[method, "std"])
        assert nll.loc[method, "seeds"] == expected.loc[method, "count"] == 3


def test_the_summary_has_the_intervals_of_the_csv():
    results = Results([record("a", s, {"nll": v}) for s, v in enumerate([1.0, 2.0, 4.0, 3.0, 7.0])])
    (row,) = results.summary().query("metric == 'nll'").to_dict("records")
    assert row["ci95_low"] < 3.4 < row["ci95_high"]
    header, *lines = results.leaderboard("csv").splitlines()
    line = next(line for line in lines if ",nll," in line)
    assert f"{row['std']},{row['ci95_low']},{row['ci95_high']}," in line
    assert "std,ci95_low,ci95_high," in header


def test_the_summary_holds_undefined_values_as_nan_and_says_what_is_missing():
    results = Results([record("a", 0, {"nll": NAN}), record("a", 1, status="crashed")])
    (row,) = results.summary().query("metric == 'nll'").to_dict("records")
    assert np.isnan(row["mean"])
    assert (row["seeds"], row["seeds_planned"], row["status"]) == (0, 2, "incomplete")
    assert isinstance(results.summary(), pd.DataFrame)


def test_the_leaderboard_is_text_in_the_format_asked_for(capsys):
    results = Results([record("a", 0, {"accuracy": 0.9, "nll": 0.3})])
    assert results.leaderboard("csv").startswith("suite,problem,")
    assert results.leaderboard("md").startswith("### digits: classification, 1 seed")
    assert "0.900" in results.leaderboard()
    results.table()
    assert "0.900" in capsys.readouterr().out

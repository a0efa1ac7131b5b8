"""Inputs that broke other tools, with the right answers: where each is proved.

Those that go through the command line as a user would are here; the others are beside the code.

 1  ECE with confidence 1        metrics/test_classification.py::test_ece_counts_a_confidence_of_...
                                 here: test_1_...
 2  AUROC of ties, empty group   metrics/test_detection.py::test_auroc_of_separated_equal_and_...
 3  constant target              here: test_3_...
 4  constant feature             here: test_4_...; datasets/test_splits.py
 5  labels 0, 2, 5; cat, dog     here: test_5_...
 6  last batch of one row        uqbench/test_training.py::test_no_last_batch_has_one_row_...,
                                 ::test_batch_norm_trains_when_the_last_batch_would_have_one_row;
                                 here: test_6_...
 7  float64 network, inputs      uqbench/test_linearised.py::test_the_jacobian_has_the_networks_...;
                                 uqbench/test_own_network.py; here: test_7_...
 8  observation noise tuned      here: test_8_...; methods/test_lla.py::test_the_noise_maximises_...
 9  NaN or inf on a grid         here: test_9_...; methods/test_lla.py::test_grid_points_without_...
10  empty, NaN, inf, text cell   here: test_10_...
11  one member                   here: test_11_...; methods/test_de.py, methods/test_nuqls.py
12  confident disagreement       methods/test_de.py::test_members_that_disagree_confidently_have_...
13  diagonal Laplace, 1e6 x 1e3  methods/test_lla.py::test_diagonal_laplace_with_a_million_...
14  the same command twice       uqbench/test_runner.py::test_every_cell_leaves_one_record_and_...
15  kill -9 after some cells     uqbench/test_runner.py::test_a_run_that_is_killed_again_...;
                                 here: test_15_...
16  a seed missing               uqbench/test_leaderboard.py::test_a_method_that_lacks_a_seed_is_...
17  (n,) against (n, 1)          uqbench/test_training.py::test_a_network_that_returns_n_or_...
18  same seed, same numbers      here: test_18_...
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from uqbench.datasets.splits import prepare
from uqbench.datasets.tables import read_table
from uqbench.records import Record, RecordFile
from uqbench.seeds import derive_seed

ONE_THREAD = {"OMP_NUM_THREADS": "1", "COLUMNS": "160"}
FAST = ("--seeds", "1", "--quick", "--device", "cpu")


@dataclass(frozen=True)
class Shell:
    """A folder in which the command line is run."""

    folder: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "uqbench", *arguments],
            cwd=self.folder,
            env={**os.environ, **ONE_THREAD},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def refused(self, *arguments: str) -> str:
        """Run a command that must fail with one line, before any work and leaving nothing."""
        before = sorted(self.folder.rglob("*"))
        done = self(*arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert sorted(self.folder.rglob("*")) == before
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        return done.stderr

    def records(self, out: str = "out") -> list[Record]:
        return RecordFile(self.folder / out).read()

    def write(self, name: str, content: str) -> str:
        (self.folder / name).write_text(content)
        return name


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


def table(rows: int = 40, target=None, header: str = "a,b,y") -> str:
    """A table of two features; the target is their sum unless ``target(row, a, b)`` says more."""
    random = np.random.default_rng(0)
    lines = [header]
    for row in range(rows):
        a, b = random.normal(size=2).round(3)
        lines.append(f"{a},{b},{a + b:.4f}" if target is None else f"{a},{b},{target(row, a, b)}")
    return "\n".join(lines) + "\n"


def suite(network: str = "hidden = [5]", **values: str) -> str:
    lines = [
        '[problems."toy/a"]',
        'dataset = "toy/cubic"',
        'task = "regression"',
        "standardise = false",
        "training = { epochs = 20 }",
        f"network = {{ {network} }}",
    ]
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in values.items())])


def test_1_ece_of_the_three_points_is_a_half_and_the_tie_picks_class_0():
    from uqbench.metrics.classification import accuracy, ece

    probabilities, labels = np.array([[1, 0], [1, 0], [0.5, 0.5]]), np.array([0, 1, 0])
    assert ece(probabilities, labels) == 0.5
    assert accuracy(probabilities, labels) == pytest.approx(2 / 3)


@pytest.mark.parametrize("value", ["3.5", "3"])
@pytest.mark.parametrize("task", [(), ("--task", "regression")])
def test_3_a_constant_target_names_the_column_and_its_variance(shell, value, task):
    shell.write("t.csv", table(target=lambda *_: value, header="a,b,price"))
    error = shell.refused(
        "run", "--methods", "map", "--data", "t.csv", "--target", "price", "--out", "out", *task
    )
    assert f"t.csv: column 'price': its variance is zero (every value is {value})" in error


def test_4_constant_feature_columns_are_harmless_end_to_end(shell, data_root):
    shell.write("naval.toml", suite().replace("toy/cubic", "uci/naval").replace("false", "true"))
    shell.write("t.csv", "\n".join(f"{i % 7},0.998,{i * i % 11}.5" for i in range(-1, 40)))
    lines = (shell.folder / "t.csv").read_text().splitlines()[1:]
    shell.write("t.csv", "\n".join(["a,constant,y", *lines]) + "\n")
    sources = (("--suite", "naval.toml"), ("--data", "t.csv", "--target", "y"))
    for out, source in zip(("naval", "own"), sources, strict=True):
        done = shell(
            "run", "--methods", "map,nuqls", "--set", "nuqls.epochs=2", *source, *FAST, "--out", out
        )
        assert done.returncode == 0, done.stderr
        for record in shell.records(out):
            assert all(math.isfinite(value) for value in record.outcome.metrics.values())


@pytest.mark.parametrize("labels", [("0", "2", "5"), ("cat", "dog", "eel"), ("5", "2", "0")])
def test_5_class_labels_are_sorted_and_the_mapping_is_in_the_record(shell, labels):
    rare = (7, 31, 40, 55)
    target = {True: labels[0], False: labels[1]}
    text = table(60, lambda row, a, b: labels[2] if row in rare else target[bool(a > b)])
    path = shell.folder / shell.write("t.csv", text)
    done = shell(
        *("run", "--methods", "map,de", "--set", "de.epochs=5", "--data", "t.csv"),
        *("--target", "y", "--seeds", "3", "--quick", "--device", "cpu", "--out", "out"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = shell.records()
    assert len(records) == 6
    for record in records:
        assert record.outcome.class_names == tuple(sorted(labels))
        assert 0 <= record.outcome.metrics["accuracy"] <= 1
        assert record.outcome.metrics["nll"] >= 0
    line = json.loads((shell.folder / "out" / "records.jsonl").read_text().splitlines()[0])
    assert line["outcome"]["class_names"] == sorted(labels)
    whole = read_table(path, "y")
    tests = [prepare(whole, seed=derive_seed("t", seed, "split")).test for seed in range(3)]
    assert min(len(np.unique(test.targets)) for test in tests) == 2  # a class without a test row


def test_6_no_row_is_lost_where_batches_end_in_a_single_row(shell):
    # 287 rows: 200 for training, which a batch of 199 leaves 1 of; predictions in batches of 43
    shell.write("t.csv", table(287))
    text = suite(predict_batch="43", target='"y"').replace("toy/cubic", "file:t.csv")
    shell.write("t.toml", text.replace("epochs = 20", "epochs = 2, batch_size = 199"))
    done = shell("run", "--methods", "map,de", "--suite", "t.toml", *FAST, "--out", "out")
    assert done.returncode == 0, done.stderr
    for record in shell.records():
        assert record.outcome.sizes == {"train": 200, "validation": 43, "test": 44}


def test_7_every_method_runs_in_single_and_double_precision(shell):
    found = {}
    for dtype in ("float32", "float64"):
        shell.write("t.toml", suite(dtype=f'"{dtype}"'))
        methods = "map,nuqls,lla,de,ntk_gp"
        done = shell("run", "--methods", methods, "--suite", "t.toml", *FAST, "--out", dtype)
        assert done.returncode == 0, done.stderr
        found[dtype] = {r.identity.method: r.outcome.metrics["rmse"] for r in shell.records(dtype)}
    assert found["float32"]["map"] == pytest.approx(found["float64"]["map"], rel=1e-3)
    assert found["float32"]["lla"] == pytest.approx(found["float64"]["lla"], rel=1e-3)


def test_8_the_observation_noise_of_laplace_is_tuned_and_recorded(shell):
    shell.write("t.csv", table(80))
    done = shell(
        "run", "--methods", "lla", "--data", "t.csv", "--target", "y", *FAST, "--out", "out"
    )
    assert done.returncode == 0, done.stderr
    [record] = shell.records()
    assert 0 < record.outcome.tuned["noise"] < 0.5  # the targets have no noise
    assert record.outcome.tuned["noise"] in record.identity.settings["noise_grid"]
    assert record.outcome.grid_size == 20


def test_9_bad_grid_points_are_skipped_and_a_bad_grid_is_named(shell):
    shell.write("t.toml", suite())
    run = ("run", "--methods", "lla", "--suite", "t.toml", *FAST, "--out", "out")
    good = shell(*run, "--set", "lla.noise_grid=[1e-300, 1e-200, 10]")
    assert good.returncode == 0, good.stderr
    assert shell.records()[-1].outcome.tuned["noise"] == 10
    bad = shell(*run, "--set", "lla.noise_grid=[1e-300, 1e-200]")
    assert bad.returncode == 1
    assert "lla.noise_grid: no value of the grid [1e-300, 1e-200] has a finite" in bad.stdout
    assert "must be a finite number, got inf" in shell.refused(
        *run, "--set", "lla.noise_grid=[inf]"
    )


@pytest.mark.parametrize("column", ["b", "y"])
@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("", "the cell is empty"),
        ("NaN", "'NaN' is not a finite number"),
        ("-inf", "'-inf' is not a finite number"),
        ("hello", "'hello' is not a finite number"),
    ],
)
def test_10_a_cell_that_is_no_number_is_named_by_file_line_and_column(
    shell, cell, complaint, column
):
    lines = table().splitlines()
    fields = lines[11].split(",")
    fields["aby".index(column)] = cell
    lines[11] = ",".join(fields)
    shell.write("t.csv", "\n".join(lines))
    error = shell.refused("run", "--methods", "map", "--data", "t.csv", "--target", "y")
    assert f"t.csv: line 12, column '{column}': {complaint}" in error


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("nuqls.members=1", "sklearn/diabetes"),
        ("de.members=1", "sklearn/digits"),
        ("base.members=1", "sklearn/digits"),
        ("lla.samples=1", "sklearn/digits"),
    ],
)
def test_11_one_member_is_refused_where_a_variance_over_members_is_asked_for(
    shell, setting, problem
):
    method, _, _ = setting.partition(".")
    error = shell.refused("run", "--methods", method, "--problems", problem, "--set", setting)
    assert f"--set {setting}" in error
    assert "2" in error


def test_15_a_killed_run_is_not_presented_as_a_full_result(shell):
    shell.write("t.toml", suite())
    run = ("run", "--methods", "map,lla", "--suite", "t.toml", "--seeds", "8", "--out", "out")
    process = shell.start(*run)
    path = shell.folder / "out" / "records.jsonl"
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = len(shell.records())
    assert 3 <= done < 16
    board = shell("leaderboard", "out")
    assert f"{16 - done} of the 16 cells that were asked for have not run yet" in board.stderr
    if done % 2:  # one of the methods lacks a seed
        assert "incomplete" in board.stdout
        assert "not ranked" in board.stdout
    rest = shell(*run)
    assert f"{done} already there, {16 - done} to run" in rest.stderr
    assert shell("leaderboard", "out").stderr == ""


def test_18_the_same_seed_gives_the_same_numbers_in_one_process_and_in_another(shell, tmp_path):
    from uqbench.cells import Request, plan
    from uqbench.evaluator import evaluate_cell

    methods = ("map", "nuqls", "de", "lla", "ntk_gp")
    path = shell.write("t.toml", suite())
    done = shell(
        *("run", "--methods", ",".join(methods), "--suite", path, "--seeds", "2"),
        *("--device", "cpu", "--out", "out"),
    )
    assert done.returncode == 0, done.stderr
    there = {record.key: record.outcome for record in shell.records()}
    cells = plan(Request(methods=methods, suite=str(shell.folder / path), seeds=2))
    assert {cell.key for cell in cells} == set(there)
    for cell in reversed(cells):  # in another order, so that nothing may hang on it
        first, second = (
            evaluate_cell(cell, cache_dir=tmp_path / f"cache {attempt}")[0] for attempt in range(2)
        )
        assert first == second
        assert first.metrics == pytest.approx(there[cell.key].metrics, rel=1e-9, nan_ok=True)

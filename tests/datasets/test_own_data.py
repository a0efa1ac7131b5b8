"""The problem that is made for a table of one's own."""

import numpy as np
import pytest

from uqbench.datasets.arrays import Table
from uqbench.datasets.catalogue import load_problem_data
from uqbench.datasets.tables import read_table
from uqbench.method import Task
from uqbench.own_data import own_table_problem


def table_of(rows, features=2):
    random = np.random.default_rng(0)
    names = tuple(f"x{i}" for i in range(features))
    inputs = np.broadcast_to(random.normal(size=(1, features)), (rows, features))
    inputs = np.array(inputs) if rows < 1000 else np.zeros((rows, features))
    return Table("t", inputs, random.normal(size=rows), names, "y", Task.REGRESSION)


@pytest.mark.parametrize(
    ("rows", "epochs"), [(10, 2000), (285, 2000), (2000, 286), (100_000, 6), (1_000_000, 5)]
)
def test_training_takes_about_two_thousand_steps(rows, epochs):
    problem = own_table_problem("t.csv", "y", table_of(rows))
    assert problem.training.epochs == epochs
    assert problem.training.batch_size == 200


def test_a_large_table_is_in_float32():
    assert own_table_problem("t.csv", "y", table_of(100)).dtype == "float64"
    assert own_table_problem("t.csv", "y", table_of(600_000, 10)).dtype == "float32"


def test_the_problem_loads_the_table_that_it_was_made_for(tmp_path, monkeypatch):
    path = tmp_path / "pets.csv"
    path.write_text("a,pet\n" + "".join(f"{i},{'cat' if i % 2 else 'dog'}\n" for i in range(60)))
    monkeypatch.chdir(tmp_path)
    table = read_table("pets.csv", "pet")
    problem = own_table_problem("pets.csv", "pet", table)
    assert problem.name == "pets"
    assert problem.dataset == f"file:{path}"
    assert problem.target == "pet"
    assert problem.task is Task.CLASSIFICATION
    data = load_problem_data(
        problem.dataset,
        task=problem.task,
        split=problem.split,
        seed=0,
        standardise=problem.standardise,
        held_out_classes=problem.held_out_classes,
        target=problem.target,
    )
    assert data.class_names == ("cat", "dog")
    assert data.fingerprint == table.fingerprint


def test_the_target_is_part_of_what_training_depends_on():
    table = table_of(50)
    first = own_table_problem("t.csv", "y", table)
    other = own_table_problem("t.csv", "z", table)
    assert first.training_identity() != other.training_identity()


def test_the_description_says_what_was_read_on_one_line(tmp_path):
    path = tmp_path / "t.csv"
    rows = "".join(f"{i},k{i % 2},{'cat' if i % 3 else 'dog'}\n" for i in range(12))
    path.write_text(f'a,"b\nnote",kind\n{rows}')
    problem = own_table_problem(path, "kind", read_table(path, "kind"))
    assert problem.description == (
        "classification of 'kind' (classes cat, dog) from 3 features (a, b note=k0, b note=k1), "
        "12 rows of t.csv; MLP with 50 and 50 tanh units, trained in float64 by adam (lr 0.01, "
        "cosine schedule, weight decay 0.0001) for 2000 epochs in batches of 200"
    )

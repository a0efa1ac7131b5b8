"""Splitting and standardising."""

import numpy as np
import pytest

from uqbench.datasets.arrays import Table
from uqbench.datasets.splits import prepare, training_statistics
from uqbench.errors import DataError, UsageError
from uqbench.method import Task


def regression_table(inputs, targets):
    names = tuple(f"x{i}" for i in range(inputs.shape[1]))
    return Table("made", inputs, targets, names, "price", Task.REGRESSION, source="made.csv")


def classification_table(labels, class_names):
    inputs = np.arange(2.0 * len(labels)).reshape(-1, 2)
    return Table(
        "made",
        inputs,
        np.asarray(labels, dtype=np.int64),
        ("x0", "x1"),
        "pet",
        Task.CLASSIFICATION,
        class_names,
        source="pets.csv",
    )


@pytest.fixture
def table():
    random = np.random.default_rng(0)
    inputs = random.normal(5, [1, 10, 100], (101, 3))
    return regression_table(inputs, random.normal(-3, 7, 101))


def test_the_parts_have_the_documented_sizes_and_share_no_row(table):
    data = prepare(table, seed=1, standardise=False)
    assert (len(data.train), len(data.validation), len(data.test)) == (70, 15, 16)
    rows = np.concatenate([data.train.inputs, data.validation.inputs, data.test.inputs])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, table.inputs))


def test_the_split_order_is_training_test_validation(table):
    data = prepare(table, seed=1, split=(0.5, 0.4, 0.1))
    assert (len(data.train), len(data.validation), len(data.test)) == (50, 10, 41)


def test_rows_and_targets_stay_together(table):
    data = prepare(table, seed=1, standardise=False)
    target_of = {tuple(row): y for row, y in zip(table.inputs, table.targets, strict=True)}
    for part in (data.train, data.validation, data.test):
        assert [target_of[tuple(row)] for row in part.inputs] == part.targets.tolist()


def test_the_split_depends_on_the_seed_alone(table):
    first, again, other = (prepare(table, seed=seed) for seed in (2**64 - 1, 2**64 - 1, 5))
    np.testing.assert_array_equal(first.test.inputs, again.test.inputs)
    assert not np.array_equal(first.test.inputs, other.test.inputs)
    assert first.fingerprint == other.fingerprint == table.fingerprint


def test_the_split_of_a_seed_never_changes():
    numbers = np.arange(10.0)
    data = prepare(regression_table(numbers[:, None], numbers), seed=0, standardise=False)
    assert data.train.targets.tolist() == [4, 6, 2, 7, 3, 5, 9]
    assert data.validation.targets.tolist() == [0]
    assert data.test.targets.tolist() == [8, 1]


def test_only_training_statistics_standardise(table):
    data = prepare(table, seed=1)
    raw = prepare(table, seed=1, standardise=False)
    np.testing.assert_allclose(data.train.inputs.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(data.train.inputs.std(0, ddof=0), 1)
    np.testing.assert_allclose(data.train.targets.std(ddof=0), 1)
    mean, std = raw.train.inputs.mean(0), raw.train.inputs.std(0)
    np.testing.assert_allclose(data.test.inputs, (raw.test.inputs - mean) / std)
    np.testing.assert_allclose(
        data.target_mean + data.target_std * data.test.targets, raw.test.targets
    )


def test_without_standardising_the_numbers_are_left_alone(table):
    data = prepare(table, seed=1, standardise=False)
    assert (data.target_mean, data.target_std) == (0.0, 1.0)
    assert set(data.test.targets) <= set(table.targets)


@pytest.mark.parametrize("value", [0.998, 288.0, 0.0, 1e300, -1e-300])
def test_a_constant_feature_column_becomes_zero_never_nan(value):
    random = np.random.default_rng(0)
    inputs = np.stack([np.full(1000, value), random.normal(size=1000)], axis=1)
    data = prepare(regression_table(inputs, random.normal(size=1000)), seed=0)
    for part in (data.train, data.validation, data.test):
        assert (part.inputs[:, 0] == 0).all()
        assert np.isfinite(part.inputs).all()


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_very_small_and_very_large_columns_are_standardised(scale):
    column = np.random.default_rng(0).normal(size=(100, 1))
    mean, std = training_statistics(column * scale)
    np.testing.assert_allclose(std / scale, column.std(0, ddof=0))
    np.testing.assert_allclose(mean / scale, column.mean(0))


def test_a_constant_target_is_an_error_that_names_the_column():
    table = regression_table(np.arange(20.0)[:, None], np.full(20, 3.5))
    with pytest.raises(
        DataError, match=r"^made.csv: column 'price': its variance is zero"
    ) as error:
        prepare(table, seed=0)
    assert "3.5" in str(error.value)


def test_a_target_that_is_constant_in_the_training_rows_is_an_error():
    table = regression_table(np.arange(20.0)[:, None], np.r_[1.0, np.zeros(19)])
    seed = next(s for s in range(50) if _first_row_is_not_trained_on(s))
    with pytest.raises(DataError, match="its variance is zero in the 14 training rows"):
        prepare(table, seed=seed)


def _first_row_is_not_trained_on(seed):
    numbers = np.arange(20.0)
    data = prepare(regression_table(numbers[:, None], numbers), seed=seed, standardise=False)
    return 0.0 not in data.train.targets


@pytest.mark.parametrize("rows", [2, 3, 6])
def test_too_few_rows_are_an_error(rows):
    numbers = np.arange(float(rows))
    with pytest.raises(DataError, match=rf"made.csv: {rows} rows are too few for a 0.7/0.15/0.15"):
        prepare(regression_table(numbers[:, None], numbers), seed=0)


def test_seven_rows_are_enough():
    numbers = np.arange(7.0)
    data = prepare(regression_table(numbers[:, None], numbers), seed=0)
    assert (len(data.train), len(data.validation), len(data.test)) == (4, 1, 2)


class TestClasses:
    def test_targets_are_class_indices_and_are_not_standardised(self):
        data = prepare(classification_table([0, 1, 2] * 10, ("a", "b", "c")), seed=0)
        assert data.num_classes == 3
        assert data.train.targets.dtype == np.int64
        assert set(data.train.targets) == {0, 1, 2}
        assert (data.target_mean, data.target_std) == (0.0, 1.0)

    def test_a_class_may_be_absent_from_the_test_part(self):
        table = classification_table([0, 1] * 20 + [2], ("a", "b", "rare"))
        seeds = [s for s in range(60) if _trains_on(table, s)]
        data = prepare(table, seed=seeds[0])
        assert data.num_classes == 3
        assert 2 not in data.test.targets

    def test_a_class_without_a_training_row_is_an_error_that_counts_its_rows(self):
        table = classification_table([0, 1] * 20 + [2], ("a", "b", "rare"))
        seed = next(s for s in range(60) if not _trains_on(table, s))
        with pytest.raises(DataError, match=r"^pets.csv: class 'rare' has only 1 row, and none"):
            prepare(table, seed=seed)

    def test_held_out_classes_become_the_ood_set_and_the_rest_is_renumbered(self):
        table = classification_table([0, 1, 2, 3] * 10, ("0", "2", "5", "7"))
        data = prepare(table, seed=0, held_out_classes=[2, "7"], standardise=False)
        assert data.class_names == ("0", "5")
        assert data.num_classes == 2
        held_out = table.inputs[np.isin(table.targets, [1, 3])]
        np.testing.assert_array_equal(data.ood["held-out"], held_out)
        labels = {tuple(row): label for row, label in zip(table.inputs, table.targets, strict=True)}
        for part in (data.train, data.validation, data.test):
            for row, target in zip(part.inputs, part.targets, strict=True):
                assert labels[tuple(row)] == {0: 0, 1: 2}[target]
        assert len(data.train) + len(data.validation) + len(data.test) == 20

    def test_the_ood_set_is_standardised_with_training_statistics(self):
        table = classification_table([0, 1, 2] * 10, ("a", "b", "c"))
        data = prepare(table, seed=0, held_out_classes=["c"])
        raw = prepare(table, seed=0, held_out_classes=["c"], standardise=False)
        mean, std = raw.train.inputs.mean(0), raw.train.inputs.std(0)
        np.testing.assert_allclose(data.ood["held-out"], (raw.ood["held-out"] - mean) / std)

    def test_a_held_out_class_that_does_not_exist_is_an_error(self):
        table = classification_table([0, 1, 2] * 10, ("a", "b", "c"))
        with pytest.raises(UsageError, match=r"no class 'z' \(its classes: a, b, c\)"):
            prepare(table, seed=0, held_out_classes=["a", "z"])

    def test_two_classes_must_remain(self):
        table = classification_table([0, 1, 2] * 10, ("a", "b", "c"))
        with pytest.raises(UsageError, match="leaves fewer than two"):
            prepare(table, seed=0, held_out_classes=["a", "b"])


def _trains_on(table, seed):
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(table))
    return len(table) - 1 in order[: int(0.7 * len(table))]

"""Random splits of a table, standardised with the statistics of the training part alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from uqbench.datasets.arrays import Arrays, PreparedData, Table
from uqbench.errors import DataError, UsageError
from uqbench.method import Task


def prepare(
    table: Table,
    *,
    split: tuple[float, float, float] = (0.70, 0.15, 0.15),
    seed: int,
    standardise: bool = True,
    held_out_classes: Sequence[int | str] = (),
) -> PreparedData:
    """Split a table at random into training, test and validation parts.

    split: fractions (training, test, validation). Of n shuffled rows the first int(n * training)
    are for training, the next int(n * validation) for validation, and the rest for the test.
    standardise: inputs, and the targets of a regression, become (value - mean) / std with the mean
    and population standard deviation of the training part; a column that is constant there is
    shifted only (std 1).
    held_out_classes: original labels whose rows become the OoD set ``held-out``; the remaining
    classes are numbered 0..C-1 in their old order.

    Raises DataError where a part would be empty, the training targets are constant, or a class has
    no training row; UsageError for a held-out class that does not exist.
    """
    kept, inputs, targets, class_names = _without_held_out(table, held_out_classes)
    ood = {"held-out": table.inputs[~kept]} if held_out_classes else {}
    train, validation, test = _parts(table.place, len(targets), split, seed)

    target_mean, target_std = 0.0, 1.0
    if table.task is Task.CLASSIFICATION:
        _require_every_class(table.place, targets, train, class_names)
    else:
        require_varying(table.place, table.target_name, targets)
        part = f" in the {len(train)} training rows"
        require_varying(table.place, table.target_name, targets[train], part)
    if standardise:
        mean, std = training_statistics(inputs[train])
        inputs = _standardised(table, inputs, mean, std)
        ood = {name: _standardised(table, rows, mean, std) for name, rows in ood.items()}
        if table.task is Task.REGRESSION:
            column_mean, column_std = training_statistics(targets[train, None])
            target_mean, target_std = float(column_mean[0]), float(column_std[0])
            targets = (targets - target_mean) / target_std

    return PreparedData(
        task=table.task,
        train=Arrays(inputs[train], targets[train]),
        validation=Arrays(inputs[validation], targets[validation]),
        test=Arrays(inputs[test], targets[test]),
        ood=ood,
        class_names=class_names,
        num_classes=len(class_names) or None,
        target_mean=target_mean,
        target_std=target_std,
        feature_names=table.feature_names,
        fingerprint=table.fingerprint,
    )


def training_statistics(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population standard deviation (ddof 0) of each column of (n, d).

    A constant column has its own value for a mean and 1 for a standard deviation: its computed
    deviation is rounding error (0.998 repeated: 1e-16), and dividing by that would blow it up.
    """
    low, high = columns.min(0), columns.max(0)
    constant = low == high
    mean = np.where(constant, low, columns.mean(0))
    centred = columns - mean
    # scaled, so that squares of very large or very small values stay finite and non-zero
    scale = np.where(constant, 1.0, np.abs(centred).max(0))
    std = scale * np.sqrt(np.mean((centred / scale) ** 2, axis=0))
    return mean, np.where(constant, 1.0, std)


def require_varying(place: str, column: str, values: np.ndarray, part: str = "") -> None:
    """Raise a DataError if a regression target is constant."""
    if values.min() == values.max():
        raise DataError(
            f"{place}: column '{column}': its variance is zero{part} (every value is "
            f"{values[0]:g}); there is nothing to predict"
        )


def _standardised(
    table: Table, inputs: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> np.ndarray:
    result = (inputs - mean) / std
    finite = np.isfinite(result).all(0)
    if not finite.all():
        column = table.feature_names[int(np.argmin(finite))]
        raise DataError(f"{table.place}: column '{column}': its values are too far apart to scale")
    return result


def _without_held_out(
    table: Table, held_out: Sequence[int | str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return the mask of kept rows (N,), their inputs, re-numbered targets, and classes."""
    kept = np.ones(len(table), dtype=bool)
    if not held_out:
        return kept, table.inputs, table.targets, table.class_names
    labels = [str(label) for label in held_out]
    for label in labels:
        if label not in table.class_names:
            known = ", ".join(table.class_names) or "none, it is a regression table"
            raise UsageError(
                f"held_out_classes: {table.place} has no class '{label}' (its classes: {known})"
            )
    classes = [i for i, name in enumerate(table.class_names) if name not in labels]
    if len(classes) < 2:
        raise UsageError(
            f"held_out_classes: {table.place} has {len(table.class_names)} classes; holding out "
            f"{', '.join(labels)} leaves fewer than two"
        )
    kept = np.isin(table.targets, classes)
    targets = np.searchsorted(classes, table.targets[kept])
    return kept, table.inputs[kept], targets, tuple(table.class_names[i] for i in classes)


def _parts(
    place: str, rows: int, split: tuple[float, float, float], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row numbers of the training, validation and test parts."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(rows)
    parts = np.split(order, _ends(rows, split))
    for name, part in zip(("training", "validation", "test"), parts, strict=True):
        if not len(part):
            fractions = "/".join(f"{fraction:g}" for fraction in split)
            raise DataError(
                f"{place}: {rows} rows are too few for a {fractions} split: "
                f"the {name} part would be empty; add rows ({_least_rows(split)} are the least)"
            )
    return tuple(parts)


def _ends(rows: int, split: tuple[float, float, float]) -> tuple[int, int]:
    """Where the training and the validation part of shuffled rows end."""
    train, _, validation = split
    end_train = int(rows * train)
    return end_train, end_train + int(rows * validation)


def _least_rows(split: tuple[float, float, float]) -> int:
    """The fewest rows of which each of the three parts gets one."""
    for rows in count(3):
        end_train, end_validation = _ends(rows, split)
        if 0 < end_train < end_validation < rows:
            return rows


def _require_every_class(
    place: str, targets: np.ndarray, train: np.ndarray, class_names: tuple[str, ...]
) -> None:
    counts = np.bincount(targets, minlength=len(class_names))
    in_training = np.bincount(targets[train], minlength=len(class_names))
    if in_training.all():
        return
    absent = int(np.argmin(in_training))
    rows = "row" if counts[absent] == 1 else "rows"
    raise DataError(
        f"{place}: class '{class_names[absent]}' has only {counts[absent]} {rows}, and none of "
        "them fell into the training part; merge or drop the class, or add rows"
    )

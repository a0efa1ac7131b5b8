"""Tables that come with scikit-learn: ``diabetes`` and ``digits``."""

from __future__ import annotations

import numpy as np

from uqbench.datasets.arrays import Table
from uqbench.method import Task


def load_diabetes() -> Table:
    """Disease progression of 442 patients from 10 measurements, in their original units."""
    from sklearn.datasets import load_diabetes as read

    bunch = read(scaled=False)
    return Table(
        name="sklearn/diabetes",
        inputs=np.ascontiguousarray(bunch.data, dtype=np.float64),
        targets=np.ascontiguousarray(bunch.target, dtype=np.float64),
        feature_names=tuple(bunch.feature_names),
        target_name="progression",
        task=Task.REGRESSION,
    )


def load_digits() -> Table:
    """1,797 images of 8 x 8 pixels as 64 features in [0, 1]; classes 0..9."""
    from sklearn.datasets import load_digits as read

    bunch = read()
    return Table(
        name="sklearn/digits",
        inputs=np.ascontiguousarray(bunch.data / 16, dtype=np.float64),
        targets=np.ascontiguousarray(bunch.target, dtype=np.int64),
        feature_names=tuple(bunch.feature_names),
        target_name="digit",
        task=Task.CLASSIFICATION,
        class_names=tuple(str(name) for name in bunch.target_names),
    )

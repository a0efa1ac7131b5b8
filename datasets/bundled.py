"""Data that needs no download: scikit-learn's ``diabetes`` and ``digits``, and a toy problem."""

from __future__ import annotations

import numpy as np

from uqbench.datasets.arrays import Arrays, PreparedData, Table, fingerprint
from uqbench.method import Task

TOY_TRAINING_POINTS = 20
TOY_TEST_POINTS = 200
TOY_NOISE_STD = 3.0
TOY_DOMAIN = (-6.0, 6.0)


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


def cubic(x: np.ndarray) -> np.ndarray:
    """The toy problem's function, without noise."""
    return x**3


def toy_cubic(seed: int) -> PreparedData:
    """Figure 1 of the NUQLS paper: y = x^3 + N(0, 3^2), as it is (not standardised).

    20 training and 20 validation points with x uniform on [-4, -2] u [2, 4]; 200 test points with
    x uniform on [-6, 6]. All are drawn anew for each seed.
    """
    random = np.random.Generator(np.random.PCG64(seed))

    def two_sided(points: int) -> np.ndarray:
        return random.uniform(2, 4, points) * random.choice([-1.0, 1.0], points)

    def noisy_cubes(x: np.ndarray) -> Arrays:
        return Arrays(x[:, None], cubic(x) + TOY_NOISE_STD * random.standard_normal(len(x)))

    train = noisy_cubes(two_sided(TOY_TRAINING_POINTS))
    validation = noisy_cubes(two_sided(TOY_TRAINING_POINTS))
    test = noisy_cubes(random.uniform(*TOY_DOMAIN, TOY_TEST_POINTS))
    parts = [array for part in (train, validation, test) for array in (part.inputs, part.targets)]
    return PreparedData(
        task=Task.REGRESSION,
        train=train,
        validation=validation,
        test=test,
        feature_names=("x",),
        fingerprint=fingerprint(*parts),
    )

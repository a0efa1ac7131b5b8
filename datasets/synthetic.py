"""Data drawn anew for each seed, as it is (not standardised): a toy problem, sines, Gaussians."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from uqbench.datasets.arrays import Arrays, PreparedData, fingerprint
from uqbench.method import Task

TOY_TRAINING_POINTS = 20
TOY_TEST_POINTS = 200
TOY_NOISE_STD = 3.0
TOY_DOMAIN = (-6.0, 6.0)

SINES_NOISE_STD = 0.001
SINES_VALIDATION_POINTS = 256

GAUSSIAN_POINTS = 100
GAUSSIAN_FEATURES = 5


def cubic(x: np.ndarray) -> np.ndarray:
    """The toy problem's function, without noise."""
    return x**3


def toy_cubic(seed: int) -> PreparedData:
    """Figure 1 of the NUQLS paper: y = x^3 + N(0, 3^2).

    20 training and 20 validation points with x uniform on [-4, -2] u [2, 4]; 200 test points with
    x uniform on [-6, 6].
    """
    random = _generator(seed)

    def two_sided(points: int) -> np.ndarray:
        return random.uniform(2, 4, points) * random.choice([-1.0, 1.0], points)

    def noisy_cubes(x: np.ndarray) -> Arrays:
        return Arrays(x[:, None], cubic(x) + TOY_NOISE_STD * random.standard_normal(len(x)))

    train = noisy_cubes(two_sided(TOY_TRAINING_POINTS))
    validation = noisy_cubes(two_sided(TOY_TRAINING_POINTS))
    test = noisy_cubes(random.uniform(*TOY_DOMAIN, TOY_TEST_POINTS))
    return _regression(train, validation, test)


def sines(features: int, points: int, seed: int) -> PreparedData:
    """The confidence-interval problem of Huang et al. (2023): y = Σ_i sin x_i + N(0, 0.001^2).

    ``points`` training points with x uniform on [0, 0.2]^d and at most 256 validation points, drawn
    likewise. The one test point is x = (0.1, ..., 0.1), without noise: the interval is one for the
    function. The noise and the validation points are those of the NUQLS authors' code.
    """
    random = _generator(seed)

    def noisy(count: int) -> Arrays:
        x = random.uniform(0, 0.2, (count, features))
        return Arrays(x, np.sin(x).sum(1) + SINES_NOISE_STD * random.standard_normal(count))

    train, validation = noisy(points), noisy(min(points, SINES_VALIDATION_POINTS))
    middle = np.full((1, features), 0.1)
    return _regression(train, validation, Arrays(middle, np.sin(middle).sum(1)))


def gaussian(seed: int) -> PreparedData:
    """Figure 2 of the NUQLS paper: 100 inputs from N(0, I_5) in each part, targets from N(0, 1)."""
    random = _generator(seed)

    def drawn() -> Arrays:
        inputs = random.standard_normal((GAUSSIAN_POINTS, GAUSSIAN_FEATURES))
        return Arrays(inputs, random.standard_normal(GAUSSIAN_POINTS))

    return _regression(drawn(), drawn(), drawn())


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def _regression(train: Arrays, validation: Arrays, test: Arrays) -> PreparedData:
    features = train.inputs.shape[1]
    parts = [array for part in (train, validation, test) for array in (part.inputs, part.targets)]
    return PreparedData(
        task=Task.REGRESSION,
        train=train,
        validation=validation,
        test=test,
        feature_names=("x",) if features == 1 else tuple(f"x{i}" for i in range(features)),
        fingerprint=fingerprint(*parts),
    )


@dataclass(frozen=True)
class Synthetic:
    """A data set of regression. draw: seed -> data. rows: of all parts together."""

    draw: Callable[[int], PreparedData]
    rows: int
    features: int


def _sines(features: int, points: int) -> Synthetic:
    rows = points + min(points, SINES_VALIDATION_POINTS) + 1
    return Synthetic(partial(sines, features, points), rows, features)


SETS: Mapping[str, Synthetic] = {
    "toy/cubic": Synthetic(toy_cubic, 2 * TOY_TRAINING_POINTS + TOY_TEST_POINTS, 1),
    "synthetic/gaussian": Synthetic(gaussian, 3 * GAUSSIAN_POINTS, GAUSSIAN_FEATURES),
    **{
        f"synthetic/sines-d{features}-n{points}": _sines(features, points)
        for features, points in ((2, 128), (4, 256), (8, 512), (16, 128))
    },
}

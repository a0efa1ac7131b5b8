"""Which methods are equally good: the corrected resampled t-test, with Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr


def corrected_resampled_t_test(differences: ArrayLike, test_train_ratio: float) -> float:
    """Return the two-sided p value of the hypothesis that the mean difference is 0.

    t = mean / √((1/J + n_test/n_train)·s²), with J − 1 degrees of freedom and s² the unbiased
    variance of the J differences (Nadeau & Bengio 2003). The second term accounts for the overlap
    of the training splits of different seeds, which the ordinary t-test ignores.

    differences: (J,), of one metric between two methods on the same seeds. test_train_ratio:
    n_test/n_train, 0 for independent samples. Range [0, 1].
    Differences that are all equal give 1 if they are 0, else 0. Fewer than two, or one that is not
    finite: NaN. ValueError: another shape, or a ratio that is negative or not finite.
    """
    differences = np.asarray(differences, dtype=np.float64)
    if differences.ndim != 1:
        raise ValueError(f"differences must have shape (J,), got {differences.shape}")
    if not 0 <= test_train_ratio < math.inf:
        raise ValueError(f"test_train_ratio must be 0 or more and finite, got {test_train_ratio}")
    repeats = len(differences)
    if repeats < 2 or not np.isfinite(differences).all():
        return math.nan
    if (differences == differences[0]).all():  # the variance of equal numbers may round above 0
        return 1.0 if differences[0] == 0 else 0.0
    standard_error = math.sqrt((1 / repeats + test_train_ratio) * differences.var(ddof=1))
    return float(2 * stdtr(repeats - 1, -abs(differences.mean()) / standard_error))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p values adjusted for their number by Holm's step-down method (Holm 1979).

    p_values: (m,). The k-th smallest is multiplied by m − k + 1, made monotone and capped at 1.
    NaN stays NaN and does not count in m.
    """
    adjusted = np.array(p_values, dtype=np.float64)
    order = np.argsort(adjusted)[: np.count_nonzero(~np.isnan(adjusted))]  # NaN sorts last
    multiplied = adjusted[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(multiplied), 1)
    return adjusted


def equal_best(
    values: Mapping[str, Sequence[float]],
    better: Literal["lower", "higher"],
    test_train_ratio: float,
    level: float = 0.05,
) -> set[str]:
    """Return the method of the best mean and those not significantly different from it.

    values: name -> one metric per seed; the same seeds in the same order for every name. Each
    method is compared with the best by :func:`corrected_resampled_t_test`; p values are adjusted by
    :func:`holm` over the methods compared, and those above ``level`` count as equal.

    With one seed nothing can be tested: the best alone is returned, and what equals it exactly.
    A method with a value that is not finite is never among the best; if all have one, nobody is.
    ValueError: sequences of different lengths, or another ``better``.
    """
    if better not in ("lower", "higher"):
        raise ValueError(f"better must be 'lower' or 'higher', got {better!r}")
    lengths = {name: len(seeds) for name, seeds in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"values must be paired by seed, got different numbers: {lengths}")
    arrays = {name: np.asarray(seeds, dtype=np.float64) for name, seeds in values.items()}
    arrays = {
        name: array for name, array in arrays.items() if array.size and np.isfinite(array).all()
    }
    if not arrays:
        return set()
    sign = 1 if better == "lower" else -1
    best = min(arrays, key=lambda name: sign * arrays[name].mean())
    others = [name for name in arrays if name != best]
    equal = {name for name in others if np.array_equal(arrays[name], arrays[best])}
    if others and len(arrays[best]) > 1:
        adjusted = holm(
            [corrected_resampled_t_test(arrays[n] - arrays[best], test_train_ratio) for n in others]
        )
        equal = {name for name, p_value in zip(others, adjusted, strict=True) if p_value > level}
    return {best, *equal}

"""VMSP: the variance of the predicted class's probability over members (the paper's Appendix C).

With ĉ the argmax of the mean probabilities, VMSP(x) is the unbiased variance over members of the
probability of class ĉ. It is compared between three groups of points: ID correct, ID incorrect and
OoD. Good: ID correct has a low median and a positive skew (a mass near 0, a tail of doubtful
points); the other two have high medians and negative skews.

Groups are arrays (n,) or (n, 1). None (no variance exists: fewer than two members) gives NaN for
every number; so does a NaN in the group, whose count remains. An empty group has count 0 and NaN
for the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from uqbench.metrics._arrays import Floats, probability_matrix, variance_matrix, vector
from uqbench.metrics.detection import auroc

_NAN = float("nan")


def vmsp(probabilities: ArrayLike, variance: ArrayLike | None) -> Floats:
    """Return the VMSP of each point, (N,), in squared probability, [0, ½].

    probabilities: (N, C), the members' mean; a tie goes to the first class. variance: (N, C),
    unbiased, over members; None for fewer than two members, and then every value is NaN. A point
    with a NaN among its probabilities gets NaN.
    ValueError: shapes that differ, a negative variance, or a probability outside [0, 1].
    """
    probabilities = probability_matrix(probabilities)
    if variance is None:
        return np.full(len(probabilities), np.nan)
    variance = variance_matrix(variance, "variance")
    if variance.shape != probabilities.shape:
        raise ValueError(
            f"probabilities has shape {probabilities.shape} and variance has shape "
            f"{variance.shape}; they must be equal"
        )
    predicted = probabilities.argmax(-1)
    values = np.take_along_axis(variance, predicted[:, None], axis=1)[:, 0]
    return np.where(np.isnan(probabilities).any(-1), np.nan, values)


def skew(values: ArrayLike | None) -> float:
    """Fisher–Pearson coefficient of skewness g1 = m3/m2^(3/2), m_k the biased central moments.

    The same as scipy's default. Range (−∞, ∞). NaN for None, no values, a value that is not finite,
    or values that are constant to within rounding.
    ValueError: a shape other than (n,) or (n, 1).
    """
    values = _group(values)
    if values is None or not values.size or not np.isfinite(values).all():
        return _NAN
    deviations = values - values.mean()
    spread = np.abs(deviations).max()
    if spread <= 4 * np.finfo(np.float64).eps * np.abs(values).max():
        return _NAN
    deviations /= spread  # the cube of a VMSP near 1e-110 would underflow
    return float(np.mean(deviations**3) / np.mean(deviations**2) ** 1.5)


def vmsp_summary(values: ArrayLike | None) -> dict[str, float]:
    """Return median, skew, quartiles q25 and q75 (linear interpolation), and count of one group.

    The median of an even number of values is the mean of the two in the middle. The paper's tables
    hold the lower of the two, as torch.median does, which shows in three of their entries.
    """
    group = _group(values)
    if group is None:
        return dict.fromkeys(("median", "skew", "q25", "q75", "count"), _NAN)
    undefined = not group.size or np.isnan(group).any()
    q25, q75 = (_NAN, _NAN) if undefined else np.quantile(group, [0.25, 0.75])
    return {
        "median": _NAN if undefined else float(np.median(group)),
        "skew": skew(group),
        "q25": float(q25),
        "q75": float(q75),
        "count": float(group.size),
    }


def vmsp_auc_error(id_correct: ArrayLike | None, id_incorrect: ArrayLike | None) -> float:
    """AUROC of VMSP, ID incorrect against ID correct (positive: incorrect).

    Range [0, 1]; higher is better.
    """
    if id_correct is None or id_incorrect is None:
        return _NAN
    return auroc(id_incorrect, id_correct)


def vmsp_auc_ood(id_correct: ArrayLike | None, ood: ArrayLike | None) -> float:
    """AUROC of VMSP, OoD against ID correct (positive: OoD). Range [0, 1]; higher is better."""
    if id_correct is None or ood is None:
        return _NAN
    return auroc(ood, id_correct)


def vmsp_metrics(
    id_correct: ArrayLike | None = None, id_incorrect: ArrayLike | None = None
) -> dict[str, float]:
    """Return the VMSP metrics of the two ID groups by name, ``vmsp_auc_error`` among them."""
    return {
        **_named("id_correct", id_correct),
        **_named("id_incorrect", id_incorrect),
        "vmsp_auc_error": vmsp_auc_error(id_correct, id_incorrect),
    }


def vmsp_ood_metrics(
    id_correct: ArrayLike | None = None, ood: ArrayLike | None = None
) -> dict[str, float]:
    """Return the VMSP metrics of one OoD set by name, ``vmsp_auc_ood`` among them."""
    return {**_named("ood", ood), "vmsp_auc_ood": vmsp_auc_ood(id_correct, ood)}


def _named(group: str, values: ArrayLike | None) -> dict[str, float]:
    return {f"vmsp_{group}_{key}": value for key, value in vmsp_summary(values).items()}


def _group(values: ArrayLike | None) -> Floats | None:
    return None if values is None else vector(values, "group")

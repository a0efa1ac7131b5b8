"""Metrics of a Gaussian predictive distribution N(μ_i, σ_i²) for targets y_i.

Every function takes ``targets`` y, ``mean`` μ and ``variance`` σ², each (n,) or (n, 1), on one
scale (the benchmark's: standardised targets), computes in float64 and returns one number.

- No points, or a NaN anywhere in the inputs: NaN.
- Zero variance is the limit σ → 0: the predictive becomes a point mass at μ, whose central
  intervals are μ itself: they cover y = μ at every level above 0, and nothing else below level 1.
- ValueError: shapes that differ (nothing is broadcast), or a negative variance.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, ndtri

from uqbench.metrics._arrays import Floats, average, non_negative, vectors

ECE_LEVELS = np.arange(11) / 10
"""The levels of :func:`ece`: 0, 0.1, ..., 1."""
MACE_LEVELS = (np.arange(100) + 0.5) / 100
"""The levels of :func:`mace`: the midpoints 0.005, 0.015, ..., 0.995."""

_Z95, _Z90 = float(ndtri(0.975)), float(ndtri(0.95))
_NAN = float("nan")


def rmse(targets: ArrayLike, mean: ArrayLike) -> float:
    """Root mean squared error, √(mean (y − μ)²).

    Range [0, ∞), in the units of the targets; lower is better.
    """
    targets, mean = vectors(targets=targets, mean=mean)
    return math.sqrt(average((targets - mean) ** 2))


def nll(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Gaussian negative log-likelihood, mean of ½ log(2πσ²) + (y − μ)²/2σ².

    Range [−∞, ∞], in nats per point; lower is better. The constant ½ log 2π = 0.9189 is included
    (the paper's tables leave it out).

    Zero variance: +∞ if any such point has y ≠ μ, otherwise −∞ if any has y = μ.
    """
    error, sigma = _errors(targets, mean, variance)
    # inf − inf has no value of its own: (y − μ)²/2σ² outgrows |log σ|, in a point and in the mean
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        values = 0.5 * math.log(2 * math.pi) + np.log(sigma) + 0.5 * _ratio(error, sigma) ** 2
    values[(sigma == 0) & (np.abs(error) > 0)] = math.inf
    if np.isposinf(values).any() and not np.isnan(values).any():
        return math.inf
    return average(values)


def coverage(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike, levels: ArrayLike) -> Floats:
    """Observed coverage of the central intervals: the share of points with |y − μ| < zσ.

    z = Φ⁻¹((1 + level)/2). The inequality is strict, as in the authors' code: coverage is 0 at
    level 0, and 1 at level 1, where z = ∞. Returns (L,) for levels (L,) in [0, 1]; each value is in
    [0, 1] and is best when it equals its level.

    ValueError: also for a level outside [0, 1].
    """
    (levels,) = vectors(levels=levels)
    if not ((levels >= 0) & (levels <= 1)).all():
        raise ValueError(f"levels must lie in [0, 1], got {levels}")
    error, sigma = _errors(targets, mean, variance)
    if not error.size or np.isnan(error).any() or np.isnan(sigma).any():
        return np.full(levels.shape, np.nan)
    error = np.abs(error)
    exact = (error == 0) & (sigma == 0)
    observed = levels.copy()  # right at 0 and 1, where z·σ may be 0·∞
    for index, level in enumerate(levels):
        if 0 < level < 1:
            observed[index] = np.mean((error < ndtri((1 + level) / 2) * sigma) | exact)
    return observed


def ece(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Expected calibration error: mean over the 11 levels p = 0, 0.1, ..., 1 of (observed − p)².

    ``observed`` is :func:`coverage` at p. Range [0, 2.85/11 = 0.2591], squared fractions; lower is
    better. The definition is that of the authors of NUQLS (Wilson et al., arXiv 2502.02870).
    """
    observed = coverage(targets, mean, variance, ECE_LEVELS)
    return average((observed - ECE_LEVELS) ** 2)


def mace(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Mean absolute calibration error: mean over 100 levels p of |observed − p|.

    ``observed`` is :func:`coverage` at p. The levels are the midpoints 0.005, 0.015, ..., 0.995, so
    that the mean is the midpoint rule for the area between the calibration curve and the diagonal
    (Kuleshov et al. 2018); the levels 0 and 1, where the error is always 0, are not counted.
    Range [0, 0.5]; lower is better.
    """
    observed = coverage(targets, mean, variance, MACE_LEVELS)
    return average(np.abs(observed - MACE_LEVELS))


def crps(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Continuous ranked probability score, mean of ∫(F(x) − 1[x ≥ y])² dx, in closed form.

    For a Gaussian: σ[ω(2Φ(ω) − 1) + 2φ(ω) − 1/√π], ω = (y − μ)/σ (Gneiting & Raftery 2007, eq. 21).
    Range [0, ∞), in the units of the targets; lower is better. Zero variance: |y − μ|.
    """
    error, sigma = _errors(targets, mean, variance)
    omega = _ratio(error, sigma)
    with np.errstate(over="ignore"):
        twice_density = math.sqrt(2 / math.pi) * np.exp(-0.5 * omega**2)
    score = error * erf(omega / math.sqrt(2)) + sigma * (twice_density - 1 / math.sqrt(math.pi))
    return average(score)


def sharpness(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Mean predictive standard deviation, mean σ.

    Range [0, ∞), in the units of the targets. Smaller is sharper, which is better only between
    methods that are equally calibrated. Of ``targets`` and ``mean`` only shapes and NaN matter.
    """
    error, sigma = _errors(targets, mean, variance)
    return _NAN if np.isnan(error).any() else average(sigma)


def coverage95(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Observed coverage of the central 95% interval: the share of points with |y − μ| < 1.96σ.

    Range [0, 1]; the closer to 0.95, the better.
    """
    return float(coverage(targets, mean, variance, [0.95])[0])


def width95(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Mean width of the central 95% interval, mean of 2·1.96σ.

    Range [0, ∞), in the units of the targets; narrower is better only at equal coverage.
    """
    return 2 * _Z95 * sharpness(targets, mean, variance)


def coverage90(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Observed coverage of the central 90% interval: the share of points with |y − μ| < 1.645σ.

    Range [0, 1]; the closer to 0.9, the better.
    """
    return float(coverage(targets, mean, variance, [0.9])[0])


def width90(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Mean width of the central 90% interval, mean of 2·1.645σ.

    Range [0, ∞), in the units of the targets; narrower is better only at equal coverage.
    """
    return 2 * _Z90 * sharpness(targets, mean, variance)


def interval_score(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Interval score of the central 95% interval [l, u] (α = 0.05).

    Mean of (u − l) + (2/α)(l − y)·1[y < l] + (2/α)(y − u)·1[y > u] (Gneiting & Raftery 2007,
    eq. 43). Range [0, ∞), in the units of the targets; lower is better. Zero variance: 40|y − μ|.
    """
    error, sigma = _errors(targets, mean, variance)
    half_width = _Z95 * sigma
    with np.errstate(invalid="ignore"):  # an infinite error and an infinite width: NaN
        outside = np.maximum(np.abs(error) - half_width, 0)
    return average(2 * half_width + (2 / 0.05) * outside)


def mean_prediction(targets: ArrayLike, mean: ArrayLike) -> float:
    """The mean of μ, which of a single test point is its prediction, in the units of the targets.

    Of ``targets`` only the shape and NaN matter.
    """
    targets, mean = vectors(targets=targets, mean=mean)
    return _NAN if np.isnan(targets).any() else average(mean)


def regression_metrics(
    targets: ArrayLike, mean: ArrayLike, variance: ArrayLike, target_std: float
) -> dict[str, float]:
    """Return every regression metric by name.

    ``target_std``: the standard deviation that the targets were divided by, so that
    ``rmse_raw`` = rmse × target_std is in the data's own units.
    """
    arrays = vectors(targets=targets, mean=mean, variance=variance)
    root_mean_squared_error = rmse(*arrays[:2])
    return {
        "rmse": root_mean_squared_error,
        "rmse_raw": root_mean_squared_error * float(target_std),
        "nll": nll(*arrays),
        "ece": ece(*arrays),
        "mace": mace(*arrays),
        "crps": crps(*arrays),
        "sharpness": sharpness(*arrays),
        "coverage95": coverage95(*arrays),
        "width95": width95(*arrays),
        "coverage90": coverage90(*arrays),
        "width90": width90(*arrays),
        "interval_score": interval_score(*arrays),
        "mean_prediction": mean_prediction(*arrays[:2]),
    }


def scale_minimising_ece(
    targets: ArrayLike, mean: ArrayLike, variance: ArrayLike
) -> tuple[float, float]:
    """Return the scale s > 0 for which variance s²σ² has the smallest ECE, and that ECE.

    The coverage at level p counts the points with s > |y − μ|/(σz_p), so ECE(s) is a step
    function whose breakpoints are those values at the nine inner levels (levels 0 and 1 never
    contribute). One sort of the breakpoints gives its value on every interval between them, in
    integers, hence the exact global minimum: O(n log n) time, O(n) memory.

    Among the intervals that attain the minimum, the one whose geometric midpoint has the best
    Gaussian NLL wins; the midpoint is returned (half the first breakpoint and twice the last, for
    the unbounded intervals). Breakpoints closer than 16 units of relative rounding are one: no
    double between them could be told apart. Points with σ = 0 and points with y = μ count, though
    no scale changes their coverage; where nothing else is left every scale is as good, and s is 1.
    No points, or NaN: (NaN, NaN).
    """
    error, sigma = _errors(targets, mean, variance)
    ratio = _ratio(np.abs(error), sigma)
    count = len(ratio)
    if not count or np.isnan(ratio).any():
        return _NAN, _NAN
    changing = np.sort(ratio[(ratio > 0) & np.isfinite(ratio)])
    scale = 1.0
    if changing.size:
        scales = _scales_of_least_ece(changing, np.count_nonzero(ratio == 0), count)
        # over the points with σ > 0, NLL = log s + mean(ratio²)/2s² + a constant
        root_mean_square = np.linalg.norm(changing) / math.sqrt(np.count_nonzero(sigma))
        with np.errstate(over="ignore"):
            losses = np.log(scales) + 0.5 * (root_mean_square / scales) ** 2
        scale = float(scales[np.argmin(losses)])
    return scale, ece(targets, mean, scale**2 * np.asarray(variance, dtype=np.float64))


def _scales_of_least_ece(ratios: Floats, always_covered: int, count: int) -> Floats:
    """Return the midpoint of each interval of scales on which the ECE is smallest.

    ratios: the sorted |y − μ|/σ of the points whose coverage depends on the scale, finite and
    positive. always_covered: the points with y = μ. count: all points.
    """
    tenths = np.arange(1, 10)  # the inner levels, times 10
    breakpoints = ratios[:, None] / ndtri((1 + tenths / 10) / 2)  # (m, 9)
    # 1100·count²·ECE = Σ_k (10 c_k − k·count)² with c_k points covered at level k/10, in integers.
    # Passing a breakpoint takes c_k to c_k + 1; the ratios are sorted, so its row tells c_k.
    covered = always_covered + np.arange(len(ratios))[:, None]
    steps = 100 * (2 * covered + 1) - 20 * tenths * count
    order = np.argsort(breakpoints, axis=None, kind="stable")
    edges = breakpoints.ravel()[order]
    start = np.sum((10 * always_covered - tenths * count) ** 2)
    objective = start + np.concatenate([[0], np.cumsum(steps.ravel()[order])])  # (9m + 1,)

    lower = np.concatenate([edges[:1] / 4, edges])
    upper = np.concatenate([edges, edges[-1:] * 4])
    attainable = upper > lower * (1 + 16 * np.finfo(np.float64).eps)
    best = attainable & (objective == objective[attainable].min())
    return np.sqrt(lower[best]) * np.sqrt(upper[best])


def _errors(targets: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> tuple[Floats, Floats]:
    """Return y − μ and σ, (n,) each."""
    targets, mean, variance = vectors(targets=targets, mean=mean, variance=variance)
    return targets - mean, np.sqrt(non_negative(variance, "variance"))


def _ratio(error: Floats, sigma: Floats) -> Floats:
    """error/σ with the limits at σ = 0: 0 where the error is 0, else ±∞."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where((error == 0) & (sigma == 0), 0.0, error / sigma)

"""Regression metrics against closed forms, naive loops and numerical integration."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from uqbench.metrics import regression
from uqbench.metrics.regression import (
    coverage,
    coverage90,
    coverage95,
    crps,
    ece,
    interval_score,
    mace,
    mean_prediction,
    nll,
    regression_metrics,
    rmse,
    scale_minimising_ece,
    sharpness,
    width90,
    width95,
)

GAUSSIAN_METRICS = [nll, ece, mace, crps, sharpness, coverage95, width95, coverage90, width90]
GAUSSIAN_METRICS += [interval_score]
NAN = float("nan")


def sample(seed, n=40):
    """Targets, means and variances of an over-confident predictive."""
    generator = np.random.default_rng(seed)
    mean = generator.normal(size=n)
    variance = generator.gamma(2.0, 0.3, size=n)
    targets = mean + 1.5 * np.sqrt(variance) * generator.normal(size=n)
    return targets, mean, variance


def naive_ece(targets, mean, variance, scale=1.0):
    """The definition, point by point: closed form at levels 0 and 1, strict inequality between."""
    total = 0.0
    for tenth in range(11):
        level = tenth / 10
        inside = 0
        quantile = stats.norm.ppf((1 + level) / 2)
        for y, mu, v in zip(targets, mean, variance, strict=True):
            half_width = quantile * scale * math.sqrt(v) if v > 0 else 0.0
            inside += level == 1 or abs(y - mu) < half_width
            inside += v == 0 and y == mu and 0 < level < 1
        total += (inside / len(targets) - level) ** 2
    return total / 11


def brute_force_best_ece(targets, mean, variance, scales):
    """The smallest ECE over scales, by counting; no shared code with the search."""
    ratio = np.abs(targets - mean) / np.sqrt(variance)
    quantiles = stats.norm.ppf((1 + np.arange(1, 10) / 10) / 2)
    covered = (ratio[None, None, :] < np.multiply.outer(scales, quantiles)[:, :, None]).mean(-1)
    return (((covered - np.arange(1, 10) / 10) ** 2).sum(1) / 11).min()


def test_rmse_is_the_root_of_the_mean_squared_error():
    assert rmse([1.0, 2.0, 3.0], [1.0, 4.0, 2.0]) == pytest.approx(math.sqrt(5 / 3), rel=1e-15)


def test_nll_is_the_mean_negative_log_density_with_its_constant():
    targets, mean, variance = sample(0)
    expected = -stats.norm.logpdf(targets, mean, np.sqrt(variance)).mean()
    assert nll(targets, mean, variance) == pytest.approx(expected, rel=1e-13)
    assert nll([0.0], [0.0], [1.0]) == pytest.approx(0.9189385332046727, rel=1e-15)


def test_crps_equals_its_defining_integral():
    targets, mean, variance = sample(1, n=6)

    def integral(y, mu, sigma):
        below, _ = integrate.quad(lambda x: stats.norm.cdf(x, mu, sigma) ** 2, -np.inf, y)
        above, _ = integrate.quad(lambda x: stats.norm.sf(x, mu, sigma) ** 2, y, np.inf)
        return below + above

    expected = np.mean(
        [integral(*point) for point in zip(targets, mean, np.sqrt(variance), strict=True)]
    )
    assert crps(targets, mean, variance) == pytest.approx(expected, rel=1e-7)


def test_crps_far_from_the_mean_is_the_distance_less_a_constant():
    # ω(2Φ(ω) − 1) → ω and φ(ω) → 0
    assert crps([1e6], [0.0], [4.0]) == pytest.approx(1e6 - 2 / math.sqrt(math.pi), rel=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_ece_equals_the_definition_counted_point_by_point(seed):
    arrays = sample(seed)
    assert ece(*arrays) == pytest.approx(naive_ece(*arrays), rel=1e-12)


def test_ece_of_intervals_that_cover_everything_or_nothing_is_its_maximum():
    zeros, ones = np.zeros(7), np.ones(7)
    assert ece(zeros, zeros, ones) == pytest.approx(2.85 / 11, rel=1e-14)
    assert ece(ones, zeros, 1e-12 * ones) == pytest.approx(2.85 / 11, rel=1e-14)


def test_coverage_is_strict_and_is_0_at_level_0_and_1_at_level_1():
    boundary = stats.norm.ppf(0.75)
    targets = [0.0, boundary, np.nextafter(boundary, 0), 1e300]
    observed = coverage(targets, np.zeros(4), np.ones(4), [0, 0.5, 1])
    assert observed.tolist() == [0.0, 0.5, 1.0]


def test_coverage_rejects_levels_outside_0_to_1():
    with pytest.raises(ValueError, match="levels must lie in"):
        coverage([0.0], [0.0], [1.0], [1.5])


def test_mace_of_a_calibrated_predictive_is_small_and_counts_the_midpoint_levels():
    levels = (np.arange(100) + 0.5) / 100
    # the points leave their intervals at 0.0075, 0.0175, ...: j of them are inside at (j + ½)/100
    errors = stats.norm.ppf((1 + np.arange(1, 101) / 100 - 0.0025) / 2)
    assert mace(errors, np.zeros(100), np.ones(100)) == pytest.approx(0.005, rel=1e-12)
    targets, mean, variance = sample(3)
    ratio = np.abs(targets - mean) / np.sqrt(variance)
    gaps = [abs(np.mean(ratio < stats.norm.ppf((1 + p) / 2)) - p) for p in levels]
    assert mace(targets, mean, variance) == pytest.approx(np.mean(gaps), rel=1e-12)
    assert mace(np.zeros(3), np.zeros(3), np.ones(3)) == pytest.approx(0.5, rel=1e-14)


def test_interval_metrics_equal_their_definitions():
    targets, mean, variance = sample(4)
    low, high = stats.norm.interval(0.95, mean, np.sqrt(variance))
    penalty = np.maximum(low - targets, 0) + np.maximum(targets - high, 0)
    assert 0 < np.count_nonzero(penalty) < len(targets)
    assert coverage95(targets, mean, variance) == np.mean((low < targets) & (targets < high))
    assert width95(targets, mean, variance) == pytest.approx(np.mean(high - low), rel=1e-13)
    assert sharpness(targets, mean, variance) == pytest.approx(np.sqrt(variance).mean(), rel=1e-15)
    score = np.mean(high - low + 2 / 0.05 * penalty)
    assert interval_score(targets, mean, variance) == pytest.approx(score, rel=1e-13)


def test_the_true_predictive_has_the_best_proper_scores():
    generator = np.random.default_rng(5)
    mean, sigma = generator.normal(size=20_000), generator.uniform(0.5, 2, size=20_000)
    targets = mean + sigma * generator.normal(size=20_000)
    for score in (nll, crps, interval_score):
        truth = score(targets, mean, sigma**2)
        assert truth < score(targets, mean, (0.8 * sigma) ** 2)
        assert truth < score(targets, mean, (1.25 * sigma) ** 2)
    assert coverage95(targets, mean, sigma**2) == pytest.approx(0.95, abs=0.005)


def test_zero_variance_is_the_limit_of_a_point_mass():
    wrong, right = ([1.0], [0.0], [0.0]), ([1.0], [1.0], [0.0])
    assert nll(*wrong) == math.inf
    assert nll(*right) == -math.inf
    assert nll([1.0, 1.0], [0.0, 1.0], [0.0, 0.0]) == math.inf
    assert crps(*wrong) == 1
    assert crps(*right) == 0
    assert coverage95(*wrong) == 0
    assert coverage95(*right) == 1
    assert interval_score(*wrong) == 40
    assert ece(*wrong) == pytest.approx(2.85 / 11, rel=1e-14)
    assert ece(*right) == pytest.approx(2.85 / 11, rel=1e-14)
    for metric in (ece, mace, crps, sharpness, coverage95, width95, interval_score):
        for arrays in (wrong, right):
            nearly = metric(arrays[0], arrays[1], [1e-30])
            assert metric(*arrays) == pytest.approx(nearly, abs=1e-12)


def test_infinite_variance_covers_everything():
    arrays = ([1.0], [0.0], [math.inf])
    assert coverage95(*arrays) == 1
    for metric in (nll, crps, sharpness, width95, interval_score):
        assert metric(*arrays) == math.inf


@pytest.mark.parametrize("metric", GAUSSIAN_METRICS)
def test_no_points_and_nan_inputs_give_nan(metric):
    assert math.isnan(metric([], [], []))
    for position in range(3):
        arrays = [np.ones(3), np.zeros(3), np.ones(3)]
        arrays[position][1] = NAN
        assert math.isnan(metric(*arrays))


@pytest.mark.parametrize("metric", [rmse, mean_prediction])
def test_metrics_of_the_mean_are_nan_for_no_points_and_for_nan(metric):
    assert math.isnan(metric([], []))
    assert math.isnan(metric([1.0, NAN], [1.0, 1.0]))


@pytest.mark.parametrize("metric", GAUSSIAN_METRICS)
def test_column_vectors_mean_the_same_as_flat_ones(metric):
    targets, mean, variance = sample(6)
    expected = metric(targets, mean, variance)
    assert metric(targets, mean[:, None], variance[:, None]) == expected
    assert metric(targets[:, None], mean, variance) == expected


@pytest.mark.parametrize("metric", GAUSSIAN_METRICS)
def test_shapes_that_differ_are_an_error_that_names_both(metric):
    with pytest.raises(ValueError, match=r"targets has shape \(3,\) and mean has shape \(1,\)"):
        metric(np.zeros(3), np.zeros(1), np.ones(3))
    with pytest.raises(ValueError, match=r"mean must have shape .* got \(3, 2\)"):
        metric(np.zeros(3), np.zeros((3, 2)), np.ones(3))
    with pytest.raises(ValueError, match=r"got \(\)"):
        metric(np.zeros(3), np.zeros(3), 1.0)


@pytest.mark.parametrize("metric", GAUSSIAN_METRICS)
def test_a_negative_variance_is_an_error(metric):
    with pytest.raises(ValueError, match=r"variance must not be negative, got -0\.5"):
        metric(np.zeros(2), np.zeros(2), [1.0, -0.5])


def test_float32_inputs_are_computed_in_float64():
    arrays = [array.astype(np.float32) for array in sample(7)]
    doubles = [array.astype(np.float64) for array in arrays]
    assert regression_metrics(*arrays, 1.0) == regression_metrics(*doubles, 1.0)


def test_the_bundle_holds_every_metric_and_rmse_in_the_units_of_the_data():
    arrays = sample(8)
    bundle = regression_metrics(*arrays, target_std=10.0)
    assert bundle["rmse_raw"] == pytest.approx(10 * rmse(*arrays[:2]), rel=1e-15)
    assert bundle["mean_prediction"] == mean_prediction(*arrays[:2])
    for name in set(bundle) - {"rmse", "rmse_raw", "mean_prediction"}:
        assert bundle[name] == getattr(regression, name)(*arrays)
    assert all(type(value) is float for value in bundle.values())


# ---- the exact scale search


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [1, 2, 3, 7, 60])
def test_the_scale_search_finds_the_global_minimum(n, seed):
    targets, mean, variance = sample(100 + seed, n)
    scale, best = scale_minimising_ece(targets, mean, variance)
    ratio = np.abs(targets - mean) / np.sqrt(variance)
    quantiles = stats.norm.ppf((1 + np.arange(1, 10) / 10) / 2)
    edges = np.sort((ratio[:, None] / quantiles).ravel())
    between = np.concatenate([[edges[0] / 3], (edges[1:] + edges[:-1]) / 2, [edges[-1] * 3]])
    assert best == pytest.approx(
        brute_force_best_ece(targets, mean, variance, between), rel=1e-12, abs=1e-15
    )
    everywhere = np.concatenate([np.geomspace(1e-3, 1e3, 3000), edges])
    dense = brute_force_best_ece(targets, mean, variance, everywhere)
    assert best <= dense + 1e-15
    assert best == ece(targets, mean, scale**2 * variance)


def test_tied_ratios_move_together_in_the_scale_search():
    # six points at one ratio, four at another: coverages 0, 0.4 and 1 only
    targets = np.array([1.0] * 4 + [3.0] * 6)
    mean, variance = np.zeros(10), np.ones(10)
    scale, best = scale_minimising_ece(targets, mean, variance)
    assert best == brute_force_best_ece(targets, mean, variance, np.geomspace(0.1, 50, 20_001))
    assert best == ece(targets, mean, scale**2 * variance)


def test_rounding_does_not_split_a_tie_in_the_scale_search():
    # ratios of exactly 2, 3, 1, 3, which differ in the last bit once they are computed: the scales
    # between the two 3s do not exist
    ratios, sigma = np.array([2.0, 3.0, 1.0, 3.0]), np.array([0.7, 0.1, 0.3, 1.1])
    assert len(set(ratios * sigma / np.sqrt(sigma**2))) == 4
    scale, best = scale_minimising_ece(ratios * sigma, np.zeros(4), sigma**2)
    expected_scale, expected_best = scale_minimising_ece(ratios, np.zeros(4), np.ones(4))
    assert scale == pytest.approx(expected_scale, rel=1e-12)
    assert best == expected_best


@pytest.mark.parametrize("seed", range(10))
def test_among_equally_calibrated_scales_the_best_likelihood_wins(seed):
    targets, mean, variance = sample(200 + seed, n=3)  # few points: many intervals tie
    scale, best = scale_minimising_ece(targets, mean, variance)
    scales = np.geomspace(1e-2, 1e2, 2001)
    tying = [s for s in scales if ece(targets, mean, s**2 * variance) <= best]
    # a midpoint stands for its interval, so compare with the midpoints of the tying intervals
    ratio = np.abs(targets - mean) / np.sqrt(variance)
    quantiles = stats.norm.ppf((1 + np.arange(1, 10) / 10) / 2)
    edges = np.sort((ratio[:, None] / quantiles).ravel())
    middles = {edges[i - 1 : i + 1].prod() ** 0.5 for i in np.searchsorted(edges, tying)}
    losses = {m: nll(targets, mean, m**2 * variance) for m in middles}
    assert scale == pytest.approx(min(losses, key=losses.get), rel=1e-12)


def test_the_likelihood_that_decides_between_scales_is_that_of_points_with_variance():
    targets, mean = np.array([0.0, 3.0, 5.0, 2.0]), np.zeros(4)
    variance = np.array([0.0, 1.0, 1.0, 1.0])
    scale, best = scale_minimising_ece(targets, mean, variance)
    other = 3.2917258587610315  # the midpoint of another interval of the same ECE
    assert ece(targets, mean, other**2 * variance) == best
    assert scale == pytest.approx(3.8574508700990355, rel=1e-12)
    losses = [nll(targets[1:], mean[1:], s**2 * variance[1:]) for s in (scale, other)]
    assert losses[0] < losses[1]


def test_some_case_of_the_likelihood_rule_has_several_tying_intervals():
    counts = []
    for seed in range(10):
        targets, mean, variance = sample(200 + seed, n=3)
        ratio = np.sort(np.abs(targets - mean) / np.sqrt(variance))
        counts.append(len(regression._scales_of_least_ece(ratio, 0, 3)))
    assert max(counts) > 1


def test_the_scale_search_does_not_depend_on_the_units_of_the_variance():
    targets, mean, variance = sample(9)
    scale, best = scale_minimising_ece(targets, mean, variance)
    tiny_scale, tiny_best = scale_minimising_ece(targets, mean, 1e-12 * variance)
    assert tiny_best == best
    assert tiny_scale == pytest.approx(1e6 * scale, rel=1e-12)


def test_points_without_variance_and_without_error_count_in_the_scale_search():
    targets, mean, variance = sample(10, n=30)
    variance[:3] = 0  # wrong with certainty: never covered
    targets[3:6] = mean[3:6]  # right: always covered
    variance[5] = 0
    scale, best = scale_minimising_ece(targets, mean, variance)
    assert best == ece(targets, mean, scale**2 * variance)
    grid = np.geomspace(1e-2, 1e2, 400)
    losses = [naive_ece(targets, mean, variance, s) for s in grid]
    assert best <= min(losses) + 1e-15
    assert best == pytest.approx(naive_ece(targets, mean, variance, scale), rel=1e-12)


def test_where_no_scale_matters_the_variance_is_left_as_it_is():
    for variance in (np.ones(4), np.zeros(4)):
        scale, best = scale_minimising_ece(np.ones(4), np.ones(4), variance)
        assert scale == 1
        assert best == ece(np.ones(4), np.ones(4), variance)
    scale, best = scale_minimising_ece([1.0], [0.0], [0.0])
    assert (scale, best) == (1, ece([1.0], [0.0], [0.0]))


def test_the_scale_search_of_nothing_or_nan_is_nan():
    for arrays in (([], [], []), ([NAN], [0.0], [1.0]), ([0.0], [0.0], [NAN])):
        assert all(math.isnan(value) for value in scale_minimising_ece(*arrays))


def test_the_scale_search_recovers_the_true_scale_of_many_points():
    generator = np.random.default_rng(11)
    variance = generator.gamma(2, size=50_000)
    targets = 2.5 * np.sqrt(variance) * generator.normal(size=50_000)
    scale, best = scale_minimising_ece(targets[:, None], np.zeros(50_000), variance[:, None])
    assert scale == pytest.approx(2.5, rel=0.02)
    assert best < 1e-5

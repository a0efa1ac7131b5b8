"""The corrected t-test against hand-computed values and scipy; Holm; the set of equal best.

The bootstrap interval against a naive one, and its coverage of a known mean.
"""

import math

import numpy as np
import pytest
from scipy import stats

from uqbench.statistics import (
    LEAST_SEEDS,
    bootstrap_interval,
    corrected_resampled_t_test,
    equal_best,
    holm,
)

NAN = float("nan")
RATIO = 15 / 70


def test_the_t_test_by_hand():
    # differences 1, 2, 3: mean 2, s² 1; t = 2/√(1/3 + 1/6) = 2√2; 2 degrees of freedom, for which
    # P(|T| > t) = 1 − t/√(2 + t²) = 1 − √(4/5)
    p_value = corrected_resampled_t_test([1.0, 2.0, 3.0], 1 / 6)
    assert p_value == pytest.approx(1 - math.sqrt(0.8), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_without_overlap_the_t_test_is_the_ordinary_one(seed):
    differences = np.random.default_rng(seed).normal(0.3, 1, size=8)
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert corrected_resampled_t_test(differences, 0.0) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_the_correction_widens_the_standard_error(seed):
    differences = np.random.default_rng(seed).normal(0.3, 1, size=10)
    ordinary = stats.ttest_1samp(differences, 0).statistic
    corrected = ordinary / math.sqrt(1 + 10 * RATIO)
    expected = 2 * stats.t.sf(abs(corrected), df=9)
    assert corrected_resampled_t_test(differences, RATIO) == pytest.approx(expected, rel=1e-11)
    assert corrected_resampled_t_test(-differences, RATIO) == pytest.approx(expected, rel=1e-11)


def test_differences_that_never_vary_are_certain():
    assert corrected_resampled_t_test([0.0, 0.0, 0.0], RATIO) == 1
    assert corrected_resampled_t_test([0.1, 0.1, 0.1], RATIO) == 0


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, float("nan")], [1.0, math.inf]])
def test_too_few_or_undefined_differences_have_no_p_value(differences):
    assert math.isnan(corrected_resampled_t_test(differences, RATIO))


def test_the_t_test_rejects_tables_and_impossible_ratios():
    with pytest.raises(ValueError, match=r"must have shape \(J,\), got \(2, 2\)"):
        corrected_resampled_t_test(np.ones((2, 2)), RATIO)
    for ratio in (-0.1, math.inf, float("nan")):
        with pytest.raises(ValueError, match="test_train_ratio"):
            corrected_resampled_t_test([1.0, 2.0], ratio)


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.2 times 4, 3, 2, 1, made monotone
    adjusted = holm([0.03, 0.01, 0.2, 0.02])
    np.testing.assert_allclose(adjusted, [0.06, 0.04, 0.2, 0.06], rtol=1e-12)
    assert holm([0.6, 0.7]).tolist() == [1.0, 1.0]


def test_holm_leaves_nan_alone_and_does_not_count_it():
    p_values = np.array([0.03, float("nan"), 0.01])
    adjusted = holm(p_values)
    np.testing.assert_allclose(adjusted[[0, 2]], [0.03, 0.02], rtol=1e-12)
    assert math.isnan(adjusted[1])
    assert math.isnan(p_values[1])
    assert np.isnan(holm([float("nan")])).all()
    assert holm([]).size == 0


def rows(offsets, noise, seeds=10, seed=0):
    """Values that share the difficulty of the seed and differ by an offset and some noise."""
    generator = np.random.default_rng(seed)
    difficulty = generator.normal(0, 1, size=seeds)
    return {
        name: difficulty + offset + noise * generator.normal(size=seeds)
        for name, offset in offsets.items()
    }


def test_a_clear_winner_stands_alone_in_the_right_direction():
    values = rows({"a": 0.0, "b": 1.0, "c": 2.0}, noise=0.05)
    assert equal_best(values, "lower", RATIO) == {"a"}
    assert equal_best(values, "higher", RATIO) == {"c"}


def test_methods_within_noise_are_equal_best():
    values = rows({"a": 0.0, "b": 0.01, "c": 2.0}, noise=0.3)
    assert equal_best(values, "lower", RATIO) == {"a", "b"}


def test_pairing_by_seed_finds_differences_that_unpaired_values_hide():
    values = rows({"a": 0.0, "b": 0.2}, noise=0.01)
    assert stats.ttest_ind(values["a"], values["b"]).pvalue > 0.5
    assert equal_best(values, "lower", RATIO) == {"a"}


def test_holm_keeps_a_method_that_an_unadjusted_test_would_drop():
    base = np.zeros(6)
    near = np.array([0.1, 0.3, 0.2, 0.4, 0.5, 0.2])
    alone = corrected_resampled_t_test(near, RATIO)
    assert 0.05 / 3 < alone < 0.05
    others = {f"m{i}": near[np.roll(np.arange(6), i)] for i in range(3)}
    assert equal_best({"best": base, "m0": near}, "lower", RATIO) == {"best"}
    assert equal_best({"best": base, **others}, "lower", RATIO) == {"best", *others}
    assert equal_best({"best": base, "m0": near}, "lower", RATIO, level=0.01) == {"best", "m0"}


def test_with_one_seed_only_the_best_and_its_exact_equals_count():
    assert equal_best({"a": [1.0], "b": [1.1]}, "lower", RATIO) == {"a"}
    assert equal_best({"a": [1.0], "b": [1.1]}, "higher", RATIO) == {"b"}
    assert equal_best({"a": [1.0], "b": [1.0], "c": [2.0]}, "lower", RATIO) == {"a", "b"}


def test_identical_methods_are_equal_whatever_their_order():
    values = {"a": [1.0, 2.0], "b": [1.0, 2.0]}
    assert equal_best(values, "lower", RATIO) == {"a", "b"}
    assert equal_best(dict(reversed(values.items())), "lower", RATIO) == {"a", "b"}


def test_undefined_values_are_never_among_the_best():
    values = {"a": [1.0, 2.0], "b": [float("nan"), 0.0], "c": [math.inf, 0.0]}
    assert equal_best(values, "lower", RATIO) == {"a"}
    assert equal_best({"b": values["b"]}, "lower", RATIO) == set()
    assert equal_best({"a": []}, "lower", RATIO) == set()
    assert equal_best({}, "lower", RATIO) == set()


def test_unpaired_values_and_unknown_directions_are_errors():
    with pytest.raises(ValueError, match=r"paired by seed.*'a': 2, 'b': 1"):
        equal_best({"a": [1.0, 2.0], "b": [1.0]}, "lower", RATIO)
    with pytest.raises(ValueError, match=r"'lower' or 'higher', got 'closer to 0\.95'"):
        equal_best({"a": [1.0]}, "closer to 0.95", RATIO)


SKEWED = np.array([0.31, 0.12, 0.55, 2.4, 0.2, 0.9, 0.41, 1.1, 0.05])


def naive_interval(values, resamples, generator):
    """BCa as in Efron & Tibshirani 1993, (14.9) to (14.15): bias from a count, a jackknife."""
    means = []
    for _ in range(resamples):
        means.append(math.fsum(generator.choice(values, len(values))) / len(values))
    means = np.sort(means)
    mean = math.fsum(values) / len(values)
    bias = stats.norm.ppf(np.mean(means < mean - 1e-9) + np.mean(abs(means - mean) <= 1e-9) / 2)
    left_out = np.array([np.delete(values, i).mean() for i in range(len(values))])
    around = left_out.mean() - left_out
    acceleration = (around**3).sum() / (6 * (around**2).sum() ** 1.5)
    ends = []
    for tail in (0.025, 0.975):
        z = bias + stats.norm.ppf(tail)
        quantile = stats.norm.cdf(bias + z / (1 - acceleration * z))
        ends.append(means[math.floor(quantile * (resamples + 1)) - 1])
    return ends


def test_the_interval_is_that_of_a_naive_bca_within_monte_carlo_error():
    generator = np.random.default_rng(0)
    ends = np.array([naive_interval(SKEWED, 2000, generator) for _ in range(12)])
    error = ends.std(axis=0, ddof=1) * math.sqrt(1 / 12 + 2000 / 1999)  # of theirs and of ours
    found = np.array(bootstrap_interval(SKEWED))
    assert (abs(found - ends.mean(axis=0)) < 4 * error).all()
    percentile = stats.bootstrap((SKEWED,), np.mean, method="percentile", rng=0)
    assert (abs(found - percentile.confidence_interval) > 3 * error).all()  # this would show


@pytest.mark.parametrize(
    ("distribution", "mean", "seeds", "coverage"),
    [
        ("normal", 0.0, 5, 0.83),
        ("lognormal", math.exp(0.5), 10, 0.82),
    ],
)
def test_the_interval_covers_the_mean_as_often_as_documented(distribution, mean, seeds, coverage):
    repeats = 500
    generator = np.random.default_rng(1)
    samples = getattr(generator, distribution)(size=(repeats, seeds))
    low, high = np.transpose([bootstrap_interval(sample) for sample in samples])
    found = np.mean((low <= mean) & (mean <= high))
    assert abs(found - coverage) < 4 * math.sqrt(coverage * (1 - coverage) / repeats)


def test_the_interval_of_many_normal_values_is_the_textbook_one():
    """Mean ± 1.96 s √((J − 1)/J) / √J; its own error is a few percent of the width."""
    values = np.random.default_rng(2).normal(3, 2, size=400)
    half = 1.959964 * values.std() / 20
    low, high = bootstrap_interval(values)
    assert [low, high] == pytest.approx(values.mean() + half * np.array([-1, 1]), abs=0.1 * half)
    narrower = bootstrap_interval(values, 0.5)
    assert narrower[1] - narrower[0] == pytest.approx((high - low) * 0.6745 / 1.96, rel=0.1)


def test_the_interval_is_the_same_each_time_and_in_any_order_of_the_seeds():
    found = bootstrap_interval(SKEWED)
    assert bootstrap_interval(SKEWED.tolist()) == found
    assert bootstrap_interval(SKEWED[::-1]) == found
    assert bootstrap_interval(np.roll(SKEWED, 4)) == found


@pytest.mark.parametrize(("shift", "factor"), [(0.0, 1e-200), (-7.0, 3.0), (1e9, 1.0)])
def test_the_interval_moves_and_scales_with_the_values(shift, factor):
    values = np.round(SKEWED * 100)  # whole, so that the shift does not round them
    expected = np.array(bootstrap_interval(values)) * factor + shift
    assert bootstrap_interval(values * factor + shift) == pytest.approx(expected, rel=1e-11, abs=0)


@pytest.mark.parametrize(
    "values",
    [[], [1.0], range(LEAST_SEEDS - 1), [0.1] * 7, [*range(6), NAN], [*range(6), math.inf]],
)
def test_too_few_equal_or_undefined_values_have_no_interval(values):
    assert np.isnan(bootstrap_interval(values)).all()


def test_values_that_hardly_differ_have_an_interval_among_them():
    values = [0.1] * 6 + [math.nextafter(0.1, 1)]
    low, high = bootstrap_interval(values)
    assert values[0] <= low <= high <= values[-1]


def test_the_interval_rejects_tables_and_impossible_levels():
    with pytest.raises(ValueError, match=r"must have shape \(J,\), got \(2, 6\)"):
        bootstrap_interval(np.ones((2, 6)))
    for level in (0.0, 1.0, NAN):
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            bootstrap_interval(SKEWED, level)

"""VMSP against scipy and hand-computed values."""

import math

import numpy as np
import pytest
from scipy import stats

from uqbench.metrics.detection import auroc
from uqbench.metrics.vmsp import (
    skew,
    vmsp,
    vmsp_auc_error,
    vmsp_auc_ood,
    vmsp_metrics,
    vmsp_ood_metrics,
    vmsp_summary,
)

NAN = float("nan")


def test_vmsp_is_the_variance_of_the_class_that_the_mean_predicts():
    # the mean's class, not the class that varies most; a tie goes to the first
    probabilities = [[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]
    variance = [[0.9, 0.1, 0.8], [0.3, 0.7, 0.5]]
    assert vmsp(probabilities, variance).tolist() == [0.1, 0.3]


def test_vmsp_without_members_is_nan_per_point():
    values = vmsp([[0.5, 0.5], [1.0, 0.0]], None)
    assert values.shape == (2,)
    assert np.isnan(values).all()


def test_vmsp_of_a_nan_prediction_is_nan_for_that_point_alone():
    values = vmsp([[NAN, 0.5], [1.0, 0.0]], [[0.1, 0.1], [0.2, 0.3]])
    assert math.isnan(values[0])
    assert values[1] == 0.2


def test_vmsp_rejects_shapes_that_differ_and_negative_variance():
    with pytest.raises(ValueError, match=r"\(2, 2\) and variance has shape \(1, 2\)"):
        vmsp(np.full((2, 2), 0.5), np.ones((1, 2)))
    with pytest.raises(ValueError, match=r"variance must have shape \(N, C\), got \(2,\)"):
        vmsp(np.full((2, 2), 0.5), np.ones(2))
    with pytest.raises(ValueError, match="variance must not be negative"):
        vmsp(np.full((1, 2), 0.5), [[-0.1, 0.1]])


@pytest.mark.parametrize("seed", range(5))
def test_skew_equals_the_biased_one_of_scipy(seed):
    values = np.random.default_rng(seed).gamma(0.3, size=101)
    assert skew(values) == pytest.approx(stats.skew(values), rel=1e-12)
    assert abs(skew(values) - stats.skew(values, bias=False)) > 1e-3


def test_skew_by_hand():
    # mean 1/4, deviations (3, −1, −1, −1)/4: m2 = 3/16, m3 = 3/32
    assert skew([1, 0, 0, 0]) == pytest.approx((3 / 32) / (3 / 16) ** 1.5, rel=1e-14)
    assert skew([0.0, 1.0]) == 0


def test_skew_does_not_depend_on_scale_even_where_cubes_underflow():
    values = np.random.default_rng(9).gamma(0.5, size=50)
    assert skew(1e-200 * values) == pytest.approx(skew(values), rel=1e-12)


@pytest.mark.parametrize(
    "values", [None, [], [0.3], [0.1] * 7, [0.0, 0.0], [0.1, NAN], [0.1, math.inf]]
)
def test_skew_is_nan_where_it_is_undefined(values):
    assert math.isnan(skew(values))


def test_the_summary_holds_median_skew_quartiles_and_count():
    values = np.random.default_rng(1).gamma(0.5, size=(24, 1))
    assert vmsp_summary(values) == {
        "median": float(np.median(values)),
        "skew": skew(values),
        "q25": float(np.percentile(values, 25)),
        "q75": float(np.percentile(values, 75)),
        "count": 24.0,
    }


def test_an_empty_group_has_count_0_and_nothing_else_defined():
    summary = vmsp_summary([])
    assert summary.pop("count") == 0
    assert all(math.isnan(value) for value in summary.values())


def test_a_group_of_nan_keeps_its_count_and_nothing_else():
    summary = vmsp_summary([NAN, NAN, 0.1])
    assert summary.pop("count") == 3
    assert all(math.isnan(value) for value in summary.values())


def test_a_constant_group_has_a_median_and_no_skew():
    summary = vmsp_summary([0.0, 0.0, 0.0])
    assert summary["median"] == summary["q25"] == summary["q75"] == 0
    assert math.isnan(summary["skew"])


def test_the_auc_summaries_are_high_where_doubt_is_where_it_should_be():
    certain, doubtful = [0.0, 0.01, 0.02], [0.02, 0.2, 0.1, 0.15]
    assert vmsp_auc_error(certain, doubtful) == auroc(doubtful, certain) == 1 - 0.5 / 12
    assert vmsp_auc_ood(certain, doubtful) == 1 - 0.5 / 12
    for metric in (vmsp_auc_error, vmsp_auc_ood):
        assert math.isnan(metric(certain, []))
        assert math.isnan(metric(None, doubtful))
        assert math.isnan(metric(certain, None))


def test_the_bundles_name_every_group_and_statistic():
    generator = np.random.default_rng(2)
    correct, incorrect, ood = (generator.gamma(1, size=n) for n in (9, 4, 6))
    bundle = vmsp_metrics(correct, incorrect)
    assert bundle["vmsp_auc_error"] == auroc(incorrect, correct)
    assert bundle["vmsp_id_correct_median"] == np.median(correct)
    assert bundle["vmsp_id_incorrect_count"] == 4
    ood_bundle = vmsp_ood_metrics(correct, ood)
    assert ood_bundle["vmsp_auc_ood"] == auroc(ood, correct)
    assert ood_bundle["vmsp_ood_skew"] == skew(ood)
    assert len(bundle) == 11
    assert len(ood_bundle) == 6
    for undefined in (vmsp_metrics(), vmsp_ood_metrics(), vmsp_ood_metrics(correct, None)):
        assert all(math.isnan(value) for value in undefined.values())
    assert vmsp_metrics().keys() == bundle.keys()

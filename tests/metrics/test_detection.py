"""Detection metrics against scikit-learn, all pairs, and all orders of ties."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import trapezoid
from sklearn.metrics import roc_auc_score, roc_curve

from uqbench.metrics import detection
from uqbench.metrics.detection import (
    auc_roc,
    aurc,
    auroc,
    fpr95,
    logit_var_auc,
    mutual_information,
    ood_auc,
    ood_metrics,
    predictive_entropy,
    risk_coverage,
)

NAN = float("nan")


def groups(seed, tied):
    generator = np.random.default_rng(seed)
    positive, negative = generator.normal(0.7, 1, 137), generator.normal(0, 1, 91)
    return (positive.round(1), negative.round(1)) if tied else (positive, negative)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_auroc_equals_the_comparison_of_all_pairs_and_scikit_learn(seed, tied):
    positive, negative = groups(seed, tied)
    difference = positive[:, None] - negative
    pairs = (np.sum(difference > 0) + 0.5 * np.sum(difference == 0)) / difference.size
    assert auroc(positive, negative) == pairs
    labels = [1] * len(positive) + [0] * len(negative)
    expected = roc_auc_score(labels, np.concatenate([positive, negative]))
    assert auroc(positive, negative) == pytest.approx(expected, rel=1e-13)


def test_auroc_of_separated_equal_and_missing_groups():
    assert auroc([2, 3], [0, 1, 1]) == 1
    assert auroc([0], [1, 2]) == 0
    assert auroc([0.3, 0.3], [0.3, 0.3, 0.3]) == 0.5
    assert math.isnan(auroc([], [1.0]))
    assert math.isnan(auroc([1.0], []))


def test_auroc_is_exact_where_all_but_one_pair_are_in_order():
    assert auroc(np.arange(1, 1001), np.append(np.zeros(999), 1000)) == 1 - 999.5 / 1_000_000


def test_infinite_scores_are_ordinary_and_nan_scores_make_auroc_nan():
    assert auroc([math.inf], [-math.inf, 0]) == 1
    assert auroc([math.inf], [math.inf]) == 0.5
    for metric in (auroc, fpr95):
        assert math.isnan(metric([1.0, NAN], [0.0]))
        assert math.isnan(metric([1.0], [0.0, NAN]))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_roc_curve_is_scikit_learns_and_encloses_the_auroc(seed, tied):
    positive, negative = groups(seed, tied)
    false, true, _ = roc_curve(
        [1] * len(positive) + [0] * len(negative),
        np.concatenate([positive, negative]),
        drop_intermediate=False,
    )
    curve = detection.roc_curve(positive, negative)
    np.testing.assert_allclose(curve, (false, true), rtol=1e-15, atol=0)
    assert trapezoid(curve[1], curve[0]) == pytest.approx(auroc(positive, negative), rel=1e-13)


def test_the_roc_curve_of_a_missing_group_is_undefined():
    for positive, negative in (([], [1.0]), ([1.0], []), ([NAN], [1.0])):
        assert np.isnan(detection.roc_curve(positive, negative)).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_fpr95_is_the_first_point_of_the_roc_curve_that_reaches_95_percent(seed, tied):
    positive, negative = groups(seed, tied)
    false_rate, true_rate, _ = roc_curve(
        [1] * len(positive) + [0] * len(negative),
        np.concatenate([positive, negative]),
        drop_intermediate=False,
    )
    assert fpr95(positive, negative) == false_rate[np.argmax(true_rate >= 0.95)]


def test_fpr95_by_hand():
    # 19 of 20 positives is exactly 95%: the lowest may be missed, its 19 betters may not
    positive = np.arange(1, 21)
    assert fpr95(positive, [1.5, 2.0, 2.5, 0.0]) == 0.5
    assert fpr95(positive[1:], [1.5, 2.0]) == 0.5  # 18 of 19 would be too few
    assert fpr95([1, 1], [1, 1]) == 1
    assert math.isnan(fpr95([], [1.0]))


def test_the_risk_coverage_curve_by_hand():
    # most confident first: right, then a tie of one right and one wrong
    coverage, risk = risk_coverage([0.7, 0.9, 0.7], [1, 0, 0])
    np.testing.assert_allclose(coverage, [1 / 3, 2 / 3, 1], rtol=1e-15)
    np.testing.assert_allclose(risk, [0, 0.5 / 2, 1 / 3], rtol=1e-15)
    assert aurc([0.7, 0.9, 0.7], [1, 0, 0]) == risk.mean()


def test_the_risk_of_no_points_and_of_nan_is_undefined():
    assert [len(part) for part in risk_coverage([], [])] == [0, 0]
    coverage, risk = risk_coverage([0.5, NAN], [0, 1])
    assert coverage.tolist() == [0.5, 1]
    assert np.isnan(risk).all()


def test_aurc_by_hand():
    # most confident first: right, wrong, right: risks 0, 1/2, 1/3
    assert aurc([0.9, 0.8, 0.7], [0, 1, 0]) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3, rel=1e-15)
    assert aurc([0.7, 0.9, 0.8], [0, 0, 1]) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3, rel=1e-15)
    assert aurc([0.1], [1]) == 1
    assert math.isnan(aurc([], []))
    assert math.isnan(aurc([0.5, NAN], [0, 1]))


def test_aurc_of_ties_is_the_mean_over_all_their_orders():
    confidences = np.array([0.9, 0.5, 0.5, 0.5, 0.5, 0.2, 0.2])
    losses = np.array([1, 1, 0, 0, 1, 1, 0])
    areas = []
    for first in itertools.permutations(range(1, 5)):
        for second in itertools.permutations((5, 6)):
            ordered = losses[[0, *first, *second]]
            areas.append(np.mean(np.cumsum(ordered) / np.arange(1, 8)))
    assert aurc(confidences, losses) == pytest.approx(np.mean(areas), rel=1e-13)


def test_aurc_does_not_depend_on_the_order_of_rows():
    generator = np.random.default_rng(0)
    confidences, losses = generator.integers(5, size=50) / 5, generator.integers(2, size=50)
    order = generator.permutation(50)
    assert aurc(confidences, losses) == aurc(confidences[order], losses[order])


def test_a_confidence_that_says_nothing_gives_the_error_rate():
    assert aurc(np.full(10, 0.6), [1] * 3 + [0] * 7) == pytest.approx(0.3, rel=1e-14)


def test_aurc_rejects_different_lengths():
    with pytest.raises(ValueError, match=r"confidences has shape \(2,\) and losses has shape"):
        aurc([0.1, 0.2], [1.0])


def test_entropy_is_in_nats_and_zero_where_certain():
    assert predictive_entropy([[1, 0, 0]]).tolist() == [0.0]
    assert predictive_entropy([[0.25] * 4])[0] == pytest.approx(math.log(4), rel=1e-15)


def test_mutual_information_is_the_mean_divergence_of_members_from_their_mean():
    members = np.random.default_rng(1).dirichlet([0.5, 1, 2], size=(6, 20))
    mean = members.mean(0)
    divergence = (members * np.log(members / mean)).sum(-1).mean(0)
    entropy = -(members * np.log(members)).sum(-1).mean(0)
    np.testing.assert_allclose(mutual_information(mean, entropy), divergence, rtol=1e-11)


def test_mutual_information_is_never_negative_but_keeps_nan():
    values = mutual_information([[0.5, 0.5], [0.5, 0.5]], [math.log(2) + 1e-12, NAN])
    assert values[0] == 0
    assert math.isnan(values[1])
    with pytest.raises(ValueError, match=r"shape \(2,\) and expected_entropy has shape \(1,\)"):
        mutual_information([[0.5, 0.5], [0.5, 0.5]], [0.1])


def two_groups(seed):
    generator = np.random.default_rng(seed)
    sharp = generator.dirichlet([0.2, 0.2, 0.2], size=(5, 80)) * 0.9 + 0.1 / 3
    flat = generator.dirichlet([2.0, 2.0, 2.0], size=(5, 70))
    return sharp, flat


def test_every_ood_metric_has_the_sign_that_its_definition_gives():
    sharp, flat = two_groups(2)
    id_mean, ood_mean = sharp[0], flat[0]
    labels = [0] * 80 + [1] * 70

    def entropy(p):
        return -(p * np.log(p)).sum(1)

    by_entropy = roc_auc_score(labels, np.append(entropy(id_mean), entropy(ood_mean)))
    by_confidence = roc_auc_score(labels, -np.append(id_mean.max(1), ood_mean.max(1)))
    assert by_entropy > 0.6
    assert ood_auc(id_mean, ood_mean) == pytest.approx(by_entropy, rel=1e-13)
    assert auc_roc(id_mean, ood_mean) == pytest.approx(by_confidence, rel=1e-13)
    id_variance, ood_variance = np.full((80, 3), 0.1), np.full((70, 3), 0.2)
    id_variance[:, 0] = 0.9
    assert logit_var_auc(id_variance, ood_variance) == 0  # 1.1 against 0.6: the sum decides


def test_the_ood_bundle_holds_every_metric():
    sharp, flat = two_groups(3)

    def moments(members):
        entropy = -(members * np.log(members)).sum(-1).mean(0)
        return members.mean(0), np.log(members).var(0, ddof=1), entropy

    id_mean, id_variance, id_entropy = moments(sharp)
    ood_mean, ood_variance, ood_entropy = moments(flat)
    bundle = ood_metrics(
        id_mean,
        ood_mean,
        id_logit_variance=id_variance,
        ood_logit_variance=ood_variance,
        id_expected_entropy=id_entropy,
        ood_expected_entropy=ood_entropy,
    )
    assert bundle == {
        "ood_auc": ood_auc(id_mean, ood_mean),
        "auc_roc": auc_roc(id_mean, ood_mean),
        "logit_var_auc": logit_var_auc(id_variance, ood_variance),
        "fpr95": fpr95(predictive_entropy(ood_mean), predictive_entropy(id_mean)),
        "mutual_information_auc": auroc(
            mutual_information(ood_mean, ood_entropy), mutual_information(id_mean, id_entropy)
        ),
    }
    assert all(type(value) is float for value in bundle.values())


def test_without_members_the_ood_bundle_is_defined_where_probabilities_suffice():
    sharp, flat = two_groups(4)
    bundle = ood_metrics(sharp[0], flat[0])
    undefined = {name for name, value in bundle.items() if math.isnan(value)}
    assert undefined == {"logit_var_auc", "mutual_information_auc"}


def test_an_empty_ood_set_leaves_every_ood_metric_undefined():
    sharp, _ = two_groups(5)
    nothing = np.empty((0, 3))
    bundle = ood_metrics(
        sharp[0],
        nothing,
        id_logit_variance=sharp[0],
        ood_logit_variance=nothing,
        id_expected_entropy=np.zeros(80),
        ood_expected_entropy=[],
    )
    assert all(math.isnan(value) for value in bundle.values())


def test_groups_with_different_numbers_of_classes_are_an_error():
    for metric in (ood_auc, auc_roc, ood_metrics):
        with pytest.raises(ValueError, match=r"\(4, 2\) and ood_probabilities has shape \(5, 3\)"):
            metric(np.full((4, 2), 0.5), np.full((5, 3), 1 / 3))

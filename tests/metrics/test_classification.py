"""Classification metrics against scikit-learn, naive loops and hand-computed values."""

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from uqbench.metrics import detection
from uqbench.metrics.classification import accuracy, brier, classification_metrics, ece, nll

METRICS = [nll, accuracy, brier, ece]


def sample(seed, n=200, classes=4):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.full(classes, 0.4), size=n)
    labels = np.array([generator.choice(classes, p=p**0.5 / (p**0.5).sum()) for p in probabilities])
    return probabilities, labels


def naive_ece(probabilities, labels):
    total = 0.0
    for tenth in range(10):
        inside = [
            (p.max(), p.argmax() == y)
            for p, y in zip(probabilities, labels, strict=True)
            if tenth / 10 < p.max() <= (tenth + 1) / 10
        ]
        if inside:
            confidence, correct = np.mean(inside, axis=0)
            total += len(inside) / len(labels) * abs(correct - confidence)
    return total


@pytest.mark.parametrize("seed", range(3))
def test_nll_accuracy_and_brier_equal_those_of_scikit_learn(seed):
    probabilities, labels = sample(seed)
    assert nll(probabilities, labels) == pytest.approx(log_loss(labels, probabilities), rel=1e-12)
    assert accuracy(probabilities, labels) == accuracy_score(labels, probabilities.argmax(1))
    one_hot_error = sum(
        brier_score_loss(labels == c, probabilities[:, c], pos_label=True) for c in range(4)
    )
    assert brier(probabilities, labels) == pytest.approx(one_hot_error, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ece_equals_the_definition_counted_bin_by_bin(seed):
    probabilities, labels = sample(seed)
    assert ece(probabilities, labels) == pytest.approx(naive_ece(probabilities, labels), rel=1e-12)


def test_ece_counts_a_confidence_of_exactly_1_in_the_last_bin():
    assert ece([[1, 0], [1, 0], [0.5, 0.5]], [0, 1, 0]) == 0.5


def test_ece_bins_are_closed_on_the_right():
    # confidences 0.9 and 0.95, one right and one wrong, in different bins: 0.1/2 + 0.95/2
    assert ece([[0.9, 0.1], [0.95, 0.05]], [0, 1]) == pytest.approx(0.525, rel=1e-14)


def test_a_confidence_that_rounding_left_above_1_is_in_the_last_bin():
    probabilities = np.array([[1 + 2e-7, 0], [0.99, 0.01]])
    assert ece(probabilities, [0, 0]) == pytest.approx((0.01 - 2e-7) / 2, rel=1e-9)


def test_an_impossible_label_costs_the_log_of_the_smallest_positive_float64():
    assert nll([[1.0, 0.0]], [1]) == pytest.approx(744.4400719213812, rel=1e-15)
    assert nll([[1.0, 5e-324]], [1]) == nll([[1.0, 0.0]], [1])
    assert nll([[1.0, 1e-300]], [1]) == pytest.approx(300 * math.log(10), rel=1e-14)


def test_a_perfect_prediction_has_a_loss_of_plain_zero():
    for metric in (nll, brier, ece):
        value = metric([[1.0, 0.0], [0.0, 1.0]], [0, 1])
        assert value == 0
        assert math.copysign(1, value) == 1


def test_a_tie_predicts_the_first_class():
    assert accuracy([[0.5, 0.5], [0.25, 0.75]], [0, 1]) == 1
    assert accuracy([[0.5, 0.5]], [1]) == 0


def test_the_brier_score_of_certainty_in_the_wrong_class_is_2():
    assert brier([[1.0, 0.0]], [1]) == 2


def test_a_class_that_never_occurs_leaves_the_metrics_defined():
    probabilities, labels = sample(4)
    present = labels != 3
    bundle = classification_metrics(probabilities[present], labels[present])
    assert all(math.isfinite(bundle[name]) for name in ("nll", "accuracy", "brier", "ece", "aurc"))


@pytest.mark.parametrize("metric", METRICS)
def test_no_points_and_nan_probabilities_give_nan(metric):
    assert math.isnan(metric(np.empty((0, 3)), []))
    nan_elsewhere = [[0.5, 0.5, 0.0], [0.5, float("nan"), 0.5]]
    assert math.isnan(metric(nan_elsewhere, [0, 0]))


@pytest.mark.parametrize("metric", METRICS)
def test_wrong_inputs_are_errors_that_say_what_was_seen(metric):
    probabilities = np.full((3, 2), 0.5)
    assert metric(probabilities, np.zeros((3, 1))) == metric(probabilities, np.zeros(3, dtype=int))
    with pytest.raises(ValueError, match=r"\(3, 2\) and labels has shape \(1,\)"):
        metric(probabilities, [0])
    with pytest.raises(ValueError, match=r"must have shape \(N, C\), got \(3,\)"):
        metric(probabilities[:, 0], [0, 0, 0])
    with pytest.raises(ValueError, match="class indices 0 to 1, got 2"):
        metric(probabilities, [0, 1, 2])
    with pytest.raises(ValueError, match="class indices 0 to 1, got -1"):
        metric(probabilities, [0, 1, -1])
    with pytest.raises(ValueError, match=r"class indices 0 to 1, got 0\.5"):
        metric(probabilities, [0, 1, 0.5])
    with pytest.raises(ValueError, match="class indices 0 to 1, got nan"):
        metric(probabilities, [0, 1, float("nan")])
    with pytest.raises(ValueError, match="must be at most 1, got 3"):
        metric([[3.0, 0.0]], [0])
    with pytest.raises(ValueError, match="must not be negative, got -2"):
        metric([[-2.0, 0.0]], [0])


def members(seed, n=60, classes=3, samples=8):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(classes), size=(samples, n))
    entropy = -(probabilities * np.log(probabilities)).sum(-1).mean(0)
    labels = generator.integers(classes, size=n)
    return probabilities.mean(0), labels, probabilities.var(0, ddof=1), entropy


def test_the_bundle_holds_every_metric():
    probabilities, labels, variance, entropy = members(0)
    bundle = classification_metrics(probabilities, labels, variance, entropy)
    for metric in METRICS:
        assert bundle[metric.__name__] == metric(probabilities, labels)
    errors = probabilities.argmax(1) != labels
    assert bundle["aurc"] == detection.aurc(probabilities.max(1), errors)
    total = -(probabilities * np.log(probabilities)).sum(1)
    assert bundle["mutual_information"] == pytest.approx(np.mean(total - entropy), rel=1e-12)
    top = variance[np.arange(60), probabilities.argmax(1)]
    assert bundle["vmsp_id_correct_median"] == np.median(top[~errors])
    assert bundle["vmsp_id_incorrect_median"] == np.median(top[errors])
    assert bundle["vmsp_id_incorrect_count"] == errors.sum()
    assert all(type(value) is float for value in bundle.values())


def test_one_member_leaves_what_needs_members_undefined_and_the_rest_as_it_is():
    probabilities, labels, variance, entropy = members(1)
    full = classification_metrics(probabilities, labels, variance, entropy)
    bundle = classification_metrics(probabilities, labels)
    assert bundle.keys() == full.keys()
    undefined = {name for name, value in bundle.items() if math.isnan(value)}
    assert undefined == {
        "mutual_information",
        "vmsp_auc_error",
        *(f"vmsp_id_{g}_{k}" for g in ("correct", "incorrect") for k in MEMBER_KEYS),
    }
    assert all(bundle[name] == full[name] for name in set(bundle) - undefined)


MEMBER_KEYS = ("median", "skew", "q25", "q75")


def test_all_points_right_leaves_only_the_incorrect_group_undefined():
    probabilities, _, variance, entropy = members(2)
    bundle = classification_metrics(probabilities, probabilities.argmax(1), variance, entropy)
    assert bundle["accuracy"] == 1
    assert bundle["vmsp_id_incorrect_count"] == 0
    undefined = {name for name, value in bundle.items() if math.isnan(value)}
    assert undefined == {"vmsp_auc_error", *(f"vmsp_id_incorrect_{k}" for k in MEMBER_KEYS)}

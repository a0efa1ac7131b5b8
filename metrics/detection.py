"""Metrics of telling two groups of points apart by a score: in-distribution (ID) and OoD, or right
and wrong predictions.

Scores are arrays (n,) or (n, 1), probabilities (N, C), computed in float64; a metric is one number.

- An empty group, or a NaN anywhere in the inputs: NaN.
- None for an optional input says that it does not exist (one member has no variance): NaN.
- ValueError: shapes that do not fit, or a probability outside [0, 1].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from uqbench.metrics._arrays import (
    Floats,
    average,
    probability_matrix,
    variance_matrix,
    vector,
    vectors,
)

_NAN = float("nan")


def auroc(positive_scores: ArrayLike, negative_scores: ArrayLike) -> float:
    """Area under the ROC curve: P(positive > negative) + ½ P(positive = negative).

    The Mann–Whitney statistic over all pairs, exact, in O(n log n). Range [0, 1]; 1 when every
    positive scores higher than every negative, ½ when the scores are uninformative (or all equal).
    The groups may differ in size.
    """
    positive = vector(positive_scores, "positive_scores")
    negative = vector(negative_scores, "negative_scores")
    if _undefined(positive, negative):
        return _NAN
    negative = np.sort(negative)
    below = np.searchsorted(negative, positive, side="left").sum()
    below_or_tied = np.searchsorted(negative, positive, side="right").sum()
    return float((below + below_or_tied) / (2 * len(positive) * len(negative)))


def roc_curve(positive_scores: ArrayLike, negative_scores: ArrayLike) -> tuple[Floats, Floats]:
    """Receiver operating characteristic: false-positive and true-positive rate, (m,) each.

    Shares of the negatives and of the positives that score at least t, for t from above the highest
    score (the point 0, 0) down through every distinct one (to 1, 1). The straight lines between the
    points enclose :func:`auroc`. Where that is NaN, the curve is the one point (NaN, NaN).
    """
    positive = vector(positive_scores, "positive_scores")
    negative = vector(negative_scores, "negative_scores")
    if _undefined(positive, negative):
        return np.array([_NAN]), np.array([_NAN])
    thresholds = np.unique(np.concatenate([positive, negative]))[::-1]

    def rate(scores: Floats) -> Floats:
        below = np.searchsorted(np.sort(scores), thresholds, side="left")
        return np.append(0, len(scores) - below) / len(scores)

    return rate(negative), rate(positive)


def fpr95(positive_scores: ArrayLike, negative_scores: ArrayLike) -> float:
    """False-positive rate at 95% true-positive rate.

    Share of negatives that score at least t, the highest threshold that at least 95% of the
    positives reach. Points tied with t all count. Range [0, 1]; lower is better.
    """
    positive = vector(positive_scores, "positive_scores")
    negative = vector(negative_scores, "negative_scores")
    if _undefined(positive, negative):
        return _NAN
    needed = -(-95 * len(positive) // 100)  # 95%, rounded up without rounding error
    threshold = np.sort(positive)[-needed]
    return float(np.mean(negative >= threshold))


def risk_coverage(confidences: ArrayLike, losses: ArrayLike) -> tuple[Floats, Floats]:
    """Risk–coverage curve of selective prediction: coverage k/n and risk(k), (n,) each, k = 1..n.

    risk(k) is the mean loss of the k most confident points (Geifman & El-Yaniv 2017). Points of
    equal confidence count as in the mean over all their orders, so the result does not depend on
    the order of the rows. A NaN in the inputs makes every risk NaN.
    """
    confidences, losses = vectors(confidences=confidences, losses=losses)
    ranks = np.arange(1, len(confidences) + 1)
    coverage = ranks / max(len(ranks), 1)
    if _undefined(confidences, losses):
        return coverage, np.full(len(ranks), _NAN)
    _, group, sizes = np.unique(-confidences, return_inverse=True, return_counts=True)
    # in a random order every member of a tie expects the mean loss of the tie
    expected = np.repeat(np.bincount(group, weights=losses) / sizes, sizes)
    return coverage, np.cumsum(expected) / ranks


def aurc(confidences: ArrayLike, losses: ArrayLike) -> float:
    """Area under the risk–coverage curve, (1/n) Σ_k risk(k) of :func:`risk_coverage`.

    Geifman, Uziel & El-Yaniv 2019. With 0/1 losses (1: wrong) range [0, 1]; lower is better; a
    useless confidence gives the error rate.
    """
    return average(risk_coverage(confidences, losses)[1])


def predictive_entropy(probabilities: ArrayLike) -> Floats:
    """Entropy of the mean probabilities, −Σ_c p_c log p_c, per point: (N,), in nats, [0, log C]."""
    return entr(probability_matrix(probabilities)).sum(-1)


def mutual_information(probabilities: ArrayLike, expected_entropy: ArrayLike) -> Floats:
    """Mutual information of label and member, per point: (N,), in nats.

    Predictive entropy − expected entropy of the members (Houlsby et al. 2011); it is never negative
    and is clipped at 0 against rounding. probabilities: (N, C), the members' mean;
    expected_entropy: (N,), the members' mean entropy.
    """
    entropy, expected_entropy = vectors(
        predictive_entropy=predictive_entropy(probabilities), expected_entropy=expected_entropy
    )
    return np.maximum(entropy - expected_entropy, 0)


def ood_auc(id_probabilities: ArrayLike, ood_probabilities: ArrayLike) -> float:
    """AUROC of the predictive entropy, OoD positive. Range [0, 1]; higher is better."""
    id_probabilities, ood_probabilities = _two_groups(id_probabilities, ood_probabilities)
    return auroc(predictive_entropy(ood_probabilities), predictive_entropy(id_probabilities))


def auc_roc(id_probabilities: ArrayLike, ood_probabilities: ArrayLike) -> float:
    """AUROC of the maximum probability, ID positive. Range [0, 1]; higher is better."""
    id_probabilities, ood_probabilities = _two_groups(id_probabilities, ood_probabilities)
    return auroc(id_probabilities.max(-1), ood_probabilities.max(-1))


def logit_var_auc(
    id_logit_variance: ArrayLike | None, ood_logit_variance: ArrayLike | None
) -> float:
    """AUROC of the logit variance summed over classes, OoD positive.

    Both (N, C), over members. Range [0, 1]; higher is better.
    """
    if id_logit_variance is None or ood_logit_variance is None:
        return _NAN
    id_logit_variance = variance_matrix(id_logit_variance, "id_logit_variance")
    ood_logit_variance = variance_matrix(ood_logit_variance, "ood_logit_variance")
    return auroc(ood_logit_variance.sum(-1), id_logit_variance.sum(-1))


def ood_metrics(
    id_probabilities: ArrayLike,
    ood_probabilities: ArrayLike,
    *,
    id_logit_variance: ArrayLike | None = None,
    ood_logit_variance: ArrayLike | None = None,
    id_expected_entropy: ArrayLike | None = None,
    ood_expected_entropy: ArrayLike | None = None,
) -> dict[str, float]:
    """Return every metric of one OoD set against the ID test points by name.

    ``fpr95`` has the score and the positives of ``ood_auc``: the share of ID points that are
    flagged by the predictive entropy when 95% of the OoD points are. ``mutual_information_auc`` is
    the AUROC of the mutual information, OoD positive.
    """
    id_probabilities, ood_probabilities = _two_groups(id_probabilities, ood_probabilities)
    information_auc = _NAN
    if id_expected_entropy is not None and ood_expected_entropy is not None:
        information_auc = auroc(
            mutual_information(ood_probabilities, ood_expected_entropy),
            mutual_information(id_probabilities, id_expected_entropy),
        )
    return {
        "ood_auc": ood_auc(id_probabilities, ood_probabilities),
        "auc_roc": auc_roc(id_probabilities, ood_probabilities),
        "logit_var_auc": logit_var_auc(id_logit_variance, ood_logit_variance),
        "fpr95": fpr95(predictive_entropy(ood_probabilities), predictive_entropy(id_probabilities)),
        "mutual_information_auc": information_auc,
    }


def _two_groups(id_probabilities: ArrayLike, ood_probabilities: ArrayLike) -> tuple[Floats, Floats]:
    id_probabilities = probability_matrix(id_probabilities, "id_probabilities")
    ood_probabilities = probability_matrix(ood_probabilities, "ood_probabilities")
    if id_probabilities.shape[1] != ood_probabilities.shape[1]:
        raise ValueError(
            f"id_probabilities has shape {id_probabilities.shape} and ood_probabilities has shape "
            f"{ood_probabilities.shape}; they must have the same number of classes"
        )
    return id_probabilities, ood_probabilities


def _undefined(*groups: Floats) -> bool:
    return any(not group.size or np.isnan(group).any() for group in groups)

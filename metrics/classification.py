"""Metrics of predicted class probabilities.

Every function takes ``probabilities`` (N, C) and ``labels``, class indices 0..C−1, (N,) or (N, 1),
computes in float64 and returns one number. The predicted class is the first one of highest
probability.

- No points, or a NaN anywhere in the probabilities: NaN.
- ValueError: shapes that do not fit, a probability outside [0, 1], a label that is no class index.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from uqbench.metrics._arrays import Floats, average, class_labels, probability_matrix
from uqbench.metrics.detection import aurc, mutual_information
from uqbench.metrics.vmsp import vmsp, vmsp_metrics

ECE_BINS = 10

_LOG_SMALLEST_POSITIVE = math.log(math.ulp(0.0))  # log 4.94e-324 = −744.44
_NAN = float("nan")


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Negative log-likelihood, mean of −log p_y.

    p_y, the probability of the true class, is floored at the smallest positive float64 (4.94e-324),
    so that one impossible label costs 744.44 instead of making the mean infinite.
    Range [0, 744.44], in nats per point; lower is better.
    """
    probabilities, labels = _checked(probabilities, labels)
    of_label = np.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0]
    with np.errstate(divide="ignore"):
        log_likelihood = np.maximum(np.log(of_label), _LOG_SMALLEST_POSITIVE)
    return 0.0 - average(_where_defined(probabilities, log_likelihood))  # 0.0, never -0.0


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Share of points whose predicted class is the label. Range [0, 1]; higher is better."""
    probabilities, labels = _checked(probabilities, labels)
    return average(_where_defined(probabilities, probabilities.argmax(-1) == labels))


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Brier score, mean of Σ_c (p_c − 1[c = y])² (Brier 1950).

    Range [0, 2] (twice the binary score of some libraries when C = 2); lower is better.
    """
    probabilities, labels = _checked(probabilities, labels)
    outcome = labels[:, None] == np.arange(probabilities.shape[1])
    return average(((probabilities - outcome) ** 2).sum(-1))


def ece(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Expected calibration error of the top label, Σ_b (n_b/N)·|accuracy_b − confidence_b|.

    Ten equal bins ((b−1)/10, b/10] of the confidence, the highest probability, so that a confidence
    of exactly 1 is in the last one; accuracy_b and confidence_b are means over the bin (Guo et al.
    2017). Range [0, 1]; lower is better.
    """
    probabilities, labels = _checked(probabilities, labels)
    if not labels.size or np.isnan(probabilities).any():
        return _NAN
    confidence = probabilities.max(-1)
    correct = probabilities.argmax(-1) == labels
    gaps = np.bincount(ece_bins(confidence), correct - confidence, minlength=ECE_BINS)
    return float(np.abs(gaps).sum() / len(labels))


def ece_bins(confidence: ArrayLike) -> NDArray[np.intp]:
    """Return the bin of :func:`ece`, 0..9, that each confidence (N,) lies in."""
    edges = np.arange(1, ECE_BINS + 1) / ECE_BINS
    # rounding may leave a confidence a little above 1
    return np.searchsorted(edges, np.minimum(confidence, 1), side="left")


def classification_metrics(
    probabilities: ArrayLike,
    labels: ArrayLike,
    variance: ArrayLike | None = None,
    expected_entropy: ArrayLike | None = None,
) -> dict[str, float]:
    """Return every classification metric of in-distribution points by name.

    variance: (N, C), over members, of each class probability, for the ``vmsp_*`` metrics; None
    where there are fewer than two members. expected_entropy: (N,), mean entropy of the members in
    nats, for ``mutual_information``, the mean over points; None likewise. What is not given leaves
    its metrics NaN.
    """
    probabilities, labels = _checked(probabilities, labels)
    correct = probabilities.argmax(-1) == labels
    errors = _where_defined(probabilities, ~correct)
    values = vmsp(probabilities, variance)
    information = _NAN
    if expected_entropy is not None:
        information = average(mutual_information(probabilities, expected_entropy))
    return {
        "nll": nll(probabilities, labels),
        "accuracy": accuracy(probabilities, labels),
        "brier": brier(probabilities, labels),
        "ece": ece(probabilities, labels),
        "aurc": aurc(probabilities.max(-1), errors),
        "mutual_information": information,
        **vmsp_metrics(values[correct], values[~correct]),
    }


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.intp]]:
    probabilities = probability_matrix(probabilities)
    return probabilities, class_labels(labels, probabilities.shape)


def _where_defined(probabilities: Floats, values: NDArray) -> Floats:
    """The values (N,) as floats, NaN for points with a NaN among their probabilities."""
    return np.where(np.isnan(probabilities).any(-1), np.nan, values)

"""Predictive moments, and their accumulation in a stream over samples.

S x N x C sample tensors never exist at once: an accumulator is fed chunks of samples and keeps the
moments alone (Chan, Golub & LeVeque 1979, parallel update of mean and sum of squares).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from uqbench.errors import ContractError, DivergenceError

CHUNK_ENTRIES = 2**22
"""Sampled logits whose moments are taken at a time: bounds the float64 temporaries."""
SUM_TOLERANCE = 1e-4
"""How far the probabilities of a point may be from a sum of 1: rounding in single precision."""


@dataclass(frozen=True)
class RegressionPrediction:
    """Predictive moments of y on the standardised scale.

    mean: (N,); variance: (N,), of y as the method's own definition gives it.
    """

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class ClassificationPrediction:
    """Moments of the class probabilities over posterior samples, in float64.

    probabilities: (N, C), mean over samples of softmax(logits).
    variance: (N, C), unbiased variance over samples of each softmax probability.
    logit_variance: (N, C), unbiased variance over samples of each logit.
    expected_entropy: (N,), mean over samples of the entropy of softmax(logits), in nats.
    samples: number of samples; with fewer than two the variances are undefined (VMSP: NaN).
    """

    probabilities: Tensor
    variance: Tensor
    logit_variance: Tensor
    expected_entropy: Tensor
    samples: int


Prediction = RegressionPrediction | ClassificationPrediction
P = TypeVar("P", RegressionPrediction, ClassificationPrediction)


def concatenate(predictions: Iterable[P], rows: int) -> P:
    """Join the predictions of consecutive batches, ``rows`` points in all, along the first axis.

    They are consumed one at a time: memory is that of the result and one batch.
    """
    kind, joined, start = None, {}, 0
    for prediction in predictions:
        kind, first = type(prediction), not joined
        for field in fields(prediction):
            values = getattr(prediction, field.name)
            if not isinstance(values, Tensor):
                joined[field.name] = values
                continue
            if first:
                joined[field.name] = values.new_empty(rows, *values.shape[1:])
            stop = start + len(values)
            joined[field.name][start:stop] = values
        start = stop
    return kind(**joined)


def require_valid(prediction: Any, rows: int, classes: int | None) -> None:
    """Check what a method predicted for ``rows`` inputs; ``classes``: None for a regression.

    Raises ContractError for a wrong type, shape or sign and for probabilities that do not sum to
    1, and DivergenceError for values that are not finite.
    """
    kind = RegressionPrediction if classes is None else ClassificationPrediction
    if type(prediction) is not kind:
        raise ContractError(
            f"predict must return a {kind.__name__}, it returned {type(prediction).__name__}"
        )
    if classes is None:
        _require_moment("mean", prediction.mean, (rows,))
        _require_moment("variance", prediction.variance, (rows,), signed=False)
        return
    samples = prediction.samples
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ContractError(f"predict: samples must be a whole number above 0, it is {samples!r}")
    _require_moment("probabilities", prediction.probabilities, (rows, classes), signed=False)
    sums = prediction.probabilities.sum(-1)
    furthest = sums[(sums - 1).abs().argmax()].item()
    if abs(furthest - 1) > SUM_TOLERANCE:
        raise ContractError(f"predict: the probabilities of a point sum to {furthest:g}, not to 1")
    if samples >= 2:  # of one sample they are undefined and never read
        _require_moment("variance", prediction.variance, (rows, classes), signed=False)
        _require_moment("logit_variance", prediction.logit_variance, (rows, classes), signed=False)
        _require_moment("expected_entropy", prediction.expected_entropy, (rows,))


def _require_moment(name: str, values: Any, shape: tuple[int, ...], signed: bool = True) -> None:
    if not isinstance(values, Tensor):
        raise ContractError(f"predict: {name} must be a tensor, it is {type(values).__name__}")
    if values.shape != shape:
        seen = tuple(values.shape)
        raise ContractError(f"predict: {name} must have shape {shape}, it has {seen}")
    if not values.is_floating_point():
        raise ContractError(f"predict: {name} must be real floating point, it is {values.dtype}")
    bad = int((~values.isfinite()).sum())
    if bad:
        count = f"{bad} of {values.numel()}"
        raise DivergenceError(f"{count} values of the predictive {name} are not finite")
    if not signed and values.min() < 0:
        lowest = values.min().item()
        raise ContractError(f"predict: {name} must not be negative, its lowest is {lowest:g}")


class Moments:
    """Running mean and unbiased variance over samples that arrive in chunks, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._sum_of_squares: Tensor | None = None

    def update(self, values: Tensor) -> None:
        """Add a chunk of samples, (S, ...)."""
        values = values.detach().double()
        count = len(values)
        mean = values.mean(0)
        sum_of_squares = (values - mean).square_().sum(0)
        if self._mean is None:
            self.count, self._mean, self._sum_of_squares = count, mean, sum_of_squares
            return
        total = self.count + count
        delta = mean - self._mean
        self._mean += delta * (count / total)
        self._sum_of_squares += sum_of_squares + delta.square() * (self.count * count / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Unbiased variance; zero where there is one sample only."""
        return self._sum_of_squares / max(self.count - 1, 1)


class ClassificationMoments:
    """Accumulates :class:`ClassificationPrediction` from chunks of logits."""

    def __init__(self) -> None:
        self._probabilities = Moments()
        self._logits = Moments()
        self._entropy = Moments()

    def update(self, logits: Tensor) -> None:
        """Add a chunk of sampled logits, (S, N, C)."""
        at_a_time = max(CHUNK_ENTRIES // max(logits[0].numel(), 1), 1)
        for part in logits.detach().split(at_a_time):
            probabilities = part.double().softmax(-1)
            self._logits.update(part)
            self._probabilities.update(probabilities)
            self._entropy.update(torch.special.entr(probabilities).sum(-1))

    def prediction(self) -> ClassificationPrediction:
        return ClassificationPrediction(
            probabilities=self._probabilities.mean,
            variance=self._probabilities.variance,
            logit_variance=self._logits.variance,
            expected_entropy=self._entropy.mean,
            samples=self._probabilities.count,
        )

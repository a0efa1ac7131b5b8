"""Predictive moments, and their accumulation in a stream over samples.

S x N x C sample tensors never exist at once: an accumulator is fed chunks of samples and keeps the
moments alone (Chan, Golub & LeVeque 1979, parallel update of mean and sum of squares).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor


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


def concatenate(predictions: Sequence[P]) -> P:
    """Join the predictions of consecutive batches along the first axis."""
    first = predictions[0]
    joined = {}
    for field in fields(first):
        values = [getattr(prediction, field.name) for prediction in predictions]
        joined[field.name] = torch.cat(values) if isinstance(values[0], Tensor) else values[0]
    return type(first)(**joined)


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
        log_probabilities = logits.detach().double().log_softmax(-1)
        probabilities = log_probabilities.exp()
        self._logits.update(logits)
        self._probabilities.update(probabilities)
        # p log p is 0 at p = 0, where log p may be -inf
        self._entropy.update(torch.special.entr(probabilities).sum(-1))

    def prediction(self) -> ClassificationPrediction:
        return ClassificationPrediction(
            probabilities=self._probabilities.mean,
            variance=self._probabilities.variance,
            logit_variance=self._logits.variance,
            expected_entropy=self._entropy.mean,
            samples=self._probabilities.count,
        )

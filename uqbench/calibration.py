"""Tuning a predictive variance of y on the validation split: its scale, or its noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.errors import TuningError
from uqbench.method import Posterior, Task
from uqbench.prediction import RegressionPrediction
from uqbench.streamed import in_batches
from uqbench.tuning import best_on_grid, log_grid

NOISE_GRID = log_grid(1e-3, 1e1, 41)
"""Candidates of the observation noise σ on the standardised scale, ten for each factor of 10."""


class Scalable(Protocol):
    """A regression posterior whose predictive standard deviation is proportional to ``scale``."""

    scale: float
    tuned: dict[str, float]

    def predict(self, inputs: Tensor) -> RegressionPrediction: ...


def calibrate(posterior: Scalable, data: TrainingData, context: Context) -> None:
    """Set ``posterior.scale`` to the factor that minimises the validation ECE."""
    # the ECE can change only where one of its 9 inner levels meets one of the points
    with context.tuning(grid_size=9 * len(data.validation)):
        posterior.scale = 1.0
        prediction = posterior.predict(data.validation.inputs)
        posterior.scale = validation_scale(data.validation.targets, prediction)
        posterior.tuned["scale"] = posterior.scale


def validation_scale(targets: Tensor, prediction: RegressionPrediction) -> float:
    """The factor on the standard deviation that minimises the ECE of ``prediction`` on ``targets``.

    The ECE is piecewise constant in the factor; it is minimised exactly
    (:func:`uqbench.metrics.regression.scale_minimising_ece`).

    Raises TuningError if the variance is zero or not finite everywhere.
    """
    from uqbench.metrics.regression import scale_minimising_ece

    variance = prediction.variance
    if not (variance.isfinite().all() and (variance > 0).any()):
        raise TuningError(
            "the predictive variance on the validation split is zero or not finite: no scale of it "
            "has a finite ECE"
        )
    scale, _ = scale_minimising_ece(
        targets.double().cpu().numpy(),
        prediction.mean.double().cpu().numpy(),
        variance.double().cpu().numpy(),
    )
    return scale


def validation_nll(posterior: Posterior, data: TrainingData) -> float:
    """The NLL of what ``posterior`` predicts on the validation split, for tuning."""
    from uqbench.metrics import classification, regression

    targets = data.validation.targets.cpu().numpy()
    if data.task is Task.CLASSIFICATION:
        batches = in_batches(data.validation.inputs)
        probabilities = torch.cat([posterior.predict(batch).probabilities for batch in batches])
        return classification.nll(probabilities.cpu().numpy(), targets)
    prediction = posterior.predict(data.validation.inputs)
    mean, variance = prediction.mean.cpu().numpy(), prediction.variance.cpu().numpy()
    return regression.nll(targets, mean, variance)


class Noisy(Protocol):
    """A regression posterior whose predictive variance is a functional one + ``noise_variance``."""

    noise_variance: float
    tuned: dict[str, float]

    def predict(self, inputs: Tensor) -> RegressionPrediction: ...


def tune_noise(
    posterior: Noisy, data: TrainingData, context: Context, name: str, grid: Sequence[float]
) -> None:
    """Set ``posterior.noise_variance`` to σ², σ of ``grid`` with the lowest validation NLL.

    name: of the grid's setting, such as ``swag.noise_grid``, for the error if no σ will do.
    """
    from uqbench.metrics import regression

    with context.tuning(len(grid)):
        posterior.noise_variance = 0.0
        prediction = posterior.predict(data.validation.inputs)
        targets = data.validation.targets.double().cpu().numpy()
        mean = prediction.mean.double().cpu().numpy()
        variance = prediction.variance.double().cpu().numpy()
        noise = best_on_grid(
            name, grid, lambda sigma: regression.nll(targets, mean, variance + sigma**2)
        )
        posterior.noise_variance = noise**2
        posterior.tuned["noise"] = noise

"""Scaling a predictive variance on the validation split."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.errors import TuningError
from uqbench.prediction import RegressionPrediction


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

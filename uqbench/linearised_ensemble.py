"""The posterior of linearised ensembles: members f̃(θ̂ + Δ_s, ·) around one network."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from uqbench.linearised import linearise
from uqbench.method import Posterior, Task
from uqbench.prediction import (
    ClassificationMoments,
    Moments,
    Prediction,
    RegressionPrediction,
)


class LinearisedEnsemble(Posterior):
    """Members f̃(θ̂ + Δ_s, x) = f(θ̂, x) + J(x)Δ_s with displacements Δ (S, p).

    Regression: sample mean, and ``scale``² × the unbiased sample variance.
    Classification: moments of the members' softmax.
    """

    def __init__(
        self,
        network: nn.Module,
        displacements: Tensor,
        task: Task,
        scale: float = 1.0,
        tuned: Mapping[str, float] | None = None,
    ) -> None:
        self.network = network
        self.displacements = displacements
        self.task = task
        self.scale = scale
        self.tuned = dict(tuned or {})
        # a forward pass, and a Jacobian product of about two forward passes for each member
        self.forward_passes = 1 + 2 * len(displacements)

    def members(self, inputs: Tensor) -> Tensor:
        """The members' outputs, (S, N, C)."""
        jacobian = linearise(self.network, inputs)
        return jacobian.outputs + jacobian.matvec(self.displacements)

    def predict(self, inputs: Tensor) -> Prediction:
        outputs = self.members(inputs)
        if self.task is Task.CLASSIFICATION:
            moments = ClassificationMoments()
            moments.update(outputs)
            return moments.prediction()
        moments = Moments()
        moments.update(outputs.squeeze(-1))
        return RegressionPrediction(moments.mean, self.scale**2 * moments.variance)

"""The MAP network alone: the baseline that every post-hoc method starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.method import Method, Posterior, Task
from uqbench.networks import as_matrix
from uqbench.prediction import ClassificationMoments, Prediction, RegressionPrediction
from uqbench.problems import Problem


@dataclass(frozen=True)
class MAP(Method):
    """The network f(θ̂, ·), with no posterior over its parameters.

    Regression: mean f, variance of y = the validation mean squared error. Classification: the
    softmax of one sample, hence no variance over samples (VMSP is undefined).
    """

    deterministic: ClassVar[frozenset[Task]] = frozenset(Task)

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        posterior = MAPPosterior(network, data.task)
        if data.task is Task.REGRESSION:
            mean = posterior.predict(data.validation.inputs).mean
            posterior.variance = (mean - data.validation.targets).square().mean().item()
            posterior.tuned = {"noise": posterior.variance**0.5}
        return posterior


class MAPPosterior(Posterior):
    """One network; ``variance`` of y in regression."""

    def __init__(self, network: nn.Module, task: Task) -> None:
        self.network = network
        self.task = task
        self.variance = 0.0

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        outputs = as_matrix(self.network(inputs))
        if self.task is Task.REGRESSION:
            mean = outputs.squeeze(-1)
            return RegressionPrediction(mean, torch.full_like(mean, self.variance))
        moments = ClassificationMoments()
        moments.update(outputs.unsqueeze(0))
        return moments.prediction()

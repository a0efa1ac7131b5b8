"""eNUQLS: NUQLS around several networks, mixed (Wilson et al., arXiv 2502.02870, Appendix H.6)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.method import Posterior, Task
from uqbench.methods.nuqls import NUQLS
from uqbench.networks import initialise
from uqbench.prediction import ClassificationMoments, Prediction, RegressionPrediction
from uqbench.problems import Problem
from uqbench.training import mean_loss, train_ensemble


@dataclass(frozen=True)
class EnsembledNUQLS(NUQLS):
    """NUQLS around each of several independently trained networks, mixed with equal weights.

    The shared MAP network is the first of them; the others are trained from other initialisations
    with the problem's recipe, as one batched program, and their training counts as fitting.
    Regression: each NUQLS is calibrated on its own, and the prediction has the mixture's moments,
    mean(μ_k) and mean(σ²_k + μ_k²) − mean(μ_k)². Classification: the moments of all members'
    softmax.

    networks: how many; members: S of each of them (``inf``: their limits are mixed). The other
    settings are those of ``nuqls``.
    """

    deterministic: ClassVar[frozenset[Task]] = frozenset()

    networks: Annotated[int, Field(ge=2)] = 5

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        seeds = context.seeds(2, self.networks - 1)
        starts = [initialise(copy.deepcopy(network), problem.network, seed) for seed in seeds[0]]
        loss = mean_loss(data.task)
        trained = train_ensemble(
            starts, data.train, problem.training, loss, seeds[1], context.progress
        )
        fit = super().fit
        components = [fit(problem, data, each, context) for each in [network, *trained]]
        return NUQLSMixture(components, data.task)


class NUQLSMixture(Posterior):
    """The mixture, with equal weights, of NUQLS posteriors around different networks."""

    def __init__(self, components: Sequence[Posterior], task: Task) -> None:
        self.components = components
        self.task = task
        self.forward_passes = sum(component.forward_passes for component in components)
        self.tuned = {
            f"{name}_{k}": value
            for k, component in enumerate(components)
            for name, value in component.tuned.items()
        }

    def predict(self, inputs: Tensor) -> Prediction:
        if self.task is Task.CLASSIFICATION:
            moments = ClassificationMoments()
            for component in self.components:
                moments.update(component.members(inputs))
            return moments.prediction()
        predictions = [component.predict(inputs) for component in self.components]
        means = torch.stack([prediction.mean for prediction in predictions])
        variances = torch.stack([prediction.variance for prediction in predictions])
        return RegressionPrediction(means.mean(0), variances.mean(0) + means.var(0, correction=0))

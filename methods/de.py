"""Deep ensembles (Lakshminarayanan, Pritzel & Blundell 2017)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import softplus

from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.errors import UsageError
from uqbench.method import Posterior, Task
from uqbench.networks import as_matrix, initialise, with_outputs
from uqbench.prediction import ClassificationMoments, Prediction, RegressionPrediction
from uqbench.problems import Problem
from uqbench.self_trained import SelfTrained
from uqbench.training import cross_entropy, train_ensemble

VARIANCE_FLOOR = 1e-6


@dataclass(frozen=True)
class DeepEnsemble(SelfTrained):
    """M networks from M initialisations, trained together as one batched program.

    Regression: each member has a mean head μ_m and a variance head σ²_m = softplus(·) + 1e-6 and
    minimises the Gaussian negative log likelihood; the prediction has the mixture's moments,
    mean(μ) and mean(σ² + μ²) − mean(μ)², so disagreement between members counts.
    Classification: cross-entropy, and the moments of the members' softmax.

    members: M. The other settings, where given, replace the problem's training recipe.
    """

    members: PositiveInt = 10
    weight_decay: NonNegativeFloat | None = None

    def check_task(self, task: Task) -> None:
        if task is Task.CLASSIFICATION and self.members < 2:
            raise UsageError("members must be at least 2: one member has no variance over members")

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        regression = data.task is Task.REGRESSION
        outputs = 2 if regression else data.num_outputs
        seeds = context.seeds(2, self.members)
        template = with_outputs(network, outputs, data.train.inputs)
        starts = [initialise(copy.deepcopy(template), problem.network, seed) for seed in seeds[0]]
        recipe = self.recipe(problem, weight_decay=self.weight_decay)
        loss = gaussian_nll if regression else cross_entropy
        members = train_ensemble(starts, data.train, recipe, loss, seeds[1], context.progress)
        return DeepEnsemblePosterior(members, data.task)


def gaussian_nll(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean of ½ log σ² + (y − μ)²/2σ² with outputs (…, B, 2) the two heads."""
    mean, variance = mean_and_variance(outputs)
    return (variance.log() + (targets - mean).square() / variance).mean(-1) / 2


def mean_and_variance(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split the two heads (…, 2) into the mean and the positive variance."""
    return outputs[..., 0], softplus(outputs[..., 1]) + VARIANCE_FLOOR


class DeepEnsemblePosterior(Posterior):
    """The trained members, weighted equally."""

    def __init__(self, members: Sequence[nn.Module], task: Task) -> None:
        self.members = members
        self.task = task
        self.forward_passes = len(members)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        outputs = torch.stack([as_matrix(member(inputs)) for member in self.members])
        if self.task is Task.REGRESSION:
            means, variances = mean_and_variance(outputs)
            # mean(σ² + μ²) − mean(μ)², without the cancellation
            variance = variances.mean(0) + means.var(0, correction=0)
            return RegressionPrediction(means.mean(0), variance)
        moments = ClassificationMoments()
        moments.update(outputs)
        return moments.prediction()

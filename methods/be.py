"""BatchEnsemble (Wen, Tran & Ba 2020)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from uqbench.batch_ensemble import BatchEnsembleNetwork
from uqbench.calibration import NOISE_GRID, tune_noise
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.errors import UsageError
from uqbench.method import Posterior, Task
from uqbench.networks import initialise
from uqbench.problems import Problem
from uqbench.sampled_posterior import SampledPosterior
from uqbench.self_trained import SelfTrained
from uqbench.training import Extras, mean_loss, train_ensemble
from uqbench.tuning import Grid


@dataclass(frozen=True)
class BatchEnsemble(SelfTrained):
    """M networks that share their weights W but for rank-1 factors: member m has W ∘ s_m r_mᵀ.

    Each linear and convolution layer computes y = s_m ∘ W(r_m ∘ x) + b_m. Every member sees every
    row of every batch; the loss is the mean over members of their mean losses and of their L2
    penalties (of W and b_m; the factors r_m and s_m have none). W and b_m start as a network's.
    Classification: the moments of the members' softmax. Regression: squared error; the members'
    mean, and their unbiased variance + σ², σ of ``noise_grid`` with the lowest validation NLL.

    BatchNorm is shared, with the statistics of all members' rows. Networks whose other layers have
    trainable parameters are refused.

    members: M.
    factors: how r_m and s_m start: random ``signs``, or ``normal``, N(1, ``deviation``²).
    epochs: where not given, 1.5 × the recipe's, rounded up. The other settings, where given,
    replace the problem's training recipe.
    """

    members: PositiveInt = 5
    factors: Literal["signs", "normal"] = "signs"
    deviation: PositiveFloat = 0.5
    noise_grid: Grid = NOISE_GRID

    def check_task(self, task: Task) -> None:
        if task is Task.CLASSIFICATION and self.members < 2:
            raise UsageError("members must be at least 2: one member has no variance over members")

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        regression = data.task is Task.REGRESSION
        seeds = context.seeds(2)
        start = initialise(copy.deepcopy(network), problem.network, seeds[0])
        ensemble = BatchEnsembleNetwork(start, self.members)
        ensemble.draw_factors(self.factors, self.deviation, context.generator)
        epochs = self.epochs or math.ceil(1.5 * problem.training.epochs)
        recipe = self.recipe(problem, epochs=epochs)
        member_loss = mean_loss(data.task)

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            outputs = ensemble.by_member(outputs)  # (1, M, B, C)
            return member_loss(outputs, targets.unsqueeze(1).expand(outputs.shape[:-1])).mean(1)

        trained = train_ensemble(
            [ensemble],
            data.train,
            replace(recipe, weight_decay=0.0),
            loss,
            seeds[1:],
            context.progress,
            Extras(penalty=l2_penalty(ensemble.decay_shares(), recipe.weight_decay)),
        )
        posterior = BatchEnsemblePosterior(trained[0], data.task)
        if regression:
            tune_noise(posterior, data, context, "be.noise_grid", self.noise_grid)
        return posterior


def l2_penalty(
    shares: Mapping[str, float], weight_decay: float
) -> Callable[[Mapping[str, Tensor], slice], Tensor] | None:
    """½ ``weight_decay`` × the sum of ``shares`` × squares, as a penalty of the training."""
    if not weight_decay:
        return None

    def penalty(stacks: Mapping[str, Tensor], members: slice) -> Tensor:
        squares = [
            share * stacks[name].flatten(1).square().sum(1) for name, share in shares.items()
        ]
        return weight_decay / 2 * sum(squares)

    return penalty


class BatchEnsemblePosterior(SampledPosterior):
    """The members of a trained BatchEnsemble, weighted equally."""

    def __init__(self, ensemble: BatchEnsembleNetwork, task: Task) -> None:
        super().__init__(task, ensemble.members)
        self.ensemble = ensemble

    def sampled_outputs(self, inputs: Tensor) -> Iterator[Tensor]:
        yield self.ensemble.by_member(self.ensemble(inputs))

"""SWAG: stochastic weight averaging Gaussian (Maddox et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from uqbench.batch_norm import refreshed_statistics
from uqbench.calibration import NOISE_GRID, tune_noise, validation_nll
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.errors import DivergenceError, TuningError, UsageError
from uqbench.method import Method, Posterior, Task
from uqbench.problems import Problem, Recipe
from uqbench.sampled_posterior import SampledNetworks
from uqbench.stacked import State, flattened, stacked_parameters
from uqbench.training import (
    Extras,
    mean_loss,
    overridden,
    train_ensemble,
)
from uqbench.tuning import Grid, best_on_grid


@dataclass(frozen=True)
class SWAG(Method):
    """A Gaussian with the moments of the iterates of further SGD.

    SGD goes on from the MAP network at a constant step size; the iterates are the parameters at
    the end of each epoch (the start is not one of them). With their mean θ̄, their variances
    Σ_diag and D the last K deviations from the running mean, the samples are

        θ = θ̄ + √c (Σ_diag^½ z₁ + D z₂/√(K − 1)),    z₁ ~ N(0, I_p), z₂ ~ N(0, I_K),  c = ½.

    The statistics of BatchNorm layers are averaged anew for every sample, over the training split.
    The weight decay is chosen from a grid, by the lowest validation ECE in regression and the
    lowest validation NLL in classification. The grid's G trainings differ in nothing else and run
    as one batched program; one G-th of their time counts as fit, the rest as tuning. A training
    that diverges drops out.

    Regression: the samples' mean; variance of y = the samples' variance + σ², σ of ``noise_grid``
    with the lowest validation NLL.

    rank: K. samples: S; S·p numbers are kept.
    covariance_scale: c.
    lr, epochs, batch_size: where not given, those of the problem's training recipe. momentum: of
    SGD.
    shuffle: whether the batches change between epochs.
    observation_noise: whether σ² is part of the variance of y.
    The code behind Tables 1 and 9 of the NUQLS paper departs from the definition, and these
    settings give its numbers: optimizer "adam", no shuffling, no observation noise, c = 1.
    """

    rank: Annotated[int, Field(ge=2)] = 10
    samples: Annotated[int, Field(ge=2)] = 100
    weight_decay_grid: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)] = (
        0.0,
        5e-3,
        5e-5,
    )
    covariance_scale: PositiveFloat = 0.5
    lr: PositiveFloat | None = None
    epochs: PositiveInt | None = None
    batch_size: NonNegativeInt | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    optimizer: Literal["sgd", "adam"] = "sgd"
    shuffle: bool = True
    noise_grid: Grid = NOISE_GRID
    observation_noise: bool = True

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        recipe = replace(
            overridden(
                problem.training, lr=self.lr, epochs=self.epochs, batch_size=self.batch_size
            ),
            optimizer=self.optimizer,
            momentum=self.momentum,
            schedule="none",
            weight_decay=0.0,
        )
        if recipe.epochs < 2:
            raise UsageError("swag.epochs must be at least 2: one iterate has no variance")
        order, draws = context.seeds(2)
        grid = self.weight_decay_grid
        candidates = {}
        with context.tuning(len(grid), share=1 - 1 / len(grid)):
            iterates = self._train(network, data, recipe, order, context)
            for member, decay in enumerate(grid):
                # the same draws for all: what the scores compare is the weight decays alone
                generator = torch.Generator(context.device).manual_seed(draws)
                vectors = iterates.sample(member, self.samples, self.covariance_scale, generator)
                if vectors.isfinite().all():
                    buffers = refreshed_statistics(network, vectors, data.train, recipe.batch_size)
                    tuned = {"weight_decay": decay}
                    candidates[decay] = SampledNetworks(network, vectors, data.task, buffers, tuned)
        if not candidates:
            raise DivergenceError(
                f"swag: {self.optimizer} with lr {recipe.lr:g} diverges for every weight decay of "
                "the grid; set a smaller swag.lr"
            )
        return self._best(candidates, data, context)

    def _train(
        self, network: nn.Module, data: TrainingData, recipe: Recipe, seed: int, context: Context
    ) -> Iterates:
        """Train on from ``network`` with every weight decay of the grid."""
        members = len(self.weight_decay_grid)
        starts = stacked_parameters([network]).expand(members, -1)
        iterates = Iterates(starts, self.rank)
        decays = starts.new_tensor(self.weight_decay_grid)

        def penalty(stacks: State, members: slice) -> Tensor:
            squares = [stack.square().reshape(len(stack), -1).sum(1) for stack in stacks.values()]
            return decays[members] / 2 * torch.stack(squares).sum(0)

        train_ensemble(
            [network] * members,
            data.train,
            recipe,
            mean_loss(data.task),
            [seed] * members,
            context.progress,
            Extras(
                penalty=penalty if any(self.weight_decay_grid) else None,
                after_epoch=iterates.collect,
                shuffle=self.shuffle,
                may_diverge=True,
            ),
        )
        return iterates

    def _best(
        self, candidates: dict[float, SampledNetworks], data: TrainingData, context: Context
    ) -> SampledNetworks:
        """The candidate, keyed by its weight decay, with the lowest validation score."""
        from uqbench.metrics import regression

        noisy = data.task is Task.REGRESSION and self.observation_noise
        if len(candidates) == 1 and not noisy:
            return next(iter(candidates.values()))

        def score(decay: float) -> float:
            candidate = candidates.get(decay)
            if candidate is None:
                return math.nan
            if noisy:
                try:
                    tune_noise(candidate, data, context, "swag.noise_grid", self.noise_grid)
                except TuningError:
                    return math.nan
            with context.tuning(0):
                if data.task is Task.CLASSIFICATION:
                    return validation_nll(candidate, data)
                prediction = candidate.predict(data.validation.inputs)
                targets = data.validation.targets.cpu().numpy()
                mean, variance = prediction.mean.cpu().numpy(), prediction.variance.cpu().numpy()
                return regression.ece(targets, mean, variance)

        return candidates[best_on_grid("swag.weight_decay_grid", self.weight_decay_grid, score)]


class Iterates:
    """Moments of the iterates of M members, kept up to date.

    counts: iterates of each member. mean: (M, p).
    squares: sums of the squared deviations from the mean, (M, p).
    deviations: the last K deviations from the running mean, in any order, (M, K, p).
    """

    def __init__(self, starts: Tensor, rank: int) -> None:
        """starts: (M, p), for the shape, dtype and device alone."""
        self.counts = [0] * len(starts)
        self.mean = torch.zeros_like(starts)
        self.squares = torch.zeros_like(starts)
        self.deviations = starts.new_zeros(len(starts), rank, starts.shape[1])

    def collect(self, stacks: State, members: slice) -> None:
        """Add an iterate of each of ``members``: its trainable parameters, (m, ...) by name."""
        count = self.counts[members.start] + 1
        self.counts[members] = [count] * len(self.counts[members])
        # Welford's update: the second moment minus the squared mean, without their cancellation
        change = flattened(stacks) - self.mean[members]
        self.mean[members].add_(change, alpha=1 / count)
        rest = (count - 1) / count
        self.squares[members].addcmul_(change, change, value=rest)
        self.deviations[members, (count - 1) % self.deviations.shape[1]] = rest * change

    def sample(self, member: int, samples: int, scale: float, generator: torch.Generator) -> Tensor:
        """Draw parameters (S, p) from the member's Gaussian, its covariance times ``scale``."""
        mean, count = self.mean[member], self.counts[member]
        columns = min(count, self.deviations.shape[1])

        def normal(size: int) -> Tensor:
            kind = {"dtype": mean.dtype, "device": mean.device}
            return torch.randn(samples, size, generator=generator, **kind)

        spread = normal(len(mean)) * (self.squares[member] / count).sqrt()
        spread += normal(columns) @ self.deviations[member, :columns] / math.sqrt(columns - 1)
        return mean + math.sqrt(scale) * spread

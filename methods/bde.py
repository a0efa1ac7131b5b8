"""Bayesian deep ensembles (He, Lakshminarayanan & Teh 2020)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from uqbench.calibration import validation_nll
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.method import Posterior, Task
from uqbench.networks import initialise, last_linear, prior_variances, with_outputs
from uqbench.problems import Problem
from uqbench.sampled_posterior import SampledNetworks
from uqbench.self_trained import SelfTrained
from uqbench.stacked import (
    State,
    flattened,
    jacobian_products,
    stacked_buffers,
    stacked_parameters,
    unflattened,
)
from uqbench.streamed import in_batches
from uqbench.training import Extras, mean_loss, train_ensemble
from uqbench.tuning import Grid, best_on_grid


@dataclass(frozen=True)
class BayesianDeepEnsemble(SelfTrained):
    """Networks trained with a fixed random function added, so that they sample a GP posterior.

    Member m is κ(f(x, θ_m) + δ_m(x)) with δ_m(x) = J(x, θ₀_m) θ̃_m: J is the Jacobian at the
    member's initialisation θ₀_m, θ̃_m an independent draw from the distribution of the
    initialisation with the last layer's part set to 0. At initialisation the members sample, for
    wide networks, a GP with the NTK as its covariance; training keeps them samples of its
    posterior. It minimises the negative log likelihood, Σ_i (y_i − f − δ)²/2σ² in regression and
    the cross-entropy of the logits κ(f + δ) in classification, plus ½‖θ − θ₀‖²_Λ with Λ the
    inverse variances of the initialisation (in place of the recipe's weight decay).

    Regression: κ = 1, σ is the likelihood's noise, and the variance of y is the members' unbiased
    variance + σ². Classification: moments of the members' softmax. σ or κ has the lowest validation
    NLL on its grid, whose candidates are trained as one batched program.

    members: M.
    noise_grid: candidates of σ (regression); scale_grid: of κ (classification).
    prior_variance: of every parameter in the penalty, in place of the initialisation's.
    observation_noise: whether σ² is part of the variance of y. The NUQLS paper's Table 8 leaves it
    out and weighs the penalty by n: ``noise_grid`` = [√n], ``prior_variance`` = 1 give its RMSE.
    Its variances are larger: there a broadcast over the batch trains f with the mean of δ in the
    place of δ.
    The other settings, where given, replace the problem's training recipe.
    """

    members: Annotated[int, Field(ge=2)] = 10
    noise_grid: Grid = (0.03, 0.1, 0.3, 1.0)
    scale_grid: Grid = (1.0, 3.0, 10.0, 30.0)
    prior_variance: PositiveFloat | None = None
    observation_noise: bool = True

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        regression = data.task is Task.REGRESSION
        name, grid = ("noise", self.noise_grid) if regression else ("scale", self.scale_grid)
        template = with_outputs(network, data.num_outputs, data.train.inputs).eval()
        with context.tuning(len(grid), share=1 - 1 / len(grid)):
            ensembles = self._ensembles(grid, template, problem, data, context)
            candidates = dict(zip(grid, ensembles, strict=True))
            if regression:
                for noise, ensemble in candidates.items():
                    ensemble.noise_variance = noise * noise
            chosen = best_on_grid(
                f"bde.{name}_grid", grid, lambda value: validation_nll(candidates[value], data)
            )
        posterior = candidates[chosen]
        posterior.tuned[name] = chosen
        if not self.observation_noise:
            posterior.noise_variance = 0.0
        return posterior

    def _ensembles(
        self,
        grid: Sequence[float],
        template: nn.Module,
        problem: Problem,
        data: TrainingData,
        context: Context,
    ) -> list[PerturbedNetworks]:
        """Train an ensemble for every candidate of ``grid`` from the same draws, all at once."""
        regression = data.task is Task.REGRESSION
        of_starts, of_draws, of_batches = context.seeds(3, self.members)
        starts, draws = (
            [initialise(copy.deepcopy(template), problem.network, seed) for seed in seeds]
            for seeds in (of_starts, of_draws)
        )
        points, tangents = stacked_parameters(starts), _without_last_layer(draws, data.train.inputs)
        perturbations = torch.cat(
            [
                jacobian_products(template, points, tangents, rows)
                for rows in in_batches(data.train.inputs)
            ],
            1,
        )
        repeats = len(grid)
        candidates = points.new_tensor(grid).repeat_interleave(self.members)
        trained = train_ensemble(
            starts * repeats,
            data.train,
            self.recipe(problem, weight_decay=0.0),
            mean_loss(data.task),
            of_batches * repeats,
            context.progress,
            Extras(
                offsets=perturbations.repeat(repeats, 1, 1),
                scales=None if regression else candidates,
                # the regression objective times 2σ²/n is the mean squared error plus
                # σ²/n ‖θ − θ₀‖²_Λ: its steps are as large as those of the problem's own training
                penalty=DistanceToStart(
                    unflattened(template, points.repeat(repeats, 1)),
                    self._precisions(template, problem),
                    (candidates.square() if regression else torch.full_like(candidates, 0.5))
                    / len(data.train),
                ),
            ),
        )
        return [
            PerturbedNetworks(
                template,
                trained[g * self.members : (g + 1) * self.members],
                points,
                tangents,
                data.task,
                scale=1.0 if regression else candidate,
            )
            for g, candidate in enumerate(grid)
        ]

    def _precisions(self, network: nn.Module, problem: Problem) -> dict[str, float]:
        """Λ, one number for each parameter; those whose initial value is fixed are left out."""
        variances = prior_variances(network, problem.network)
        if self.prior_variance is not None:
            variances = dict.fromkeys(variances, self.prior_variance)
        return {name: 1 / variance for name, variance in variances.items() if variance}


@dataclass(frozen=True)
class DistanceToStart:
    """The penalty factor_m ‖θ_m − θ₀_m‖²_Λ: starts by name, Λ by name, factors (M,)."""

    starts: State
    precisions: Mapping[str, float]
    factors: Tensor

    def __call__(self, stacks: State, members: slice) -> Tensor:
        distances = [
            precision * (stacks[name] - self.starts[name][members]).square().flatten(1).sum(1)
            for name, precision in self.precisions.items()
        ]
        return self.factors[members] * torch.stack(distances).sum(0)


class PerturbedNetworks(SampledNetworks):
    """The members κ(f(x, θ_m) + J(x, θ₀_m) θ̃_m); points θ₀ and tangents θ̃ are (M, p)."""

    def __init__(
        self,
        template: nn.Module,
        members: Sequence[nn.Module],
        points: Tensor,
        tangents: Tensor,
        task: Task,
        scale: float,
    ) -> None:
        super().__init__(template, stacked_parameters(members), task, stacked_buffers(members))
        self.points = points
        self.tangents = tangents
        self.output_scale = scale
        # a forward pass, and a Jacobian product of about two
        self.forward_passes = 3 * len(members)

    def sampled_outputs(self, inputs: Tensor) -> Iterator[Tensor]:
        perturbations = jacobian_products(self.network, self.points, self.tangents, inputs)
        start = 0
        for outputs in super().sampled_outputs(inputs):
            added = perturbations[start : start + len(outputs)]
            yield self.output_scale * (outputs + added)
            start += len(outputs)


def _without_last_layer(networks: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """The networks' parameters (M, p), those of the last linear layer set to 0."""
    stacks = unflattened(networks[0], stacked_parameters(networks))
    name, layer = last_linear(networks[0], inputs)
    for parameter, _ in layer.named_parameters():
        stack = stacks.get(f"{name}.{parameter}" if name else parameter)
        if stack is not None:
            stack.zero_()
    return flattened(stacks)

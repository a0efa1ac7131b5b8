"""What the Laplace approximations have in common: their covariance, and the choice of σ and λ."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.laplace_covariance import FunctionalCovariance, functional_covariance
from uqbench.method import Method, Posterior, Task
from uqbench.networks import as_matrix, last_linear
from uqbench.problems import Problem
from uqbench.tuning import Grid, best_on_grid, log_grid

PAPER_GRID = log_grid(1e-2, 1e2, 10)


@dataclass(frozen=True)
class FittedLaplace:
    """N(θ̂, Σ) but for the prior precision: the network with its θ̂, Σ as a function of λ and σ.

    noise: σ, 1 in classification.
    """

    network: nn.Module
    covariance: FunctionalCovariance
    noise: float
    data: TrainingData


@dataclass(frozen=True)
class Laplace(Method):
    """Base of the methods with θ ~ N(θ̂, Σ) around the MAP network (Σ: uqbench.laplace_covariance).

    In regression the noise σ maximises the validation likelihood of the MAP network on
    ``noise_grid``; then the prior precision λ minimises a subclass's score on ``prior_grid``.

    structure, subset: of Σ, as the methods' own docstrings say. samples: S, in predictions.
    """

    name: ClassVar[str]
    """The method's registered name, for the errors of its settings."""

    structure: Literal["full", "kron", "diag"] = "full"
    subset: Literal["all", "last_layer"] = "all"
    noise_grid: Grid = PAPER_GRID
    prior_grid: Grid = PAPER_GRID
    samples: Annotated[int, Field(ge=2)] = 1000

    def import_libraries(self) -> None:
        if self.structure == "kron":
            import_module("uqbench.laplace_kronecker")

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        if self.subset == "last_layer":
            network = with_last_layer_trainable(network, data.train.inputs)
        noise, tuned = 1.0, {}
        if data.task is Task.REGRESSION:
            with context.tuning(len(self.noise_grid)):
                noise = tuned["noise"] = self._likeliest_noise(network, data.validation)
        if self.structure == "kron":
            from uqbench.laplace_kronecker import KroneckerCovariance

            covariance = KroneckerCovariance(network, data.train, data.task)
        else:
            covariance = functional_covariance(self.structure, network, data.train, data.task)
        fitted = FittedLaplace(network, covariance, noise, data)
        with context.tuning(len(self.prior_grid)), torch.no_grad():
            score = self.validation_score(fitted, context)
            prior = best_on_grid(f"{self.name}.prior_grid", self.prior_grid, score)
        tuned["prior_precision"] = prior
        posterior = self.posterior(fitted, prior, context)
        posterior.tuned = tuned
        return posterior

    @abstractmethod
    def validation_score(self, fitted: FittedLaplace, context: Context) -> Callable[[float], float]:
        """Return the score of a λ of ``prior_grid``; lower is better.

        Both are called under ``no_grad``.
        """

    @abstractmethod
    def posterior(self, fitted: FittedLaplace, prior: float, context: Context) -> Posterior:
        """Return the posterior with the λ that was chosen."""

    @torch.no_grad()
    def _likeliest_noise(self, network: nn.Module, validation: Split) -> float:
        errors = (as_matrix(network(validation.inputs)).squeeze(-1) - validation.targets).double()
        mean_square = errors.square().mean().item()
        return best_on_grid(
            f"{self.name}.noise_grid",
            self.noise_grid,
            lambda noise: math.log(noise) + mean_square / (2 * noise**2),
        )


def with_last_layer_trainable(network: nn.Module, inputs: Tensor) -> nn.Module:
    """Return a copy of ``network`` in which only the last linear layer requires gradients.

    inputs: (N, ...), of which one is tried out.
    """
    copied = copy.deepcopy(network).requires_grad_(False)
    last_linear(copied, inputs)[1].requires_grad_(True)
    return copied

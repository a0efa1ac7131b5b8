"""The Laplace approximation without linearising (MacKay 1992; Daxberger et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, nn

from uqbench.calibration import validation_nll
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.laplace import Laplace
from uqbench.laplace_covariance import FunctionalCovariance
from uqbench.method import Posterior, Task
from uqbench.networks import trainable
from uqbench.sampled_posterior import SampledNetworks
from uqbench.tuning import Grid, log_grid

TUNING_SAMPLES = 100
PRIOR_GRID = log_grid(1e-2, 1e4, 13)
"""Two values for each factor of 10."""


@dataclass(frozen=True)
class SampledLaplace(Laplace):
    """Laplace's approximation to the posterior of the weights, run through the network itself.

    θ_s ~ N(θ̂, Σ), s = 1..S, with Σ and its structures, subsets and noise σ exactly as in ``lla``.
    Classification: the moments of the softmax of f(θ_s, ·). Regression: the mean of f(θ_s, ·), and
    their unbiased variance + σ². λ minimises the validation NLL of this prediction (with at most
    100 samples): unlike LLA's, its mean depends on λ, of which an ECE would take no notice.

    ``prior_grid`` reaches further than LLA's: only a narrow posterior keeps to where the network
    is near enough to linear, and a wide one underfits.

    samples: S; S × p numbers are held.
    """

    name: ClassVar[str] = "la"

    prior_grid: Grid = PRIOR_GRID

    def validation_score(
        self,
        network: nn.Module,
        covariance: FunctionalCovariance,
        noise: float,
        data: TrainingData,
        context: Context,
    ) -> Callable[[], float]:
        count = min(self.samples, TUNING_SAMPLES)
        seed = torch.randint(2**62, (), generator=context.generator, device=context.device).item()

        def score() -> float:
            # the same draws for every λ, so that the scores differ by λ alone
            generator = Generator(context.device).manual_seed(seed)
            sampled = self._networks(network, covariance, noise, data.task, count, generator)
            return validation_nll(sampled, data)

        return score

    def posterior(
        self,
        network: nn.Module,
        covariance: FunctionalCovariance,
        data: TrainingData,
        tuned: dict[str, float],
        context: Context,
    ) -> Posterior:
        noise = tuned.get("noise", 1.0)
        posterior = self._networks(
            network, covariance, noise, data.task, self.samples, context.generator
        )
        posterior.tuned = tuned
        return posterior

    @torch.no_grad()
    def _networks(
        self,
        network: nn.Module,
        covariance: FunctionalCovariance,
        noise: float,
        task: Task,
        count: int,
        generator: Generator,
    ) -> SampledNetworks:
        mean = torch.cat([parameter.flatten() for parameter in trainable(network).values()])
        samples = mean + covariance.sample(count, generator)
        posterior = SampledNetworks(network, samples, task)
        if task is Task.REGRESSION:
            posterior.noise_variance = noise**2
        return posterior

"""The Laplace approximation without linearising (MacKay 1992; Daxberger et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from uqbench.calibration import validation_nll
from uqbench.context import Context
from uqbench.laplace import FittedLaplace, Laplace
from uqbench.laplace_covariance import Draws
from uqbench.method import Task
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

    def validation_score(self, fitted: FittedLaplace, context: Context) -> Callable[[float], float]:
        # the same draws for every λ, so that the scores differ by λ alone
        generator = Generator(context.device).manual_seed(context.seeds(1)[0])
        draws = fitted.covariance.draws(min(self.samples, TUNING_SAMPLES), generator)
        return lambda prior: validation_nll(_networks(fitted, draws, prior), fitted.data)

    def posterior(self, fitted: FittedLaplace, prior: float, context: Context) -> SampledNetworks:
        draws = fitted.covariance.draws(self.samples, context.generator)
        return _networks(fitted, draws, prior)


@torch.no_grad()
def _networks(fitted: FittedLaplace, draws: Draws, prior: float) -> SampledNetworks:
    mean = torch.cat([parameter.flatten() for parameter in trainable(fitted.network).values()])
    samples = mean + draws(prior, fitted.noise)
    posterior = SampledNetworks(fitted.network, samples, fitted.data.task)
    if fitted.data.task is Task.REGRESSION:
        posterior.noise_variance = fitted.noise**2
    return posterior

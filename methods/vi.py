"""Mean-field variational inference: Bayes by Backprop (Blundell et al. 2015)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from uqbench.calibration import validation_nll
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.linearised import num_parameters
from uqbench.method import Posterior, Task
from uqbench.networks import dtype_of, isolated_randomness
from uqbench.problems import Problem
from uqbench.sampled_posterior import SampledNetworks
from uqbench.self_trained import SelfTrained
from uqbench.training import Extras, mean_loss, train_ensemble
from uqbench.tuning import Grid, best_on_grid
from uqbench.variational import MeanFieldNetwork, divergence, require_supported


@dataclass(frozen=True)
class VariationalInference(SelfTrained):
    """The Gaussian q(θ) = N(μ, diag s²) that maximises the evidence lower bound (ELBO).

    What is minimised is −ELBO/n = (1/n) Σ_i E_q[−log p(y_i | x_i, θ)] + KL(q ‖ p)/n with the prior
    p(θ) = N(prior_mu, prior_sigma² I) and s = log(1 + e^ρ). Each step draws one θ, in the layers
    that bayesian-torch puts in the network's place. The KL is the sum over all weights
    (bayesian-torch's own is the mean over each tensor's, which all but removes the prior), and
    stands in the place of the recipe's weight decay.

    Classification: cross-entropy, and the moments of the samples' softmax. Regression: y is
    N(f(x, θ), σ²); variance of y = the samples' unbiased variance + σ². The ELBO is maximised for
    each σ of ``noise_grid``, and the σ with the lowest validation NLL is taken. (A σ that maximises
    the ELBO as well leaves networks underfitted: a mean-field q pays little KL for saying that all
    is noise.) Of the time of the G trainings, one G-th counts as fit and the rest as tuning.

    posterior_mu, posterior_rho: μ and ρ start at these, with standard deviation 0.1.
    samples: S, drawn once after the training. S·p numbers are kept.
    The other settings, where given, replace the problem's training recipe.
    """

    prior_mu: float = 0.0
    prior_sigma: PositiveFloat = 1.0
    posterior_mu: float = 0.0
    posterior_rho: float = -3.0
    noise_grid: Grid = (0.03, 0.1, 0.3, 1.0)
    samples: Annotated[int, Field(ge=2)] = 100

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        network = copy.deepcopy(network).eval()
        require_supported(network, data.train.inputs)
        seeds = context.seeds(2)
        draws = torch.randn(
            self.samples,
            num_parameters(network),
            generator=context.generator,
            device=context.device,
            dtype=dtype_of(network),
        )
        n = len(data.train)
        if data.task is Task.CLASSIFICATION:
            (trained,) = self.train(problem, data, network, [1 / n], seeds, context)
            return SampledNetworks(network, trained.sampled(draws), data.task)
        grid = self.noise_grid
        with context.tuning(len(grid), share=1 - 1 / len(grid)):
            # −2σ² ELBO/n is the mean squared error plus 2σ² KL/n, up to a constant: its steps are
            # as large as those of the problem's own training, whatever σ is
            weights = [2 * noise * noise / n for noise in grid]
            trained = self.train(problem, data, network, weights, seeds, context)

            def posterior(noise: float) -> SampledNetworks:
                samples = trained[grid.index(noise)].sampled(draws)
                sampled = SampledNetworks(network, samples, data.task, tuned={"noise": noise})
                sampled.noise_variance = noise**2
                return sampled

            noise = best_on_grid(
                "vi.noise_grid", grid, lambda noise: validation_nll(posterior(noise), data)
            )
            return posterior(noise)

    def train(
        self,
        problem: Problem,
        data: TrainingData,
        network: nn.Module,
        weights: Sequence[float],
        seeds: Sequence[int],
        context: Context,
    ) -> list[MeanFieldNetwork]:
        """Minimise the mean loss + w · KL for each w of ``weights``, from the same start.

        seeds: of the start, and of the batches and draws.
        """
        with isolated_randomness(seeds[0]):
            start = MeanFieldNetwork(network, self._layer_settings())
        factors = torch.tensor(weights, dtype=dtype_of(network), device=context.device)

        def penalty(stacks: Mapping[str, Tensor], members: slice) -> Tensor:
            means, deviations = start.moments(stacks)
            return factors[members] * divergence(means, deviations, self.prior_mu, self.prior_sigma)

        return train_ensemble(
            [start] * len(weights),
            data.train,
            self.recipe(problem, weight_decay=0.0),
            mean_loss(data.task),
            [seeds[1]] * len(weights),
            context.progress,
            Extras(penalty=penalty),
        )

    def _layer_settings(self) -> dict[str, Any]:
        """The settings of a layer in bayesian-torch's words."""
        return {
            "type": "Reparameterization",
            "prior_mu": self.prior_mu,
            "prior_sigma": self.prior_sigma,
            "posterior_mu_init": self.posterior_mu,
            "posterior_rho_init": self.posterior_rho,
            "moped_enable": False,
        }

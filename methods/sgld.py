"""SGLD: stochastic gradient Langevin dynamics (Welling & Teh 2011)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from uqbench.calibration import NOISE_GRID, tune_noise
from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.errors import DivergenceError, UsageError
from uqbench.linearised import largest_ntk_eigenvalue
from uqbench.method import Method, Posterior, Task
from uqbench.problems import Problem
from uqbench.sampled_posterior import SampledNetworks
from uqbench.stacked import StackedNetworks, flattened, stacked_parameters, unflattened
from uqbench.streamed import gathered
from uqbench.threads import threads_for
from uqbench.training import Loss, batch_bounds, cross_entropy, squared_error
from uqbench.tuning import Grid


@dataclass(frozen=True)
class SGLD(Method):
    """Parameters along a Langevin diffusion that starts at the MAP network.

    For the posterior exp(−U(θ)), with minibatches B_t of the n training rows,

        θ ← θ − ½ε_t ∇U_t(θ) + τ N(0, ε_t I),    ε_t = a (b + t)^(−c),    t = 0, 1, …
        U_t(θ) = n mean_{i ∈ B_t} ℓ_i(θ) + ½λ‖θ‖²

    with ℓ = (y − f)²/2σ² (regression) or the cross-entropy. Gradients are those of the network in
    eval mode: the statistics of BatchNorm stay, dropout is off.

    Regression: σ, of ``noise_grid``, has the highest validation likelihood at the MAP network. The
    variance of y is the samples' variance + σ², σ chosen anew with the lowest validation NLL.

    samples: S, of all chains together, at equal distances along the steps after burn-in; fewer if
    there are fewer steps.
    epochs, batch_size: of each chain. burn_in: the part of the steps that is discarded.
    chains: how many run at once, as one batched program.
    a, b, c: of the step sizes. No a: ε_0 = (|B|/n)/λ_max, with λ_max (a bound on) the largest
    eigenvalue of the Gauss-Newton Hessian of U at the MAP network; then the noise of the minibatch
    adds at most about a quarter to the variance that the injected noise gives.
    prior_precision: λ; none given: that of which the MAP network's weight decay is the gradient,
    n·decay (classification) or n·decay/2σ² (regression, trained on the mean squared error).
    noise_factor: τ. Only with 1 is exp(−U) the stationary distribution, as the step size goes to
    0; a smaller one samples a narrower one, exp(−U/τ²). The NUQLS paper's 10⁻³ belongs to a
    formulation without n, where it stands for τ = 10⁻³ √n.
    """

    samples: Annotated[int, Field(ge=2)] = 100
    epochs: PositiveInt = 100
    batch_size: NonNegativeInt = 100
    burn_in: Annotated[float, Field(ge=0, lt=1)] = 0.5
    chains: PositiveInt = 1
    a: PositiveFloat | None = None
    b: PositiveFloat = 1000.0
    c: NonNegativeFloat = 0.55
    prior_precision: NonNegativeFloat | None = None
    noise_factor: NonNegativeFloat = 1.0
    noise_grid: Grid = NOISE_GRID

    def __post_init__(self) -> None:
        if self.samples % self.chains:
            raise ValueError(
                f"samples must be a multiple of chains, got {self.samples} and {self.chains}"
            )

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        energy = self._energy(problem, data, network, context)
        a = self.a or self._stable_a(network, data.train, energy)
        samples = self._sample(network, data.train, energy, a, context)
        posterior = SampledNetworks(network, samples, data.task)
        posterior.tuned = {"a": a, "prior_precision": energy.prior_precision}
        if data.task is Task.REGRESSION:
            tune_noise(posterior, data, context, "sgld.noise_grid", self.noise_grid)
        return posterior

    def _energy(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Energy:
        loss, factor, curvature = cross_entropy, float(len(data.train)), 0.5
        if data.task is Task.REGRESSION:
            at_map = SampledNetworks(network, stacked_parameters([network]), data.task)
            tune_noise(at_map, data, context, "sgld.noise_grid", self.noise_grid)
            factor /= 2 * at_map.noise_variance
            loss, curvature = squared_error, 2.0
        prior = self.prior_precision
        if prior is None:
            prior = factor * problem.training.weight_decay
        return Energy(loss, factor, curvature, prior)

    def _stable_a(self, network: nn.Module, split: Split, energy: Energy) -> float:
        largest = energy.factor * energy.curvature * largest_ntk_eigenvalue(network, split.inputs)
        rows = min(self.batch_size or len(split), len(split))
        return rows / len(split) / ((largest + energy.prior_precision) or 1.0) / self._decay(0)

    def _decay(self, step: int) -> float:
        """(b + t)^(−c)."""
        try:
            decay = (self.b + step) ** -self.c
        except OverflowError:
            decay = math.inf
        if not 0 < decay < math.inf:
            raise UsageError(f"sgld.b and sgld.c: (b + {step})^(−c) is {decay:g}; set a smaller c")
        return decay

    @torch.enable_grad()
    def _sample(
        self, network: nn.Module, split: Split, energy: Energy, a: float, context: Context
    ) -> Tensor:
        """Return the samples (S, p)."""
        networks = StackedNetworks(network)
        start = stacked_parameters([network]).repeat(self.chains, 1)
        state = unflattened(network, start)
        state = {name: stack.clone().requires_grad_() for name, stack in state.items()}
        parameters = list(state.values())
        bounds = batch_bounds(len(split), self.batch_size)
        kept, samples = self._kept(self.epochs * len(bounds)), []
        rows = self.chains * (bounds[0][1] - bounds[0][0])
        with threads_for(rows * sum(math.prod(stack.shape[1:-1]) for stack in parameters)):
            for step, (inputs, targets) in enumerate(self._batches(split, bounds, context)):
                size = a * self._decay(step)
                losses = energy.loss(networks(state, inputs, shared=False), targets)
                gradients = torch.autograd.grad(
                    energy.factor * losses.sum(), parameters, materialize_grads=True
                )
                self._step(parameters, gradients, size, energy.prior_precision, context.generator)
                if step in kept:
                    samples.append(flattened(state).detach())
                if (step + 1) % len(bounds) == 0:
                    if not math.isfinite(losses.sum().item()):
                        raise DivergenceError(
                            f"sgld: the loss is not finite at step {step + 1} (ε = {size:.2g}); "
                            f"set a smaller sgld.a than {a:.2g}"
                        )
                    context.progress("sampling", (step + 1) // len(bounds), self.epochs)
        return torch.cat(samples)

    @torch.no_grad()
    def _step(
        self,
        parameters: list[Tensor],
        gradients: Sequence[Tensor],
        size: float,
        prior_precision: float,
        generator: torch.Generator,
    ) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            noise = torch.randn(
                parameter.shape,
                generator=generator,
                dtype=parameter.dtype,
                device=parameter.device,
            )
            parameter.mul_(1 - size / 2 * prior_precision).sub_(gradient, alpha=size / 2)
            parameter.add_(noise, alpha=self.noise_factor * math.sqrt(size))

    def _kept(self, steps: int) -> range:
        """The steps, counted from 0, after which every chain gives a sample."""
        first = math.floor(self.burn_in * steps)
        if self.chains * (steps - first) < 2:
            raise UsageError(f"sgld.epochs: {steps} steps leave no two samples after burn-in")
        each = self.samples // self.chains
        thinning = max((steps - first) // each, 1)
        return range(steps - 1, first - 1, -thinning)[:each]

    def _batches(
        self, split: Split, bounds: list[tuple[int, int]], context: Context
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of all epochs: inputs (M, B, ...), targets (M, B) of M chains."""
        rows = torch.arange(len(split), device=context.device).expand(self.chains, -1)
        for _ in range(self.epochs):
            if len(bounds) > 1:
                keys = torch.rand(rows.shape, generator=context.generator, device=context.device)
                rows = keys.argsort(1)
            batches = [rows[:, first:last] for first, last in bounds]
            for batch, inputs in zip(batches, gathered(split.inputs, batches), strict=True):
                yield inputs, split.targets[batch]


@dataclass(frozen=True)
class Energy:
    """U(θ) = factor · (mean loss over the training rows) + ½ prior_precision ‖θ‖².

    curvature: (a bound on) the second derivative of the loss in the network's output.
    """

    loss: Loss
    factor: float
    curvature: float
    prior_precision: float

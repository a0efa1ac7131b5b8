"""The linearised Laplace approximation (Immer, Korzepa & Bauer 2021; Daxberger et al. 2021)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.laplace_covariance import FunctionalCovariance, functional_covariance
from uqbench.method import Method, Posterior, Task
from uqbench.networks import as_matrix, dtype_of, last_linear
from uqbench.prediction import ClassificationMoments, Prediction, RegressionPrediction
from uqbench.problems import Problem
from uqbench.tuning import Grid, best_on_grid, log_grid

SAMPLES_AT_A_TIME = 100


PAPER_GRID = log_grid(1e-2, 1e2, 10)
LAST_LAYER_GRID = log_grid(1e-2, 1e2, 20)


@dataclass(frozen=True)
class LinearisedLaplace(Method):
    """Laplace's approximation to the posterior of the linearised network, GLM predictive.

    Σ = (Σ_i J_iᵀ H_i J_i + λI)⁻¹ with H = 1/σ² (regression) or diag(p) − ppᵀ (classification).
    Regression: mean f, variance JΣJᵀ + σ²; σ maximises the validation likelihood of f on
    ``noise_grid``, then λ minimises the validation ECE on ``prior_grid``.
    Classification: logits N(f, JΣJᵀ), ``samples`` draws; λ minimises the validation NLL under the
    probit approximation.

    structure: of the precision matrix: ``full`` (in function space where nC < p), ``kron``
    (Kronecker factors, laplace-torch) or ``diag``.
    subset: whether all weights or those of the last linear layer are uncertain.
    observation_noise: whether σ² is part of the variance of y, as the definition has it. The code
    behind the NUQLS paper leaves it out (and tunes λ without it): false gives the paper's numbers.
    """

    deterministic: ClassVar[frozenset[Task]] = frozenset({Task.REGRESSION})

    structure: Literal["full", "kron", "diag"] = "full"
    subset: Literal["all", "last_layer"] = "all"
    noise_grid: Grid = PAPER_GRID
    prior_grid: Grid = PAPER_GRID
    samples: Annotated[int, Field(ge=2)] = 1000
    observation_noise: bool = True

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        if self.subset == "last_layer":
            network = with_last_layer_trainable(network)
        if self.structure == "kron":
            from uqbench.laplace_kronecker import KroneckerCovariance

            covariance = KroneckerCovariance(network, data.train, data.task)
        else:
            covariance = functional_covariance(self.structure, network, data.train, data.task)
        noise = 1.0
        if data.task is Task.REGRESSION:
            with context.tuning(len(self.noise_grid)):
                noise = self._likeliest_noise(network, data.validation)
        with context.tuning(len(self.prior_grid)):
            prior = self._best_prior(network, covariance, data, noise)
        covariance.update(prior, noise)
        draws = torch.randn(
            self.samples,
            data.num_outputs,
            generator=context.generator,
            device=context.device,
            dtype=dtype_of(network),
        )
        tuned = {"prior_precision": prior}
        if data.task is Task.REGRESSION:
            tuned["noise"] = noise
        added = self._added_variance(noise)
        return LinearisedLaplacePosterior(network, covariance, data.task, draws, added, tuned)

    def _added_variance(self, noise: float) -> float:
        return noise**2 if self.observation_noise else 0.0

    @torch.no_grad()
    def _likeliest_noise(self, network: nn.Module, validation: Split) -> float:
        errors = (as_matrix(network(validation.inputs)).squeeze(-1) - validation.targets).double()
        mean_square = errors.square().mean().item()
        return best_on_grid(
            "lla.noise_grid",
            self.noise_grid,
            lambda noise: math.log(noise) + mean_square / (2 * noise**2),
        )

    @torch.no_grad()
    def _best_prior(
        self, network: nn.Module, covariance: FunctionalCovariance, data: TrainingData, noise: float
    ) -> float:
        from uqbench.metrics import classification, regression

        outputs = as_matrix(network(data.validation.inputs)).double()
        targets = data.validation.targets.cpu().numpy()
        prepared = covariance.at(data.validation.inputs)
        added = self._added_variance(noise)

        def score(prior: float) -> float:
            covariance.update(prior, noise)
            variance = prepared.covariance().diagonal(dim1=1, dim2=2).double()
            if not variance.isfinite().all():
                return math.nan
            if data.task is Task.REGRESSION:
                mean, variance = outputs.squeeze(-1), variance.squeeze(-1) + added
                return regression.ece(targets, mean.cpu().numpy(), variance.cpu().numpy())
            probit = (outputs / (1 + math.pi / 8 * variance).sqrt()).softmax(-1)
            return classification.nll(probit.cpu().numpy(), targets)

        return best_on_grid("lla.prior_grid", self.prior_grid, score)


@dataclass(frozen=True)
class LastLayerLaplace(LinearisedLaplace):
    """LLA over the last layer alone, with Kronecker factors: LLA* of the NUQLS paper.

    The definition and the other settings are those of ``lla``.
    """

    structure: Literal["full", "kron", "diag"] = "kron"
    subset: Literal["all", "last_layer"] = "last_layer"
    prior_grid: Grid = LAST_LAYER_GRID


class LinearisedLaplacePosterior(Posterior):
    """N(f(x), J(x)ΣJ(x)ᵀ) for the outputs at x, plus ``noise_variance`` for y.

    draws: (S, C) standard normals; every input uses the same ones, so batches do not matter.
    """

    def __init__(
        self,
        network: nn.Module,
        covariance: FunctionalCovariance,
        task: Task,
        draws: Tensor,
        noise_variance: float,
        tuned: dict[str, float],
    ) -> None:
        self.network = network
        self.task = task
        self.draws = draws
        self.noise_variance = noise_variance
        self.tuned = tuned
        # a forward pass, and a Jacobian of about two passes for each output
        self.forward_passes = 1 + 2 * draws.shape[1]
        self._covariance = covariance

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        outputs = as_matrix(self.network(inputs))
        covariance = self._covariance.at(inputs).covariance()
        if self.task is Task.REGRESSION:
            variance = covariance.view(-1) + self.noise_variance
            return RegressionPrediction(outputs.squeeze(-1), variance)
        # the symmetric root exists where rounding leaves the covariance singular
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)) @ vectors.mT
        moments = ClassificationMoments()
        for draws in self.draws.split(SAMPLES_AT_A_TIME):
            moments.update(outputs + torch.einsum("ncd,sd->snc", root, draws))
        return moments.prediction()


def with_last_layer_trainable(network: nn.Module) -> nn.Module:
    """Return a copy of ``network`` in which only the last linear layer requires gradients."""
    copied = copy.deepcopy(network).requires_grad_(False)
    last_linear(copied)[1].requires_grad_(True)
    return copied

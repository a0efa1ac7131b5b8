"""The linearised Laplace approximation (Immer, Korzepa & Bauer 2021; Daxberger et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from uqbench.context import Context
from uqbench.laplace import FittedLaplace, Laplace
from uqbench.linearised import CHUNK_BYTES
from uqbench.method import Posterior, Task
from uqbench.networks import as_matrix, dtype_of, outputs_at
from uqbench.prediction import (
    ClassificationMoments,
    Prediction,
    RegressionPrediction,
    concatenate,
)
from uqbench.tuning import Grid, log_grid

LAST_LAYER_GRID = log_grid(1e-2, 1e2, 20)


@dataclass(frozen=True)
class LinearisedLaplace(Laplace):
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

    name: ClassVar[str] = "lla"
    deterministic: ClassVar[frozenset[Task]] = frozenset({Task.REGRESSION})

    observation_noise: bool = True

    def posterior(
        self, fitted: FittedLaplace, prior: float, context: Context
    ) -> LinearisedLaplacePosterior:
        draws = torch.randn(
            self.samples,
            fitted.data.num_outputs,
            generator=context.generator,
            device=context.device,
            dtype=dtype_of(fitted.network),
        )
        return LinearisedLaplacePosterior(fitted, prior, draws, self._added_variance(fitted))

    def _added_variance(self, fitted: FittedLaplace) -> float:
        return fitted.noise**2 if self.observation_noise else 0.0

    def validation_score(self, fitted: FittedLaplace, context: Context) -> Callable[[float], float]:
        from uqbench.metrics import classification, regression

        validation = fitted.data.validation
        outputs = outputs_at(fitted.network, validation.inputs).double()
        targets = validation.targets.cpu().numpy()
        found = fitted.covariance.variances(validation.inputs, self.prior_grid, fitted.noise)
        variances = dict(zip(self.prior_grid, found.double(), strict=True))

        def score(prior: float) -> float:
            variance = variances[prior]
            if not variance.isfinite().all():
                return math.nan
            if fitted.data.task is Task.REGRESSION:
                mean, variance = outputs.view(-1), variance.view(-1) + self._added_variance(fitted)
                return regression.ece(targets, mean.cpu().numpy(), variance.cpu().numpy())
            probit = (outputs / (1 + math.pi / 8 * variance).sqrt()).softmax(-1)
            return classification.nll(probit.cpu().numpy(), targets)

        return score


@dataclass(frozen=True)
class LastLayerLaplace(LinearisedLaplace):
    """LLA over the last layer alone, with Kronecker factors: LLA* of the NUQLS paper.

    The definition and the other settings are those of ``lla``.
    """

    name: ClassVar[str] = "lla_last"

    structure: Literal["full", "kron", "diag"] = "kron"
    subset: Literal["all", "last_layer"] = "last_layer"
    prior_grid: Grid = LAST_LAYER_GRID


class LinearisedLaplacePosterior(Posterior):
    """N(f(x), J(x)ΣJ(x)ᵀ) for the outputs at x, plus ``noise_variance`` for y.

    draws: (S, C) standard normals; every input uses the same ones, so batches do not matter.
    """

    def __init__(
        self, fitted: FittedLaplace, prior_precision: float, draws: Tensor, noise_variance: float
    ) -> None:
        self.network = fitted.network
        self.task = fitted.data.task
        self.draws = draws
        self.noise_variance = noise_variance
        # a forward pass, and a Jacobian of about two passes for each output
        self.forward_passes = 1 + 2 * draws.shape[1]
        self._covariance = fitted.covariance
        self._prior_precision, self._noise = prior_precision, fitted.noise

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        # a covariance takes C² numbers for each input, and the draws S·C
        numbers = self.draws.shape[1] * max(self.draws.shape)
        chunks = inputs.split(max(CHUNK_BYTES // (numbers * self.draws.element_size()), 1))
        return concatenate(map(self._predict, chunks), len(inputs))

    def _predict(self, inputs: Tensor) -> Prediction:
        outputs = as_matrix(self.network(inputs))
        covariance = self._covariance.at(inputs, self._prior_precision, self._noise)
        if self.task is Task.REGRESSION:
            variance = covariance.view(-1) + self.noise_variance
            return RegressionPrediction(outputs.squeeze(-1), variance)
        # the symmetric root exists where rounding leaves the covariance singular
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)) @ vectors.mT
        moments = ClassificationMoments()
        moments.update(outputs + torch.einsum("ncd,sd->snc", root, self.draws))
        return moments.prediction()

"""SNGP: the spectral-normalised neural Gaussian process (Liu et al. 2020)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from uqbench.calibration import NOISE_GRID
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.method import Posterior, Task
from uqbench.networks import initialise, isolated_randomness
from uqbench.prediction import ClassificationMoments, Prediction, RegressionPrediction
from uqbench.problems import Problem
from uqbench.random_features import RandomFeatureNetwork, features_in_batches
from uqbench.self_trained import SelfTrained
from uqbench.spectral_normalisation import bound_spectral_norms, keep_bounded_weights
from uqbench.training import mean_loss, train
from uqbench.tuning import Grid, best_on_grid

SAMPLES_AT_A_TIME = 100


@dataclass(frozen=True)
class SNGP(SelfTrained):
    """A Gaussian process on what the network's layers before the last make of the input.

    The last linear layer is replaced by D random Fourier features φ(x) = √(2/D) cos(Wh(x)/l + b) of
    its input h(x), whose inner products approximate the kernel exp(−‖h − h′‖²/2l²), and by output
    weights β without a bias. Spectral normalisation keeps the norms of the layers before it at c or
    less, so that h keeps something of the inputs' distances. All are trained as the problem's
    recipe says. Then, with Φ the features of the whole training split and the prior β_k ~
    N(0, I/ridge) of each output:

    Regression: Bayesian linear regression. y = φᵀβ + N(0, σ²), Σ = (ΦᵀΦ/σ² + ridge I)⁻¹; mean of y
    φᵀΣΦᵀy/σ² (the trained β is not used), variance φᵀΣφ + σ²; σ of ``noise_grid`` with the lowest
    validation NLL.
    Classification: logit k is N(φᵀβ_k, φᵀΣ_kφ) with the trained β; moments of the softmax of
    ``samples`` draws. Σ_k = (Σ_i w_ik φ_i φ_iᵀ + ridge I)⁻¹ with w = 1 if ``likelihood`` is
    "gaussian", as in the code of Liu et al. and in lightning-uq-box, and w = p_ik(1 − p_ik), p the
    softmax, if it is "softmax", as in Liu et al.'s equation 9: that variance is large where the
    network is unsure, not where the training data are far.

    (lightning-uq-box's own SNGP, which the NUQLS paper runs, has a kernel of variance D/8 and l = 1
    on h projected to 128 numbers of variance 1, and sums φφᵀ while the network still changes.)

    spectral_norm: c. random_features: D. ridge: the kernel's variance is its inverse.
    normalise: whether h is shifted to mean 0 and scaled to length 1, by which it keeps directions
    but not distances in them. length_scale: l.
    The other settings, where given, replace the problem's training recipe.
    """

    libraries: ClassVar[tuple[str, ...]] = ("lightning_uq_box.uq_methods",)

    spectral_norm: PositiveFloat = 0.95
    random_features: PositiveInt = 1024
    normalise: bool = True
    length_scale: PositiveFloat = 0.5
    ridge: PositiveFloat = 1.0
    likelihood: Literal["gaussian", "softmax"] = "gaussian"
    noise_grid: Grid = NOISE_GRID
    samples: Annotated[int, Field(ge=2)] = 1000
    weight_decay: NonNegativeFloat | None = None

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        trained = self.train(problem, data, network, context)
        if data.task is Task.REGRESSION:
            return self._regression(trained, data, context)
        draws = torch.randn(
            self.samples,
            1,
            data.num_outputs,
            generator=context.generator,
            device=context.device,
            dtype=torch.float64,
        )
        values, vectors = eigenvectors(trained, data, self.likelihood)
        weights = trained.output.weight.detach().double().mT
        return SNGPPosterior(trained, weights, vectors, 1 / (values + self.ridge), draws=draws)

    def train(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> RandomFeatureNetwork:
        """Return the trained network, in eval mode, with plain weights whose norms are bounded."""
        seeds = context.seeds(3)
        start = initialise(copy.deepcopy(network), problem.network, seeds[0]).eval()
        with isolated_randomness(seeds[1]):
            start = RandomFeatureNetwork(
                start,
                data.train.inputs,
                self.random_features,
                self.length_scale,
                self.normalise,
            )
            bound_spectral_norms(start.body, self.spectral_norm, data.train.inputs)
        recipe = self.recipe(problem, weight_decay=self.weight_decay)
        loss = mean_loss(data.task)
        trained = train(start, data.train, recipe, loss, seeds[2], context.progress)
        keep_bounded_weights(trained.body)
        return trained

    def _regression(
        self, network: RandomFeatureNetwork, data: TrainingData, context: Context
    ) -> Posterior:
        from uqbench.metrics import regression

        values, vectors = eigenvectors(network, data, "gaussian")
        moment = sum(
            vectors.mT @ (features.mT @ targets.double().unsqueeze(1))
            for features, targets in features_in_batches(network, data.train)
        )

        def along_eigenvectors(noise: float) -> tuple[Tensor, Tensor]:
            """The posterior means of β (1, D, 1) and their variances (1, D)."""
            variances = 1 / (values / noise**2 + self.ridge)
            return variances.unsqueeze(-1) * moment / noise**2, variances

        with context.tuning(len(self.noise_grid)):
            targets = data.validation.targets.cpu().numpy()
            batches = features_in_batches(network, data.validation)
            rotated = torch.cat([features @ vectors[0] for features, _ in batches])

            def score(noise: float) -> float:
                means, variances = along_eigenvectors(noise)
                mean = (rotated @ means[0]).squeeze(1)
                variance = rotated.square() @ variances[0] + noise**2
                return regression.nll(targets, mean.cpu().numpy(), variance.cpu().numpy())

            noise = best_on_grid("sngp.noise_grid", self.noise_grid, score)
        means, variances = along_eigenvectors(noise)
        return SNGPPosterior(network, (vectors @ means)[0], vectors, variances, noise=noise)


def eigenvectors(
    network: RandomFeatureNetwork, data: TrainingData, likelihood: str
) -> tuple[Tensor, Tensor]:
    """Eigenvalues (K, D) and eigenvectors (K, D, D) of Σ_i w_ik φ_i φ_iᵀ over the training split.

    In double precision. K = 1 with w = 1 for the likelihood "gaussian", else K = C with
    w = p_ik(1 − p_ik).
    """
    gram = 0
    for features, _ in features_in_batches(network, data.train):
        weighted = features.mT.unsqueeze(0)
        if likelihood == "softmax":
            p = (features @ network.output.weight.detach().double().mT).softmax(1)
            weighted = weighted * (p * (1 - p)).mT.unsqueeze(1)
        gram = gram + weighted @ features
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=0), vectors  # rounding may leave a zero below zero


class SNGPPosterior(Posterior):
    """Outputs N(φᵀm_k, Σ_d v_kd (φᵀe_kd)²) at features φ, e_kd the eigenvectors of Σ_k.

    weights: m, (D, C). vectors: e, (K, D, D), and variances: v, (K, D), with K = C or 1 for all.
    noise: σ of y, in regression. draws: (S, 1, C) standard normals for the logits, in
    classification; every input uses the same ones, so batches do not matter.
    """

    def __init__(
        self,
        network: RandomFeatureNetwork,
        weights: Tensor,
        vectors: Tensor,
        variances: Tensor,
        noise: float = 0.0,
        draws: Tensor | None = None,
    ) -> None:
        self.network = network
        self.weights = weights
        self.vectors = vectors
        self.variances = variances
        self.draws = draws
        self.noise_variance = noise**2
        self.tuned = {"noise": noise} if draws is None else {}

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        features = self.network.features(inputs).double()
        mean = features @ self.weights
        along = (features @ self.vectors).square()  # (K, N, D)
        variance = (along @ self.variances.unsqueeze(-1)).squeeze(-1).mT  # (N, K)
        if self.draws is None:
            moments = mean.squeeze(1), variance.squeeze(1) + self.noise_variance
            return RegressionPrediction(*(moment.to(inputs.dtype) for moment in moments))
        moments = ClassificationMoments()
        for draws in self.draws.split(SAMPLES_AT_A_TIME):
            moments.update(mean + variance.sqrt() * draws)
        return moments.prediction()

"""The exact Gaussian process that NUQLS samples (Wilson et al., Remark 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from uqbench.calibration import calibrate
from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.errors import UnsupportedError
from uqbench.linearised import linearise
from uqbench.linearised_training import cholesky_with_jitter
from uqbench.method import Method, Posterior, Task
from uqbench.prediction import RegressionPrediction
from uqbench.problems import Problem


@dataclass(frozen=True)
class NTKGP(Method):
    """Noise-free Gaussian process regression with the empirical NTK, K = JJᵀ.

    mean f(x) + K_xX K⁻¹ (y − f(X)); variance γ²(K_xx − K_xX K⁻¹ K_Xx), times ``scale``² that
    minimises the validation ECE. K is factored by Cholesky with the smallest jitter that works.

    gamma: γ. calibrate: whether the variance is scaled on the validation split.
    max_rows: the largest training split it is run on (memory 16 n² bytes, time n³/3).
    """

    tasks: ClassVar[frozenset[Task]] = frozenset({Task.REGRESSION})
    deterministic: ClassVar[frozenset[Task]] = tasks

    gamma: PositiveFloat = 1.0
    calibrate: bool = True
    max_rows: PositiveInt = 10_000

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        if len(data.train) > self.max_rows:
            raise UnsupportedError(
                f"ntk_gp factors an n x n matrix; n = {len(data.train)} exceeds max_rows = "
                f"{self.max_rows} (use nuqls, or --set ntk_gp.max_rows={len(data.train)})"
            )
        posterior = NTKGPPosterior(network, data.train, self.gamma)
        if self.calibrate:
            calibrate(posterior, data, context)
        return posterior


class NTKGPPosterior(Posterior):
    """The GP posterior given the training split."""

    forward_passes = 3  # a forward pass, and a Jacobian of about two

    def __init__(self, network: nn.Module, train: Split, gamma: float) -> None:
        self.network = network
        self.gamma = gamma
        self.scale = 1.0
        self._train = linearise(network, train.inputs)
        self._factor, jitter = cholesky_with_jitter(self._train.gram())
        gap = train.targets.view(-1, 1) - self._train.outputs
        self._weights = torch.cholesky_solve(gap, self._factor)  # K⁻¹(y − f), (n, 1)
        self.tuned = {"jitter": jitter}

    def predict(self, inputs: Tensor) -> RegressionPrediction:
        here = linearise(self.network, inputs)
        cross = here.gram(self._train)  # (N, n)
        mean = here.outputs + cross @ self._weights
        solved = torch.linalg.solve_triangular(self._factor, cross.mT, upper=False)
        # rounding must not leave a negative variance at training inputs
        unexplained = (here.gram_blocks().view(-1) - solved.square().sum(0)).clamp(min=0)
        return RegressionPrediction(mean.squeeze(-1), (self.scale * self.gamma) ** 2 * unexplained)

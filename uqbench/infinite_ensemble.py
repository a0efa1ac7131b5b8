"""The limit of infinitely many linearised networks, each trained by full-batch descent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from uqbench.data import Split
from uqbench.descent import Descent, descent_filter
from uqbench.errors import UnsupportedError
from uqbench.linearised import linearise
from uqbench.linearised_training import target_matrix
from uqbench.memory import available_bytes
from uqbench.method import Posterior, Task
from uqbench.prediction import RegressionPrediction

MATRICES = 4
"""Matrices of float64 (n, n) that an eigendecomposition holds: K, its copies and eigenvectors."""


class InfiniteEnsemble(Posterior):
    """Mean and variance over members that start at θ̂ + z, z ~ N(0, γ²I), in closed form.

    After t steps a member is f̃(x) = f(x) + J(x)z − K_xX q_t(K) (f(X) + J_X z − y), affine in z (see
    :mod:`uqbench.descent`). So f̃(x) is Gaussian with

        mean      f(x) − K_xX q_t(K) (f(X) − y),
        variance  γ²‖J(x) − K_xX q_t(K) J_X‖² = γ²(K_xx − K_xX (2q_t − q_t K q_t)(K) K_Xx)

    for any t from one eigendecomposition of K, in float64. Its limit t → ∞ is the Gaussian process
    of ``ntk_gp``. The variance is multiplied by ``scale``².

    Raises DivergenceError, and UnsupportedError if the eigendecomposition would take more than a
    quarter of the free memory.
    """

    forward_passes = 3  # a forward pass, and a Jacobian of about two

    def __init__(self, network: nn.Module, train: Split, gamma: float, descent: Descent) -> None:
        require_room(len(train), train.targets.device)
        self.network = network
        self.gamma = gamma
        self.scale = 1.0
        self.tuned = {"lr": descent.lr}
        self._train = linearise(network, train.inputs)
        values, self._vectors = torch.linalg.eigh(self._train.gram().double())
        values = values.clamp(min=0)
        factors = descent_filter(values, len(train), descent)
        self._explained = factors * (2 - values * factors)
        gap = target_matrix(Task.REGRESSION, train.targets, self._train.outputs)
        gap = (gap - self._train.outputs).double().squeeze(1)
        self._weights = factors * (self._vectors.mT @ gap)  # of K_xX's products with eigenvectors

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> RegressionPrediction:
        here = linearise(self.network, inputs)
        along = here.gram(self._train).double() @ self._vectors  # (N, n)
        mean = here.outputs.squeeze(1) + along @ self._weights
        # rounding must not leave a negative variance at training inputs
        left = (here.gram_blocks().view(-1) - along.square() @ self._explained).clamp(min=0)
        variance = (self.scale * self.gamma) ** 2 * left
        dtype = here.outputs.dtype
        return RegressionPrediction(mean.to(dtype), variance.to(dtype))


def require_room(rows: int, device: torch.device) -> None:
    """Raise UnsupportedError if K of ``rows`` rows is too large to be decomposed."""
    needed, free = 8 * MATRICES * rows**2, available_bytes(device) // 4
    if needed > free:
        raise UnsupportedError(
            f"members = inf decomposes an n x n matrix; n = {rows} takes {needed / 2**30:.3g} GiB, "
            f"more than a quarter of the free memory ({free / 2**30:.3g} GiB): set a finite number "
            "of members"
        )

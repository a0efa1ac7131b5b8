"""Gradient descent with momentum (heavy ball): its settings, its guard, and its closed form.

On the squared error of a linearised network every full-batch iterate is known. With n targets y,
residuals r = f̃₀ − y at the start, and K the empirical NTK Gram matrix, t steps lead to
f̃ = f̃₀ − Kα with α = q_t(K) r, where on each eigenvalue λ of K, from b = q = 0,

    b ← μ b + (1 − λ q)/n,  q ← q + lr b.

So q_t is a polynomial of degree t − 1, and q_∞(λ) = 1/λ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uqbench.context import ignore_progress
from uqbench.errors import DivergenceError

Progress = Callable[[str, int, int], None]

GROWTH = 1e3
"""How much a residual may grow before a descent is said to diverge."""


@dataclass(frozen=True)
class Descent:
    """Gradient descent with momentum: step size, passes over the data, momentum."""

    lr: float
    epochs: int
    momentum: float = 0.9

    def diverges(self) -> DivergenceError:
        """The error of a descent that does."""
        return DivergenceError(
            f"gradient descent of the linearised networks diverges at lr {self.lr:g} "
            f"(momentum {self.momentum:g}); set a smaller lr, or leave it out to have "
            "it chosen from the largest NTK eigenvalue"
        )


class DivergenceGuard:
    """Stops a descent whose residual grows a thousandfold or is not finite."""

    def __init__(self, descent: Descent) -> None:
        self._descent = descent
        self._limit: float | None = None

    def checked(self, residuals: Tensor) -> Tensor:
        """Return the residuals; raise DivergenceError if they have grown too much."""
        size = residuals.norm().item()
        if self._limit is None:
            self._limit = GROWTH * size + 1e-6
        if not (size <= self._limit and size < float("inf")):
            raise self._descent.diverges()
        return residuals


def descent_filter(eigenvalues: Tensor, rows: int, descent: Descent) -> Tensor:
    """q_t(λ) for eigenvalues λ ≥ 0 of K, in O(log t) operations each.

    rows: n.

    Raises DivergenceError if a residual grows along an eigenvector, |1 − λ q_t(λ)| > 1000.
    """
    curvature = descent.lr / rows * eigenvalues
    one = torch.ones_like(curvature)
    momentum = descent.momentum * one
    # in units in which lr and n are 1: b and q, and the constant, after one step
    moved = torch.stack([-curvature, momentum, one], -1)
    stepped = torch.stack([1 - curvature, momentum, one], -1)
    constant = torch.stack([0 * one, 0 * one, one], -1)
    step = torch.stack([stepped, moved, constant], -2)  # acts on (q, b, 1)
    result = torch.linalg.matrix_power(step, descent.epochs)[..., 0, 2]
    if not ((1 - curvature * result).abs() <= GROWTH).all():
        raise descent.diverges()
    return descent.lr / rows * result


def descend_in_closed_form(
    product: Callable[[Tensor], Tensor],
    residuals: Tensor,
    descent: Descent,
    progress: Progress = ignore_progress,
) -> Tensor:
    """α = q_t(K) r for the residuals r (n, S) of S members, by the block Lanczos method.

    product: V (n, k) -> KV.

    With an orthonormal basis Q of the span of r, Kr, …, K^(m−1) r, α ≈ Q q_t(QᵀKQ) Qᵀr, which is
    exact from m = t on, so that this never takes more products than the loop. It takes far fewer
    where few eigenvalues are large: m grows until √(αᵀKα), the length of the way Jᵀα in parameter
    space, is settled to nearly the rounding error ε, ε^0.7. Memory: Q has n·S·m numbers.
    """
    if not residuals.isfinite().all():
        raise descent.diverges()
    rows, epsilon = len(residuals), torch.finfo(residuals.dtype).eps
    basis, start = _directions(residuals, epsilon * residuals.norm())
    start, newest = start.double(), basis
    projected = start.new_zeros(0, 0)  # QᵀKQ
    coefficients = start.new_zeros(0, residuals.shape[1])  # Qᵀα
    judged = 2 * len(start)  # fewer products hardly ever do
    for step in range(1, descent.epochs + 1):
        image = product(newest)
        if not image.isfinite().all():
            raise descent.diverges()
        coupling = basis.mT @ image
        image = image - basis @ coupling
        again = basis.mT @ image  # one pass leaves rounding errors along Q
        image = image - basis @ again
        projected = _bordered(projected, (coupling + again).double())
        newest, _ = _directions(image, rows**0.5 * epsilon * projected.norm())
        last = step == descent.epochs or not newest.numel()
        if last or len(projected) >= 1.2 * judged:
            judged = len(projected)
            values, vectors = torch.linalg.eigh(projected)
            factors = descent_filter(values.clamp(min=0), rows, descent)
            before = coefficients
            coefficients = vectors @ (factors.unsqueeze(1) * (vectors[: len(start)].mT @ start))
            change = coefficients.clone()
            change[: len(before)] -= before
            way, left = ((a * (projected @ a)).sum() for a in (coefficients, change))
            if last or left <= epsilon**1.4 * way:
                break
        newest, _ = torch.linalg.qr(newest - basis @ (basis.mT @ newest))
        basis = torch.cat([basis, newest], 1)
        progress("descending", step, descent.epochs)
    progress("descending", descent.epochs, descent.epochs)
    return basis @ coefficients.to(basis.dtype)


def _directions(block: Tensor, cutoff: float | Tensor) -> tuple[Tensor, Tensor]:
    """An orthonormal basis Q (n, k) of the columns of ``block`` (n, S), and Qᵀ block (k, S).

    Directions in which the block is no larger than ``cutoff`` are left out.
    """
    basis, triangle = torch.linalg.qr(block)
    left, sizes, right = torch.linalg.svd(triangle, full_matrices=False)
    kept = sizes > cutoff
    return basis @ left[:, kept], (sizes.unsqueeze(1) * right)[kept]


def _bordered(matrix: Tensor, columns: Tensor) -> Tensor:
    """The symmetric matrix (N, N) with last columns ``columns`` (N, k) and the rest ``matrix``."""
    size = len(matrix)
    result = columns.new_empty(len(columns), len(columns))
    result[:size, :size] = matrix
    result[:, size:] = columns
    result[size:] = columns.mT
    corner = result[size:, size:]
    corner.copy_((corner + corner.mT) / 2)
    return result

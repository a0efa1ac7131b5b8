"""Linear systems with a positive semi-definite matrix that is known by its products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from uqbench.context import ignore_progress
from uqbench.descent import Progress

RANK = 200
"""Of the preconditioner: a product with as many vectors, and as many vectors to keep."""
MOST_ITERATIONS = 1000

Product = Callable[[Tensor], Tensor]
"""V (n, k) -> KV."""


def conjugate_gradients(
    product: Product,
    right: Tensor,
    tolerance: float,
    generator: torch.Generator,
    progress: Progress = ignore_progress,
) -> tuple[Tensor, float, int]:
    """Solve KX = B for the columns of B (n, S) together, preconditioned.

    Stops when every column has ‖b − Kx‖ ≤ ``tolerance``·‖b‖, or after 1,000 iterations, or where
    rounding lets nothing more be gained. The error of x itself may be larger than that of b by the
    condition number.

    Returns X, the largest ‖b − Kx‖/‖b‖ of the columns (computed anew at the end), and the
    iterations, each of which takes a product with S vectors.
    """
    precondition = nystrom_preconditioner(product, right, generator)
    sizes = right.norm(dim=0).clamp(min=torch.finfo(right.dtype).tiny)
    solution, residual = torch.zeros_like(right), right.clone()
    direction = preconditioned = precondition(residual)
    slope = (residual * preconditioned).sum(0)
    iterations = 0
    goal = 0.9 * tolerance * sizes  # the updated residual differs from the true one by rounding
    while iterations < MOST_ITERATIONS and (residual.norm(dim=0) > goal).any():
        image = product(direction)
        length = _ratio(slope, (direction * image).sum(0))
        if not length.any():
            break
        solution += length * direction
        residual -= length * image
        preconditioned = precondition(residual)
        before, slope = slope, (residual * preconditioned).sum(0)
        direction = preconditioned + _ratio(slope, before) * direction
        iterations += 1
        progress("solving", iterations, MOST_ITERATIONS)
    left = ((right - product(solution)).norm(dim=0) / sizes).max().item()
    return solution, left, iterations


def nystrom_preconditioner(
    product: Product, like: Tensor, generator: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """P⁻¹ = λ_r U Λ⁻¹ Uᵀ + (I − UUᵀ) with the Nyström approximation UΛUᵀ of K.

    Its eigenvalues are those of K, nearly, above the smallest of them, λ_r, so that P⁻¹K has none
    that is much larger than λ_r (Frangella, Tropp & Udell 2023, without a ridge).

    like: (n, S); products are taken with S vectors at a time.
    """
    rows, rank = len(like), min(RANK, len(like))
    options = {"dtype": like.dtype, "device": like.device}
    drawn = torch.randn(rows, rank, generator=generator, **options)
    sketch, _ = torch.linalg.qr(drawn)
    image = torch.cat([product(part) for part in sketch.split(like.shape[1], 1)], 1)
    values, vectors = torch.linalg.eigh(sketch.mT @ image)
    kept = values > rank * torch.finfo(like.dtype).eps * values[-1]
    half = (image @ vectors[:, kept]) / values[kept].sqrt()
    basis, roots, _ = torch.linalg.svd(half, full_matrices=False)
    if not roots.numel():
        return lambda vectors: vectors
    factors = (roots[-1] / roots).square() - 1
    return lambda vectors: vectors + basis @ (factors.unsqueeze(1) * (basis.mT @ vectors))


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Their ratio; 0 where the column is solved, or rounding has taken the definiteness."""
    return torch.where(denominator > 0, numerator / denominator, 0.0).nan_to_num(0, 0, 0)
